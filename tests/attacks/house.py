"""A whole service as processes that a test kills, restarts and cuts off, with a repository and a forge that fails."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tests.fakes.contracts import webhooks
from tests.fakes.github import FakeGitHub
from tests.fakes.processes import ROOT, free_port, scripted_python
from tests.fakes.repository import Repository

SECRET = "s3cret"
CASE = "rmsnorm.fwd.512x512.fp32"
# By two trials a case is undecided now and then.  Its status would be pending, as that of a run which was forgotten is.
RECIPE = f"""
devices = ["cpu"]
suite = "one"
sota = "eager"
[base]
stack = "scripted"
[build]
commands = ["test ! -e broken"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[suites]
one = ["{CASE}"]
[policy]
comment = "always"
smallest_change = 0.05
screening = [2]
rounds = 4
[policy.gate]
inconclusive = "pass"
"""


class Proxy:
    """A TCP proxy: `cut` ends what goes through it and refuses new connections until `restore`."""

    def __init__(self, to: tuple[str, int]) -> None:
        self._to, self._whole = to, True
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = int(self._listener.getsockname()[1])
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self._whole = False
        for pair in self._pairs:
            _shut(*pair)
        self._pairs.clear()

    def restore(self) -> None:
        self._whole = True

    def close(self) -> None:
        _shut(self._listener)  # ends the thread that waits for connections
        self._thread.join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if not self._whole:
                    raise OSError
                server = socket.create_connection(self._to, 5)
            except OSError:
                client.close()
                continue
            self._pairs.append((client, server))
            for one, other in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=_copy, args=(one, other), daemon=True))
                self._threads[-1].start()


def _copy(one: socket.socket, other: socket.socket) -> None:
    with one:
        with suppress(OSError):
            while data := one.recv(65_536):
                other.sendall(data)
        _shut(one, other)


def _shut(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


class FailingGitHub(FakeGitHub):
    """A GitHub of which a share of the writes answers 502, half of them after the write was made."""

    def __init__(self, dice: random.Random, share: float) -> None:
        super().__init__()
        self.failed = 0
        self._dice, self._share = dice, share

    def _fault(self, method: str, path: str) -> str | None:
        if method != "GET" and self._dice.random() < self._share:
            self.failed += 1
            return self._dice.choice(["502", "502-after-commit"])
        return super()._fault(method, path)


@contextmanager
def served(app: Any) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


class House:
    """The processes of a service, each in a group of its own.  A worker may have a host name of its own (as root)."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.port = folder, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWATCH_")}
        usual = {"PORT": str(self.port), "WEBHOOK_SECRET": SECRET, "DEVICE": "cpu", "LEASE_S": "8", "QUEUE_POLL_S": "1"}
        usual |= {"ALLOWED_ROOTS": json.dumps([str(folder)]), "WRITE_PAUSE_S": "0.02", "REMOTE_POLL_S": "5"}
        usual |= {"PUBLIC_URL": self.address}
        named = {f"KERNELWATCH_{name}": value for name, value in {**usual, **environment}.items()}
        self._environment = {**kept, **named}
        self._commands: dict[str, tuple[list[str], str, str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.started_at: dict[str, float] = {}

    def add(self, name: str, command: list[str], state: str = "state", host: str = "") -> None:
        """Name a process: its command, its state folder, and the name of its machine."""
        self._commands[name] = command, state, host
        place = self.folder / state
        if not (place / "stacks").exists():
            place.mkdir(exist_ok=True)
            self.run("stack", "adopt", "scripted", "--python", str(self._scripted()), state=state)

    def run(self, *arguments: str, state: str = "state") -> str:
        """Run a command of kernelwatch to its end."""
        command = [sys.executable, "-m", "service.cli", *arguments]
        environment = self._of(state)
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str) -> None:
        command, state, host = self._commands[name]
        command = [sys.executable, *command]
        if host:
            command = ["unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh", *command]
        with self.log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self._of(state),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started_at[name] = time.time()

    def kill(self, name: str) -> None:
        """Kill a process and its children with -9, as the kernel does when memory is short."""
        process = self._processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    @property
    def names(self) -> list[str]:
        return list(self._commands)

    @property
    def alive(self) -> list[str]:
        """The processes that have not ended by themselves."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def log(self, name: str) -> Path:
        (self.folder / "logs").mkdir(exist_ok=True)
        return self.folder / "logs" / f"{name}.log"

    def answers(self, path: str = "/readyz") -> int:
        """The status of a page; 0 where nothing answers."""
        try:
            return httpx.get(self.address + path, timeout=10).status_code
        except httpx.HTTPError:
            return 0

    def deliver(self, event: str, body: Mapping[str, Any], guid: str) -> int:
        """Post a signed webhook, once; the status, or 0 where nothing answers."""
        delivery = webhooks.from_github(event, body, guid=guid, secret=SECRET)
        try:
            return httpx.post(f"{self.address}/webhooks/github", **delivery, timeout=20).status_code
        except httpx.HTTPError:
            return 0

    def _of(self, state: str) -> dict[str, str]:
        place = self.folder / state
        return {**self._environment, "KERNELWATCH_STATE": str(place), "KERNELWATCH_LOCKS": str(place / "locks")}

    def _scripted(self) -> Path:
        folder = self.folder / "stack"
        return folder / "python" if folder.exists() else scripted_python(folder)


class Author:
    """Somebody who commits to the mainline and opens pull requests."""

    def __init__(self, folder: Path) -> None:
        self.repository = Repository(folder)
        self.tip = self.repository.commit("first", {"speed.json": json.dumps({CASE: 100.0})})

    def push(self, number: int) -> tuple[str, str, dict[str, Any]]:
        """Commit to the mainline: the sha, and its webhook."""
        before, self.tip = self.tip, self.repository.commit(f"main {number}", {"main.txt": str(number)})
        return self.tip, "push", webhooks.push(before, self.tip)

    def pull(self, number: int) -> tuple[str, str, dict[str, Any]]:
        """Open a pull request upon the mainline: the sha of its head, and its webhook."""
        git = self.repository.git
        blob = git("hash-object", "-w", "--stdin", given=f"pull {number}")
        tree = git("mktree", given=f"{git('ls-tree', self.tip)}\n100644 blob {blob}\tpull.txt\n")
        sha = git("commit-tree", tree, "-p", self.tip, "-m", f"pull {number}")
        for name in (f"heads/p{number}", f"pull/{number}/head"):  # a commit on no branch would be held
            git("update-ref", f"refs/{name}", sha)
        return sha, "pull_request", webhooks.pull_request(number, "opened", sha, self.tip)


def until(fact: Callable[[], object], limit_s: float, every_s: float = 1.0) -> bool:
    """Wait until `fact()` is true; whether it came true in time."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if fact():
            return True
        time.sleep(every_s)
    return False
