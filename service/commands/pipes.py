"""What a command does when the reader of its output goes away: exit with 141, as a process that SIGPIPE ended.

SIGPIPE itself stays ignored: it would end workers and servers that write to pipes and sockets of their own.
"""

import contextlib
import os
import select
import sys
from typing import Any

from typer.core import TyperGroup

CLOSED_PIPE = 141  # 128 + SIGPIPE


class PipeClosed(Exception):
    """A write to a pipe that has no reader any more, whichever pipe that was."""


class Commands(TyperGroup):
    """Commands of which none exits with 1 because of a closed pipe, as Typer would: 1 is a regression."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.  Raises PipeClosed instead of BrokenPipeError, which Typer handles itself."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise PipeClosed(str(error)) from error


def outputs_of_this_process() -> tuple[int, ...]:
    """Copies of the descriptors of stdout and stderr.  Rich replaces descriptor 1 when it finds its pipe closed."""
    found = list[int]()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # it may be closed from the start
            found.append(os.dup(descriptor))
    return tuple(found)


def reader_left(outputs: tuple[int, ...]) -> bool:
    """Write what is buffered.  Is one of these outputs a pipe without a reader?

    Then everything else that is written goes nowhere, so that the interpreter does not fail on it at its end.
    """
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    poll = select.poll()
    for descriptor in outputs:
        poll.register(descriptor, 0)  # errors are reported always
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    return True
