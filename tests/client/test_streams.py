"""Server-sent events and downloads, with a server that sends them in awkward parts and loses connections."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from kernelwatch.client import NotFound, Retries, Unreachable
from kernelwatch.client.calls import Call, get_events
from kernelwatch.client.drivers import Asynchronous, Blocking
from kernelwatch.client.exchange import Download, EventDecoder, Events, Exchange
from kernelwatch.client.resources import Async, Mode, Resource, Sync, download, events

EXCHANGE = Exchange(retries=Retries(attempts=3, first_wait_s=0.001))


class Stage(BaseModel):
    state: str


class Things(Resource[Mode]):
    @events
    def follow(self, number: int) -> Events[Stage]:
        return Events(get_events("/things/{number}/events", Stage, number=number), lambda one: one.state == "done")

    @download
    def export(self) -> Download:
        return Download(Call("GET", "/export", bytes, accept="text/csv"))


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Parts of a body; an exception breaks the connection."""

    def __init__(self, *parts: bytes | Exception) -> None:
        self.parts = parts
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            yield part

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


CUT = httpx.ReadError("the cable was cut")


def read(method: str, *answers: httpx.Response, blocking: bool) -> list[Any]:
    """What the method yields if the server answers so."""
    script = iter(answers)
    transport = httpx.MockTransport(lambda _: next(script))
    if blocking:
        things = Things[Sync](Blocking(httpx.Client(base_url="http://a", transport=transport), EXCHANGE))
        return list(things.follow(7) if method == "follow" else things.export())

    async def asked() -> list[Any]:
        async with httpx.AsyncClient(base_url="http://a", transport=transport) as http:
            others = Things[Async](Asynchronous(http, EXCHANGE))
            return [one async for one in (others.follow(7) if method == "follow" else others.export())]

    return asyncio.run(asked())


both = pytest.mark.parametrize("blocking", [True, False], ids=["Client", "AsyncClient"])


def sent(*parts: bytes | Exception) -> httpx.Response:
    return httpx.Response(200, stream=Body(*parts), headers={"content-type": "text/event-stream"})


def event(state: str) -> bytes:
    return b'data: {"state": "%s"}\n\n' % state.encode()


@both
def test_events_end_with_the_last_one(blocking: bool) -> None:
    body = sent(event("queued"), event("leased")[:9], event("leased")[9:] + event("done") + event("never read"))
    assert [one.state for one in read("follow", body, blocking=blocking)] == ["queued", "leased", "done"]
    assert body.is_closed


@both
def test_a_stream_that_ends_too_early_is_opened_again(blocking: bool) -> None:
    answers = [sent(event("queued"), CUT), sent(event("leased")), httpx.Response(503), sent(event("done"))]
    assert [one.state for one in read("follow", *answers, blocking=blocking)] == ["queued", "leased", "done"]


@both
def test_a_stream_without_events_is_not_opened_for_ever(blocking: bool) -> None:
    with pytest.raises(Unreachable, match="ends the stream without an event"):
        read("follow", *(sent() for _ in range(3)), blocking=blocking)
    with pytest.raises(Unreachable, match="the cable was cut"):
        read("follow", *(sent(CUT) for _ in range(3)), blocking=blocking)


@both
def test_an_error_instead_of_a_stream_is_raised(blocking: bool) -> None:
    with pytest.raises(NotFound, match=r"^No run 7\.$"):
        read("follow", httpx.Response(404, json={"detail": "No run 7."}), blocking=blocking)


@both
def test_a_download_that_breaks_off_is_an_error(blocking: bool) -> None:
    assert read("export", sent(b"a,b\n", b"1,2\n"), blocking=blocking) == [b"a,b\n", b"1,2\n"]
    with pytest.raises(Unreachable, match="the cable was cut"):
        read("export", sent(b"a,b\n", CUT), blocking=blocking)


@pytest.mark.parametrize(
    ("parts", "data"),
    [
        ([b"data: a\n\n"], [b"a"]),
        ([b"data: a\r\n\r\ndata: b\r\n", b"\r\n"], [b"a", b"b"]),
        ([b": ping\n\n", b"event: x\nid: 4\nretry: 10\ndata:a\n\n"], [b"a"]),
        ([b"data: a\ndata: b\n\n"], [b"a\nb"]),
        ([b"da", b"ta: \xc3", b"\xa9\n", b"\n"], [b"\xc3\xa9"]),
        ([b"data: a\r", b"\n\r", b"\n"], [b"a"]),
        ([b"data: a\n"], []),
    ],
)
def test_events_are_read_from_any_parts(parts: list[bytes], data: list[bytes]) -> None:
    decoder = EventDecoder()
    assert [one for part in parts for one in decoder.feed(part)] == data
