"""The connection to a contender: one answer to each request, each within a time limit.  Torch-free."""

import json
import math
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

from .protocol import MAX_LINE

LAST_LINES = 5  # of the contender's stderr, shown with the reason why it was lost
# Characters that a database refuses or a page cannot show: control characters and halves of surrogate pairs.
_UNFIT = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\ud800-\\udfff]")
MAX_DEPTH = 16  # of nested lists and objects in a value; facts have 4, and 485 raised a RecursionError in storing
END_S = 2.0  # from a closed pipe to the end of the process, if it is about to end
SLICE_S = 0.5  # a waiting request notices a close() from another thread within this time


class ContenderLost(Exception):
    """The process has ended or does not answer properly.  The message says why, with the last lines of its log."""


class Freezer(Protocol):
    """Stops a contender's processes while others are measured; see workers.sandbox.freezing."""

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def cpu_s(self) -> float: ...

    def read(self, address: int, count: int) -> bytearray: ...

    def write(self, address: int, data: bytearray | memoryview) -> None: ...


class Channel:
    """The pipes of one contender: `process` has text pipes for stdin and stdout; its stderr goes to `log`.

    Without a `freezer` its processes are never stopped, and their CPU time is unknown.  `closed` is called after the
    first `close`.
    """

    def __init__(
        self,
        process: "subprocess.Popen[str]",
        log: Path,
        freezer: Freezer | None = None,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("start the contender with pipes for stdin and stdout")
        self._process = process
        self._log = log
        self._freezer = freezer
        self._after_close = closed
        self._pipes: tuple[IO[str], IO[str]] = (process.stdin, process.stdout)
        self._to = process.stdin.fileno()
        self._from = process.stdout.fileno()
        os.set_blocking(self._to, False)  # a contender that does not read must not block the driver
        self._leads_group = _leads_group(process.pid)
        self._buffer = b""
        self._busy = threading.Lock()
        self._closed = False
        self._killed = False
        self._meanwhile: Callable[[], None] = lambda: None

    def ask(
        self, message: Mapping[str, Any], limit_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """The answer to `message`.  Raises ContenderLost after ending the process.

        `meanwhile` is called every half second of waiting; its exceptions end the request.
        """
        with self._busy:
            self._meanwhile = meanwhile
            deadline = time.monotonic() + limit_s
            try:
                if self._buffer:
                    raise ContenderLost("answered without a request")
                self._send(json.dumps(message).encode() + b"\n", deadline)
                return _parse(self._line(deadline))
            except TimeoutError:
                reason = f"no answer to {message.get('do')!r} in {limit_s:g} s"
            except ContenderLost as lost:
                reason = str(lost)
            except (BrokenPipeError, ConnectionResetError, EOFError):
                reason = "closed" if self._closed else self._exit_reason()
            self._kill()
            raise ContenderLost(_with_last_lines(reason, self._log))

    def freeze(self) -> None:
        """Stop all its processes until `thaw`.  Raises ContenderLost after ending them if one does not stop."""
        if self._freezer is not None and not self._closed:
            try:
                self._freezer.freeze()
            except Exception as trouble:
                self._kill()
                raise ContenderLost(f"could not be stopped after its turn: {trouble}") from trouble

    def thaw(self) -> None:
        """Let its processes run.  Does nothing if they do."""
        if self._freezer is not None and not self._closed:
            self._freezer.thaw()

    def cpu_s(self) -> float | None:
        """CPU time of all its processes so far, ended ones included; None if that is unknown."""
        return None if self._freezer is None else self._freezer.cpu_s()

    def read(self, address: int, count: int) -> bytearray:
        """Bytes of its memory.  Raises OSError."""
        if self._freezer is None:
            raise PermissionError("its memory is not accessible")
        return self._freezer.read(address, count)

    def write(self, address: int, data: bytearray | memoryview) -> None:
        """Change its memory.  Raises OSError."""
        if self._freezer is None:
            raise PermissionError("its memory is not accessible")
        self._freezer.write(address, data)

    def close(self) -> None:
        """End the process and its process group.  Idempotent, and safe from another thread."""
        first, self._closed = not self._closed, True
        self._kill()
        if self._busy.acquire(timeout=10 * SLICE_S):
            for pipe in self._pipes:
                with suppress(OSError):
                    pipe.close()
            self._busy.release()
        if first:
            self._after_close()

    def _send(self, data: bytes, deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._to, selectors.EVENT_WRITE)
            while data:
                self._wait(selector, deadline)
                data = data[os.write(self._to, data) :]

    def _line(self, deadline: float) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if len(self._buffer) > MAX_LINE:
                    raise ContenderLost(f"answered with more than {MAX_LINE >> 20} MiB")
                self._wait(selector, deadline)
                if not (more := os.read(self._from, 1 << 16)):
                    raise EOFError
                self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        if len(line) > MAX_LINE:
            raise ContenderLost(f"answered with more than {MAX_LINE >> 20} MiB")
        return line

    def _wait(self, selector: selectors.BaseSelector, deadline: float) -> None:
        while True:
            left = deadline - time.monotonic()
            if self._closed:
                raise EOFError
            if left <= 0:
                raise TimeoutError
            if selector.select(min(left, SLICE_S)):
                return
            self._meanwhile()

    def _exit_reason(self) -> str:
        """How the process ended, after it closed its pipe."""
        try:
            return _describe_status(self._process.wait(timeout=END_S))
        except subprocess.TimeoutExpired:
            return "closed its pipe and kept running"

    def _kill(self) -> None:
        if self._killed:  # another process may have the pid by now
            return
        self._killed = True
        with suppress(ProcessLookupError, PermissionError):
            if self._leads_group:
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)


def _leads_group(pid: int) -> bool:
    """Does the process lead its own group?  Otherwise a signal to the group would reach this process."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def _parse(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
        if isinstance(answer, dict):
            return {_sanitise(key): _sanitise(value) for key, value in answer.items()}
    except (ValueError, RecursionError):
        pass
    raise ContenderLost(f"answered with something that is not a JSON object: {line[:80]!r}")


def _sanitise(value: Any, depth: int = MAX_DEPTH) -> Any:
    """A value that can be stored and shown: no unfit characters, only finite numbers, limited depth."""
    match value:
        case str():
            return _UNFIT.sub("", value)
        case list() | dict() if not depth:
            return "…"
        case list():
            return [_sanitise(item, depth - 1) for item in value]
        case dict():
            return {_sanitise(key): _sanitise(item, depth - 1) for key, item in value.items()}
        case float() if not math.isfinite(value):
            return None
        case int() if abs(value) >= 1 << 63:
            return None
    return value


def _describe_status(status: int) -> str:
    # A sandbox around the process reports a signal as 128 + its number.
    number = -status if status < 0 else status - 128
    if number > 0 and number in {int(known) for known in signal.Signals}:
        return f"killed by {signal.Signals(number).name}"
    return f"exited with status {status}"


def _with_last_lines(reason: str, log: Path) -> str:
    lines = last_lines(log)
    return f"{reason}; last lines: {' / '.join(lines)}" if lines else reason


def last_lines(log: Path, count: int = LAST_LINES) -> list[str]:
    """The last informative lines of a log, each cut to 200 characters; after a crash, the first lines of its report."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - (1 << 16)))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [_sanitise(line).strip()[:200] for line in text.splitlines()]
    # faulthandler prints the error first, then the innermost frame, and ends with lists that do not help
    lines = [line for line in lines if line and not line.startswith(("Extension modules:", "Current thread", "Stack "))]
    crashes = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
    return lines[crashes[-1] :][:count] if crashes else lines[-count:]
