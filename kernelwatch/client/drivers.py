"""The two ways to send and to wait: blocking, and asynchronous.  Everything else is described once, for both."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx

from kernelwatch.client.exchange import Emit, NextPart, Stream, WholeFile
from kernelwatch.documents.base import Page

from .calls import Item, Listing
from .exchange import Answer, Exchange, Flow, Lost, Reply, Send, Sleep

T = TypeVar("T")
ITEMS = 100  # of a page, when a whole list is read


class Blocking:
    """Runs flows and streams with an httpx.Client."""

    def __init__(self, http: httpx.Client, exchange: Exchange) -> None:
        self.http, self.exchange = http, exchange

    def run(self, flow: Flow[T]) -> T:
        """Do what the flow yields until it returns."""
        reply: Reply = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as done:
                result: T = done.value
                return result
            reply = self._do(step)

    def emit(self, stream: Stream[T]) -> Generator[T]:
        """Do what the stream yields, and pass on its items."""
        reply: Reply | bytes = None
        body = _Body(self.http)
        try:
            while True:
                try:
                    step = stream.send(reply)
                except StopIteration:
                    return
                reply = None
                match step:
                    case Emit(item):
                        yield item
                    case NextPart():
                        reply = body.part()
                    case Send(in_parts=True):
                        reply = body.open(step)
                    case _:
                        reply = self._do(step)
        finally:
            body.close()

    def _do(self, step: Send | Sleep) -> Reply:
        if isinstance(step, Sleep):
            time.sleep(step.seconds)
            return None
        try:
            response = self.http.send(_request(self.http, step))
        except httpx.TransportError as error:
            return _lost(self.http, error)
        return _answer(response, response.content)

    def save(self, stream: Stream[bytes], path: Path) -> int:
        """Write what the stream yields to a file.  Returns its bytes."""
        with WholeFile(path) as file, closing(self.emit(stream)) as parts:
            for part in parts:
                file.write(part)
        return file.written

    def list(self, listing: Listing[Item]) -> "Pages[Item]":
        return Pages(self, listing)


class _Body:
    """The body of an answer, read in parts."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._parts: Iterator[bytes] = iter(())

    def open(self, step: Send) -> Reply:
        """Send the request.  The body of an error is read at once."""
        self.close()
        try:
            self._response = self._http.send(_request(self._http, step), stream=True)
            body = b"" if self._response.is_success else self._response.read()
        except httpx.TransportError as error:
            return _lost(self._http, error)
        self._parts = self._response.iter_bytes()
        return _answer(self._response, body)

    def part(self) -> bytes | Lost:
        try:
            return next(self._parts, b"")
        except httpx.TransportError as error:
            return _lost(self._http, error)

    def close(self) -> None:
        if self._response is not None:
            self._response.close()


class Asynchronous:
    """Runs flows and streams with an httpx.AsyncClient."""

    def __init__(self, http: httpx.AsyncClient, exchange: Exchange) -> None:
        self.http, self.exchange = http, exchange

    async def run(self, flow: Flow[T]) -> T:
        """Do what the flow yields until it returns."""
        reply: Reply = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as done:
                result: T = done.value
                return result
            reply = await self._do(step)

    async def emit(self, stream: Stream[T]) -> AsyncGenerator[T]:
        """Do what the stream yields, and pass on its items."""
        reply: Reply | bytes = None
        body = _AsyncBody(self.http)
        try:
            while True:
                try:
                    step = stream.send(reply)
                except StopIteration:
                    return
                reply = None
                match step:
                    case Emit(item):
                        yield item
                    case NextPart():
                        reply = await body.part()
                    case Send(in_parts=True):
                        reply = await body.open(step)
                    case _:
                        reply = await self._do(step)
        finally:
            await body.close()

    async def _do(self, step: Send | Sleep) -> Reply:
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
            return None
        try:
            response = await self.http.send(_request(self.http, step))
        except httpx.TransportError as error:
            return _lost(self.http, error)
        return _answer(response, response.content)

    async def save(self, stream: Stream[bytes], path: Path) -> int:
        """Write what the stream yields to a file.  Returns its bytes."""
        with WholeFile(path) as file:
            async with aclosing(self.emit(stream)) as parts:
                async for part in parts:
                    file.write(part)
        return file.written

    def list(self, listing: Listing[Item]) -> "AsyncPages[Item]":
        return AsyncPages(self, listing)


class _AsyncBody:
    """The body of an answer, read in parts."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._parts: AsyncIterator[bytes] | None = None

    async def open(self, step: Send) -> Reply:
        """Send the request.  The body of an error is read at once."""
        await self.close()
        try:
            self._response = await self._http.send(_request(self._http, step), stream=True)
            body = b"" if self._response.is_success else await self._response.aread()
        except httpx.TransportError as error:
            return _lost(self._http, error)
        self._parts = self._response.aiter_bytes()
        return _answer(self._response, body)

    async def part(self) -> bytes | Lost:
        try:
            return await anext(self._parts, b"") if self._parts is not None else b""
        except httpx.TransportError as error:
            return _lost(self._http, error)

    async def close(self) -> None:
        if self._response is not None:
            await self._response.aclose()


class Pages(Generic[Item]):
    """A list of the server.  Iterate over its items; further pages are fetched when they are needed."""

    def __init__(self, driver: Blocking, listing: Listing[Item]) -> None:
        self._driver, self._listing = driver, listing

    def __iter__(self) -> Iterator[Item]:
        for page in self.pages():
            yield from page.items

    def pages(self, limit: int = ITEMS) -> Iterator[Page[Item]]:
        """All pages, of at most `limit` items each."""
        page = self.page(limit=limit)
        yield page
        while page.next is not None:
            page = self.page(page.next, limit)
            yield page

    def page(self, cursor: str | None = None, limit: int | None = None) -> Page[Item]:
        """One page: the first, or the one whose cursor the previous one has as `next`."""
        return self._driver.run(self._driver.exchange.result(_at(self._listing, cursor, limit)))


class AsyncPages(Generic[Item]):
    """A list of the server, for `async for`; further pages are fetched when they are needed."""

    def __init__(self, driver: Asynchronous, listing: Listing[Item]) -> None:
        self._driver, self._listing = driver, listing

    async def __aiter__(self) -> AsyncIterator[Item]:
        async for page in self.pages():
            for item in page.items:
                yield item

    async def pages(self, limit: int = ITEMS) -> AsyncIterator[Page[Item]]:
        """All pages, of at most `limit` items each."""
        page = await self.page(limit=limit)
        yield page
        while page.next is not None:
            page = await self.page(page.next, limit)
            yield page

    async def page(self, cursor: str | None = None, limit: int | None = None) -> Page[Item]:
        """One page: the first, or the one whose cursor the previous one has as `next`."""
        return await self._driver.run(self._driver.exchange.result(_at(self._listing, cursor, limit)))


def _at(listing: Listing[Item], cursor: str | None, limit: int | None) -> Any:
    return listing.call.at(cursor, limit) if listing.paged else listing.call


def _request(http: httpx.Client | httpx.AsyncClient, step: Send) -> httpx.Request:
    # httpx appends a path that begins with a slash to its base URL.
    return http.build_request(step.method, step.path, params=step.query, headers=step.headers, content=step.body)


def _answer(response: httpx.Response, body: bytes) -> Answer:
    return Answer(response.status_code, dict(response.headers), body)


def _lost(http: httpx.Client | httpx.AsyncClient, error: httpx.TransportError) -> Lost:
    reason = str(error) or type(error).__name__
    return Lost(f"No answer from {http.base_url.copy_with(path='/')}: {reason}. Check the address, and that it runs.")
