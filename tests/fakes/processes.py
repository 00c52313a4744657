"""Processes of kernelwatch, started as an operator starts them and ended without leaving any behind."""

import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def served(app: Any, **options: Any) -> Iterator[str]:
    """The address of an app that a real server serves in a thread of this process; options are uvicorn's."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="auto", **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server ended before it had started"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def running(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], logs: Path, python: str = sys.executable
) -> Iterator[None]:
    """Run each command in a process group of its own; TERM, then KILL, when the block ends."""
    logs.mkdir(parents=True, exist_ok=True)
    processes = []
    try:
        for name, command in commands.items():
            with (logs / f"{name}.log").open("w") as log:
                processes.append(
                    subprocess.Popen(
                        [python, *command],
                        cwd=ROOT,
                        env={**os.environ, **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        yield
    finally:
        for process in processes:
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + 30
        for process in processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)


def until(fact: Callable[[], object], limit_s: float, every_s: float = 0.5) -> None:
    """Wait until `fact()` is true.  Raises TimeoutError that says what it was waiting for."""
    deadline = time.monotonic() + limit_s
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{fact.__name__} was not true within {limit_s} s")
        time.sleep(every_s)


def scripted_python(folder: Path) -> Path:
    """The interpreter of the stack `scripted`, written into a new `folder`; see scripted_python.py."""
    folder.mkdir()
    python = folder / "python"
    python.write_text(f"#!{sys.executable}\n{(Path(__file__).parent / 'scripted_python.py').read_text()}")
    python.chmod(python.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return python


def free_port() -> int:
    """A port on which nobody listens, and that the system gives to no outgoing connection (32768 and above)."""
    for port in random.sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("100 ports between 20000 and 32000 are in use")
