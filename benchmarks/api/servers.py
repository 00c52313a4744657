"""Servers in processes of their own, and the CPU time that they used: kernelwatch's, and LNT's on SQLite."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks import readers
from tests.fakes.processes import free_port

TOKEN = "study"  # of an instance that lives as long as the study
_WSGI = "from lnt.server.ui.app import App\napplication = App.create_standalone({!r})\n"
SUITE = "db_default/v4/nts"  # of an instance of LNT


@dataclass(frozen=True)
class Server:
    """A server with one worker, and a client of it."""

    process: psutil.Process
    client: httpx.Client

    def cpu_s(self) -> float:
        """The CPU time that its processes have used, in seconds."""
        return sum(cpu_s(one.pid) for one in (self.process, *self.process.children(recursive=True)))


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used, in seconds."""
    # The CPU clock of another process (clock_getcpuclockid); /proc/PID/stat counts in steps of 10 ms.
    return time.clock_gettime((~pid << 3) | 2)


@contextmanager
def kernelwatch() -> Iterator[Server]:
    """Serve the database of the settings, without a limit on the rate of requests."""
    port = free_port()
    os.environ |= {"KERNELWATCH_PORT": str(port), "KERNELWATCH_RATE_LIMIT": ""}
    with (
        readers.served(port) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1/", timeout=600) as client,
    ):
        yield Server(process, client)


@contextmanager
def lnt(python: Path, folder: Path) -> Iterator[Server]:
    """Create an instance in a new folder and serve it with gunicorn and one worker."""
    create = [str(python.parent / "lnt"), "create", str(folder), "--api-auth-token", TOKEN]
    subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
    (folder / "served.py").write_text(_WSGI.format(str(folder)))
    port = free_port()
    options = ["--workers", "1", "--bind", f"127.0.0.1:{port}", "--chdir", str(folder), "--timeout", "600"]
    options += ["--worker-class", "gthread", "--threads", "1", "--keep-alive", "60"]  # connections stay open, as ours
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [str(python), "-m", "gunicorn", *options, "served:application"], stdout=log, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/", timeout=600) as client:
            _wait(client, process)
            yield Server(psutil.Process(process.pid), client)
    finally:
        process.terminate()
        process.wait(20)


def _wait(client: httpx.Client, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 60
    while True:
        try:
            client.get(f"api/{SUITE}/fields").raise_for_status()
            return
        except httpx.HTTPError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.2)
