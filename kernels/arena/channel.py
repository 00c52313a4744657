"""Talking to a contender: one question, one answer, and never a wait without an end.  No torch in here."""

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
from typing import IO, Any

from .protocol import MAX_LINE

LAST_LINES = 5  # of the contender's stderr, shown to whoever reads why it was lost
# What a database refuses or a page can not show: control characters, and halves of surrogate pairs.
_UNFIT = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\ud800-\\udfff]")
# Lists in lists, counted from the value of a key: facts have 4.  With 485 storing them ended in a RecursionError.
DEEPEST = 16
END_S = 2.0  # from a closed pipe to the end of a process that means to end
SLICE_S = 0.5  # a waiting question notices a close() from another thread within this time


class ContenderLost(Exception):
    """The process is gone, or can not be talked to any more.  The message says what happened, with its last words."""


class Channel:
    """The pipes of one contender: `process` has text pipes for stdin and stdout, and its stderr goes to `log`."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("a contender needs pipes for stdin and stdout")
        self._process, self._log = process, log
        self._pipes: tuple[IO[str], IO[str]] = (process.stdin, process.stdout)
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self._to, False)  # a contender that does not read must not stop the driver
        self._leads_group = _leads_group(process.pid)
        self._buffer = b""
        self._busy = threading.Lock()
        self._closed = self._killed = False
        self._meanwhile: Callable[[], None] = lambda: None

    def ask(
        self, message: Mapping[str, Any], limit_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """The answer to `message`.  Raises ContenderLost, after which the process has been ended.

        `meanwhile` is called every half second of waiting; what it raises ends the question.
        """
        with self._busy:
            self._meanwhile = meanwhile
            deadline = time.monotonic() + limit_s
            try:
                if self._buffer:
                    raise ContenderLost("answered without being asked")
                self._send(json.dumps(message).encode() + b"\n", deadline)
                return _understood(self._line(deadline))
            except TimeoutError:
                reason = f"no answer to {message.get('do')!r} in {limit_s:g} s"
            except ContenderLost as lost:
                reason = str(lost)
            except (BrokenPipeError, ConnectionResetError, EOFError):
                reason = "closed" if self._closed else self._end()
            self._kill()
            raise ContenderLost(_with_last_words(reason, self._log))

    def close(self) -> None:
        """End the process and its process group.  Harmless when it is gone already; safe from another thread."""
        self._closed = True
        self._kill()
        if self._busy.acquire(timeout=10 * SLICE_S):
            for pipe in self._pipes:
                with suppress(OSError):
                    pipe.close()
            self._busy.release()

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

    def _end(self) -> str:
        """How the process ended, once its pipe is closed."""
        try:
            return _ended(self._process.wait(timeout=END_S))
        except subprocess.TimeoutExpired:
            return "closed its answers and went on running"

    def _kill(self) -> None:
        if self._killed:  # the number may belong to somebody else by now
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
    """Never signal a group that is not the contender's own: it would be ours."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def _understood(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
        if isinstance(answer, dict):
            return {_fit(key): _fit(value) for key, value in answer.items()}
    except (ValueError, RecursionError):
        pass
    raise ContenderLost(f"answered with something that is not a JSON object: {line[:80]!r}")


def _fit(value: Any, deeper: int = DEEPEST) -> Any:
    """A contender's value as it can be stored and shown: text without what is unfit, finite numbers, not too deep."""
    match value:
        case str():
            return _UNFIT.sub("", value)
        case list() | dict() if not deeper:
            return "…"
        case list():
            return [_fit(each, deeper - 1) for each in value]
        case dict():
            return {_fit(key): _fit(each, deeper - 1) for key, each in value.items()}
        case float() if not math.isfinite(value):
            return None
        case int() if abs(value) >= 1 << 63:
            return None
    return value


def _ended(status: int) -> str:
    # A sandbox that outlives its child reports a signal as 128 + its number.
    number = -status if status < 0 else status - 128
    if number > 0 and number in {int(known) for known in signal.Signals}:
        return f"killed by {signal.Signals(number).name}"
    return f"exited with status {status}"


def _with_last_words(reason: str, log: Path) -> str:
    words = last_lines(log)
    return f"{reason}; last lines: {' / '.join(words)}" if words else reason


def last_lines(log: Path, count: int = LAST_LINES) -> list[str]:
    """The last lines of a log that say something, each cut to 200 characters: of a crash its first ones."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - (1 << 16)))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [_fit(line).strip()[:200] for line in text.splitlines()]
    # faulthandler says what happened first, then the innermost frame, and ends with lists that say nothing
    lines = [line for line in lines if line and not line.startswith(("Extension modules:", "Current thread", "Stack "))]
    crashes = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
    return lines[crashes[-1] :][:count] if crashes else lines[-count:]
