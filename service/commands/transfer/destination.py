"""Where a command writes what it exports: stdout, or a file that is replaced when the new one is complete."""

import codecs
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from service.domain.text import printable
from service.errors import BadInput


@contextmanager
def destination(output: Path | None) -> Iterator[Callable[[bytes], object]]:
    """What writes to stdout, or to a file that replaces `output` when it is complete."""
    if output is None:
        yield _terminal_writer() if sys.stdout.isatty() else sys.stdout.buffer.write
        sys.stdout.flush()
        return
    from kernelwatch.client.exchange import WholeFile

    if output.is_dir():
        raise BadInput(f"{output} is a folder; name a file in it.")
    try:
        with WholeFile(output) as file:
            yield file.write
    except OSError as error:
        raise BadInput(f"{output} cannot be written: {error.strerror}.") from None


def _terminal_writer() -> Callable[[bytes], object]:
    """What shows text from elsewhere on a terminal, which it can neither colour nor control."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return lambda part: sys.stdout.write(printable(decoder.decode(part)))


def utc(at: datetime | None) -> datetime | None:
    """A time of an option, which is in UTC unless it says otherwise."""
    return None if at is None else at.replace(tzinfo=at.tzinfo or UTC)
