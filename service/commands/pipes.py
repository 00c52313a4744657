"""Exit with 141 when the reader of the output goes away, as a process that SIGPIPE ended.

SIGPIPE itself stays ignored: it would end workers and servers that write to pipes and sockets of their own.
"""

import contextlib
import os
import select
import sys

CLOSED_PIPE = 141  # 128 + SIGPIPE


class PipeClosed(Exception):
    """A write to a pipe without a reader; the pipe need not be an output of this process."""


def outputs_of_this_process() -> tuple[int, ...]:
    """Copy the descriptors of stdout and stderr.  Rich replaces descriptor 1 when it finds its pipe closed."""
    found = list[int]()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # it may be closed from the start
            found.append(os.dup(descriptor))
    return tuple(found)


def reader_left(outputs: tuple[int, ...]) -> bool:
    """Flush the output and return whether one of these descriptors is a pipe without a reader.

    If so, all further output is discarded, so that the interpreter does not fail on it at exit.
    """
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    poll = select.poll()
    for descriptor in outputs:
        poll.register(descriptor, 0)  # errors are always reported
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    return True
