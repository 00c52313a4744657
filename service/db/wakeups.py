"""Wake-ups without content: "queue h200 has work".  A lost one costs seconds: every worker also polls.

A fleet sends them through its broker.  Without one, processes of a machine that share a state folder use named pipes.
"""

import os
import select
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from service.settings import settings

log = structlog.get_logger()
CONTROL = "control"  # the queue of the processes that run the periodic tasks
_sender: Callable[[str], None] | None = None


def send_with(sender: Callable[[str], None] | None) -> None:
    """Name the function that carries wake-ups (a front door does this); None for the pipes of this machine."""
    global _sender
    _sender = sender


def send(queue: str) -> None:
    """Wake the workers of `queue`.  Never raises: the row is the truth, the message is a nudge."""
    try:
        (_sender or _send_here)(queue)
    except Exception as error:  # a dead broker must not fail what is already committed
        log.warning("wake-up lost", queue=queue, error=str(error))


class LocalWaiter:
    """Waits for wake-ups of one queue from processes of this machine.

    Where several wait for one queue, a wake-up reaches one of them.
    """

    def __init__(self, queue: str) -> None:
        self._pipe: int | None = None
        path = _pipe_of(queue)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.mkfifo(path, 0o600)
            self._pipe = _opened(path, os.O_RDWR)  # also for writing, so that it never ends
        except OSError as error:
            log.warning("no wake-ups on this machine: work is found by polling", queue=queue, error=str(error))

    def wait(self, seconds: float) -> bool:
        """Wait for a wake-up, at most so long.  Returns whether there was one."""
        readable, _, _ = select.select([] if self._pipe is None else [self._pipe], [], [], seconds)
        for pipe in readable:
            os.read(pipe, 65_536)  # one look is enough for all of them
        return bool(readable)

    def wake(self) -> None:
        """End a `wait` of this process.  A signal handler may call it."""
        if self._pipe is not None:
            _ring(self._pipe)


def _send_here(queue: str) -> None:
    with suppress(OSError):  # nobody waits
        pipe = _opened(_pipe_of(queue), os.O_WRONLY)
        try:
            _ring(pipe)
        finally:
            os.close(pipe)


def _ring(pipe: int) -> None:
    with suppress(BlockingIOError):  # full: it will wake up anyway
        os.write(pipe, b".")


def _opened(path: Path, flags: int) -> int:
    """A named pipe.  Raises OSError for anything else: a file would always be readable."""
    pipe = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    if stat.S_ISFIFO(os.fstat(pipe).st_mode):
        return pipe
    os.close(pipe)
    raise OSError(f"{path} is no named pipe: delete it")


def _pipe_of(queue: str) -> Path:
    return settings().state / "wake" / queue
