"""Supervise the processes of one machine: start them, keep their logs, restart them, and end them together."""

import contextlib
import ctypes
import errno
import fcntl
import json
import logging
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType
from typing import TextIO

from service.settings import MIB, make_private, settings

FIRST_DELAY_S, MAX_DELAY_S = 0.5, 30.0
LONG_LIFE_S = 60.0  # who lived this long is restarted as if for the first time
GRACE_S = 10.0  # between asking the processes to end and ending them
LOG_BYTES, LOG_FILES = 10 * MIB, 3
MAX_LINE = 64 * 1024
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None, use_errno=True)


def supervise(commands: Mapping[str, list[str]], state: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """Call `prepare`, then run `commands` (name to argument list) until SIGINT or SIGTERM.  Returns the exit code.

    A state folder has one supervisor: a second one prints the address of the first, changes nothing and returns 0.
    """
    if trouble := make_private(state):
        _say(trouble)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context((state / "supervisor.lock").open("a+"))
        if not _take(lock):
            _say(_running_already(lock))
            return 0
        at = (settings().host, settings().port) if "api" in commands else None
        if at and (trouble := cannot_listen(*at)):
            _say(trouble)
            return 1
        lock.truncate(0)
        lock.write(json.dumps({"pid": os.getpid(), "address": settings().address}))
        lock.flush()
        prepare()
        return _Supervisor(commands, state / "logs", at).run()


class _Child:
    """One process under supervision, with its log and the time at which it may be started again."""

    def __init__(self, name: str, command: list[str], logs: Path) -> None:
        self.name, self.command = name, command
        self.log = RotatingFileHandler(logs / f"{name}.log", maxBytes=LOG_BYTES, backupCount=LOG_FILES)
        self.process: subprocess.Popen[bytes] | None = None
        self.output = -1
        self.started_at, self.start_at, self.delay_s = 0.0, 0.0, FIRST_DELAY_S
        self._rest = b""

    def start(self) -> None:
        self.started_at = time.monotonic()
        try:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which then ends each group in order
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            self.line(f"cannot be started: {error}")
            self._later()
            return
        assert self.process.stdout is not None  # noqa: S101  # stdout is a pipe
        self.output = self.process.stdout.fileno()
        os.set_blocking(self.output, False)

    def read(self) -> bool:
        """Forward the output so far.  Returns False at its end."""
        try:
            while chunk := os.read(self.output, MAX_LINE):
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in lines:
                    self.line(line.decode(errors="replace"))
                if len(self._rest) >= MAX_LINE:
                    self._flush()
        except BlockingIOError:
            return True
        return False

    def line(self, text: str) -> None:
        self.log.emit(logging.makeLogRecord({"msg": text}))
        _say(f"{self.name:<8}| {text}")

    @property
    def ended(self) -> bool:
        """Whether the process has ended and was not reaped yet."""
        return self.process is not None and _has_exited(self.process.pid)

    def reap(self) -> None:
        """End what the process left running, reap it, and set the time of the next start."""
        assert self.process is not None  # noqa: S101  # it has ended
        self.signal(signal.SIGKILL)  # before it is reaped, so that the number still means this group
        code = self.process.wait()
        self.read()
        self._flush()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None
        lived = time.monotonic() - self.started_at
        if lived >= LONG_LIFE_S:
            self.delay_s = FIRST_DELAY_S
        self.line(f"ended with {_ending(code)} after {lived:.0f} s")
        self._later()

    def signal(self, number: int) -> None:
        """Send a signal to the process and all processes of its group."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def _later(self) -> None:
        self.start_at = time.monotonic() + self.delay_s
        self.delay_s = min(2 * self.delay_s, MAX_DELAY_S)

    def _flush(self) -> None:
        if self._rest:
            self.line(self._rest.decode(errors="replace"))
            self._rest = b""


class _Supervisor:
    def __init__(self, commands: Mapping[str, list[str]], logs: Path, at: tuple[str, int] | None) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.children = [_Child(name, command, logs) for name, command in commands.items()]
        self.at = at  # where the address is still to be announced
        self.selector = selectors.DefaultSelector()
        self.stops = 0

    def run(self) -> int:
        with _signals(self._stop) as woken:
            self.selector.register(woken, selectors.EVENT_READ)
            while not self.stops:
                self._start_due()
                self._turn(0.5)
                if self.at and _answers(*self.at):
                    _say(f"\nkernelwatch is at {settings().address}   (press Ctrl-C to stop)\n")
                    self.at = None
            self._end()
        return 0

    def _stop(self) -> None:
        self.stops += 1

    def _start_due(self) -> None:
        for child in self.children:
            if child.process is None and time.monotonic() >= child.start_at:
                child.start()
                if child.process is not None:
                    self.selector.register(child.output, selectors.EVENT_READ, child)

    def _turn(self, longest_s: float) -> None:
        """Wait for output, a signal, an exit or the next start, and handle it."""
        starts = [child.start_at for child in self.children if child.process is None and not self.stops]
        soonest_s = min(starts, default=math.inf) - time.monotonic()
        for key, _ in self.selector.select(max(0.0, min(longest_s, soonest_s))):
            if key.data is None:
                os.read(key.fd, 1024)  # the signal itself was counted by its handler
            elif not key.data.read():
                self.selector.unregister(key.fd)
        for child in self.children:
            if child.ended:
                with contextlib.suppress(KeyError):
                    self.selector.unregister(child.output)
                child.reap()

    def _end(self) -> None:
        """Send SIGTERM to all, and SIGKILL after a while or a second signal."""
        stops, deadline = self.stops, time.monotonic() + GRACE_S
        _say("Stopping ... (press Ctrl-C again to stop at once)")
        for child in self.children:
            child.signal(signal.SIGTERM)
        while any(child.process for child in self.children):
            if self.stops > stops or time.monotonic() > deadline:
                for child in self.children:
                    child.signal(signal.SIGKILL)
            self._turn(0.1)
        _say("All processes have stopped.")


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[int]:
    """Call `stop` on SIGINT and SIGTERM, and make the yielded descriptor readable."""
    receiver, sender = os.pipe()
    for end in (receiver, sender):
        os.set_blocking(end, False)

    def handler(_number: int, _frame: FrameType | None) -> None:
        stop()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    woken_before = signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    try:
        yield receiver
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, previous in before.items():
            signal.signal(number, previous)
        os.close(receiver)
        os.close(sender)


def die_with_parent() -> None:
    """In a child before it executes its program: let it be ended with its parent."""
    # A supervisor that is killed with -9 cannot end its children; the kernel signals them instead.
    if sys.platform == "linux":
        _libc.prctl(_DIE_WITH_PARENT, signal.SIGTERM)


def _has_exited(pid: int) -> bool:
    """Return whether the process has exited, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _take(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _running_already(lock: TextIO) -> str:
    lock.seek(0)
    try:
        first = json.loads(lock.read())
        where = f"at {first['address']}, process {first['pid']}"
    except (ValueError, KeyError):  # it holds the lock and has not written yet
        where = "and is starting"
    another = "set KERNELWATCH_STATE and KERNELWATCH_PORT to start a second one"
    return f"kernelwatch is already running {where}.\nStop it there (Ctrl-C), or {another}."


def cannot_listen(host: str, port: int) -> str | None:
    """Return why the address cannot be listened on, or None."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            remedy = f"Stop the process that uses it, or choose another port, such as KERNELWATCH_PORT={port + 1}"
            if error.errno != errno.EADDRINUSE:
                remedy = "Set KERNELWATCH_HOST to an address of this machine, and KERNELWATCH_PORT to a port above 1023"
            return f"Cannot listen on {host}:{port} ({error.strerror}). {remedy}."
    return None


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1" if host == "0.0.0.0" else host, port), timeout=0.2):  # noqa: S104
            return True
    except OSError:
        return False


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone or the disk is full: keep supervising
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
