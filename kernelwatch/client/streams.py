"""Answers that are read in parts: progress as server-sent events, and downloads.

Like a flow, a stream yields what to do, and in between the items for its reader.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from .calls import Call
from .errors import Unreachable
from .exchange import Exchange, Lost, Reply, Send, Sleep

T = TypeVar("T")


@dataclass(frozen=True)
class NextPart:
    """Read on; the answer is bytes, none at the end, or a `Lost`."""


@dataclass(frozen=True)
class Emit(Generic[T]):
    """An item for the reader; there is no answer."""

    item: T


Stream: TypeAlias = Generator[Send | Sleep | NextPart | Emit[T], Reply | bytes, None]


@dataclass(frozen=True)
class Events(Generic[T]):
    """A call for server-sent events; the last one is known by `is_last`."""

    call: Call[T]
    is_last: Callable[[T], bool]


@dataclass(frozen=True)
class Download:
    """A call for a file."""

    call: Call[bytes]


@dataclass(frozen=True)
class Saved:
    """A call for a file that is written to `path`."""

    call: Call[bytes]
    path: Path


def parts(exchange: Exchange, download: Download) -> Stream[bytes]:
    """The bytes of a file, as they arrive.  A lost connection is an error: nobody knows what is missing."""
    yield from _opened(exchange, download.call)
    while True:
        part = yield NextPart()
        if isinstance(part, Lost):
            raise Unreachable(part.reason)
        if not isinstance(part, bytes) or not part:
            return
        yield Emit(part)


def followed(exchange: Exchange, events: Events[T]) -> Stream[T]:
    """The events until the last one.  A connection that ends before is opened again: servers limit how long they last.

    Raises:
        Unreachable: If connection after connection ends without an event.
    """
    failures = 0
    while True:
        yield from _opened(exchange, events.call)
        decoder = EventDecoder()
        part = yield NextPart()
        while isinstance(part, bytes) and part:
            for data in decoder.feed(part):
                failures = 0
                item = events.call.read(data)
                yield Emit(item)
                if events.is_last(item):
                    return
            part = yield NextPart()
        failures += 1
        if failures >= exchange.retries.attempts:
            reason = part.reason if isinstance(part, Lost) else "The server ends the stream without an event."
            raise Unreachable(reason)
        yield Sleep(exchange.retries.wait_s(failures, None))


def _opened(exchange: Exchange, call: Call[T]) -> Generator[Send | Sleep, Reply | bytes, None]:
    """Open the answer to a call; one that is an error is read at once, and raised."""
    flow = exchange.answer(replace(exchange.request(call), in_parts=True))
    step = next(flow)
    while True:
        reply = yield step
        try:
            step = flow.send(None if isinstance(reply, bytes) else reply)
        except StopIteration:
            return


class EventDecoder:
    """Reads the data of server-sent events from parts of a stream, which may end anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> Iterator[bytes]:
        """The data of the events that are complete now."""
        *lines, self._rest = (self._rest + part).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []
