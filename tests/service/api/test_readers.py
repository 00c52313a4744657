"""Many readers at once: connections and threads do not deadlock, and webhooks and health checks answer."""

import asyncio
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
import httpx
import pytest
from sqlalchemy import event

from service.api.common import in_thread_of
from service.app import create_app
from service.db.engine import engine, reading
from service.db.models import Delivery
from service.forge.forge import signature
from service.settings import settings
from tests.dashboards.conftest import reachable

SECRET = "It's a Secret to Everybody"
API, PAGE = "/api/v1/targets", "/"
PING = json.dumps({"zen": "Practicality beats purity."}).encode()


@asynccontextmanager
async def client(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as opened:
        yield opened


@asynccontextmanager
async def all_threads_taken() -> AsyncIterator[None]:
    """No endpoint finds a thread to run in."""
    limiter, holders = anyio.to_thread.current_default_thread_limiter(), [object() for _ in range(4)]
    limiter.total_tokens = len(holders)
    for holder in holders:
        limiter.acquire_on_behalf_of_nowait(holder)
    try:
        yield
    finally:
        for holder in holders:
            limiter.release_on_behalf_of(holder)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def ping(to: httpx.AsyncClient) -> Awaitable[httpx.Response]:
    headers = {
        "x-github-event": "ping",
        "x-github-delivery": uuid.uuid4().hex,
        "x-hub-signature-256": signature(PING, SECRET),
    }
    return to.post("/webhooks/github", content=PING, headers=headers)


@pytest.fixture
def capped(either: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most requests that are served at once."""
    monkeypatch.setenv("KERNELWATCH_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("KERNELWATCH_REQUESTS_LIMIT", "3")
    settings.cache_clear()
    return 3


def test_no_request_holds_a_connection_while_it_waits_for_a_thread(either: str) -> None:
    held = Counter[str]()

    def taken(*_: object) -> None:
        held["now"] += 1
        held["most"] = max(held["most"], held["now"])

    event.listen(engine(), "checkout", taken)
    event.listen(engine(), "checkin", lambda *_: held.subtract(["now"]))

    async def ten_readers() -> list[int]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        async with client(create_app()) as readers:
            answers = await asyncio.gather(*(readers.get(path) for path in (API, PAGE) * 5))
        return [answer.status_code for answer in answers]

    assert asyncio.run(ten_readers()) == [200] * 10
    assert (held["most"], held["now"]) == (1, 0)


def test_a_hundred_readers_are_served_or_refused(either: str) -> None:
    """At once, by a real server with the pool and the threads that it has by default."""

    async def readers(address: str) -> Counter[int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=address, limits=limits, timeout=20) as opened:
            answers = await asyncio.gather(*(opened.get((API, PAGE)[n % 2]) for n in range(100)))
            answers += [await opened.get(path) for path in ("/healthz", API, PAGE)]
        return Counter(answer.status_code for answer in answers)

    with reachable() as address:
        answered = asyncio.run(readers(address))
    assert set(answered) <= {200, 503}
    assert answered[200] >= settings().requests_limit


def test_over_the_cap_a_reader_is_asked_to_come_back(capped: int) -> None:
    async def story() -> None:
        async with client(create_app()) as readers:
            async with all_threads_taken():
                limiter = anyio.to_thread.current_default_thread_limiter()
                waiting = [asyncio.create_task(readers.get(API)) for _ in range(capped)]
                await until(lambda: limiter.statistics().tasks_waiting == capped)

                refused, page = await readers.get(API), await readers.get(PAGE)
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert "KERNELWATCH_REQUESTS_LIMIT" in refused.json()["detail"]
                assert (page.status_code, page.headers["retry-after"]) == (503, "1")
                assert page.headers["content-type"].startswith("text/html")
                assert "try again" in page.text
                assert page.headers["x-frame-options"] == "DENY"
            assert [(await one).status_code for one in waiting] == [200] * capped
            assert [(await readers.get(path)).status_code for path in (API, PAGE) * capped] == [200] * 2 * capped

    asyncio.run(story())


def test_a_reader_who_does_not_read_takes_no_place(capped: int) -> None:
    """A slow connection keeps its answer waiting for minutes: others are served meanwhile."""
    scope = {"type": "http", "method": "GET", "path": "/healthz", "query_string": b"", "headers": []}

    async def story() -> None:
        app, stuck, unread = create_app(), asyncio.Event(), list[str]()

        async def send(message: Any) -> None:
            unread.append(message["type"])
            await stuck.wait()

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        slow = [asyncio.create_task(app({**scope, "path": API}, receive, send)) for _ in range(capped)]
        await until(lambda: len(unread) == capped)
        async with client(app) as readers:
            assert (await readers.get(API)).status_code == 200
        stuck.set()
        await asyncio.gather(*slow)

    asyncio.run(story())


def test_webhooks_and_health_answer_when_all_threads_are_taken(capped: int) -> None:
    async def story() -> list[int]:
        async with client(create_app()) as forge, all_threads_taken():
            limiter = anyio.to_thread.current_default_thread_limiter()
            readers = [asyncio.create_task(forge.get(API)) for _ in range(capped)]
            await until(lambda: limiter.statistics().tasks_waiting == capped)
            async with asyncio.timeout(10):
                delivered = [(await ping(forge)).status_code for _ in range(2 * capped)]
                health = [(await forge.get(path)).status_code for path in ("/healthz", "/readyz", "/metrics")]
            for reader in readers:
                reader.cancel()
        return delivered + health

    assert asyncio.run(story()) == [202] * 2 * capped + [200] * 3
    with reading() as session:
        assert session.query(Delivery).count() == 2 * capped


def test_a_cancelled_caller_waits_for_the_function_that_has_started_and_starts_no_other() -> None:
    """The connection of a thread must be back in its pool before the service disconnects from the database."""
    started, events = threading.Event(), list[str]()

    def work(name: str) -> None:
        started.set()
        time.sleep(0.1)
        events.append(name)

    async def story(threads: ThreadPoolExecutor) -> None:
        callers = [asyncio.create_task(in_thread_of(threads, work, name)) for name in ("first", "second")]
        await asyncio.to_thread(started.wait)
        for caller in callers:
            caller.cancel()
        for caller in callers:
            with pytest.raises(asyncio.CancelledError):
                await caller
        assert events == ["first"]

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(story(threads))
    assert events == ["first"]


def test_an_error_of_the_function_is_raised_for_the_caller() -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread_of(threads, divmod, 1, 0))
