"""The progress of runs as a stream of events, over real connections."""

import asyncio
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from sqlalchemy import event, update

from service.api import progress
from service.api.gateway.connections import LimitedProtocol
from service.app import create_app
from service.db.engine import engine, transaction
from service.db.models import Run, Target
from service.domain.access import local
from service.domain.states import RunState
from service.ledger.access import keys
from service.ledger.acting import as_actor
from service.ledger.runs import queue
from service.settings import settings
from tests import world
from tests.fakes.api import new_key

STREAMS = 3


@pytest.fixture
def response_limit_s() -> int:
    return 30


@pytest.fixture
def address(state: object, response_limit_s: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an app that is served as `kernelwatch api` serves it, with seconds for minutes."""
    for name, seconds in {"POLL_S": 0.05, "HEARTBEAT_S": 0.3, "RECHECK_S": 0.1}.items():
        monkeypatch.setattr(progress, name, seconds)
    limits = {"STREAMS_LIMIT": STREAMS, "REQUESTS_LIMIT": 2, "RESPONSE_LIMIT_S": response_limit_s}
    for name, limit in limits.items():
        monkeypatch.setenv(f"KERNELWATCH_{name}", str(limit))
    settings.cache_clear()
    server = uvicorn.Server(
        uvicorn.Config(create_app(), host="127.0.0.1", port=0, http=LimitedProtocol, log_level="error")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/api/v1"
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def run_id(address: str) -> int:
    """A queued run."""
    target = world.target()
    with transaction() as session:
        return world.run(session, world.commit(session, target.id, 1)).id


class Stream:
    """The events of a run, as one client receives them."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> dict[str, Any] | None:
        """The next event; None after the last."""
        async with asyncio.timeout(60):
            async for line in self._lines:
                if line.startswith("data: "):
                    found: dict[str, Any] = json.loads(line.removeprefix("data: "))
                    return found
        return None

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while (found := await self.next()) is not None:
            if wanted(found):
                return found
        raise AssertionError("the stream has ended")


@asynccontextmanager
async def following(address: str, run_id: int, key: str | None = None) -> AsyncIterator[Stream]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("GET", f"{address}/runs/{run_id}/events", headers=headers, timeout=60) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response)


async def opened(stack: AsyncExitStack, address: str, run_id: int) -> Stream:
    """A stream that has sent its first event.  It ends when nobody holds it any more."""
    stream = await stack.enter_async_context(following(address, run_id))
    await stream.next()
    return stream


def test_a_run_is_followed_to_its_end(address: str, run_id: int) -> None:
    async def story() -> list[tuple[str, str | None, int | None]]:
        seen = list[dict[str, Any]]()
        async with following(address, run_id) as stream:
            seen.append(await stream.until(lambda found: found["state"] == "queued"))
            with transaction() as session:
                lease = queue.next_run(session, "cpu", "box", 60.0)
            assert lease is not None
            seen.append(await stream.until(lambda found: found["state"] == "leased"))
            with transaction() as session:
                queue.renew(session, lease, 60.0, "trial 2 of 5")
            seen.append(await stream.until(lambda found: found["stage"] == "trial 2 of 5"))
            with transaction() as session:
                queue.end(session, lease, RunState.DONE)
            seen.append(await stream.until(lambda found: found["state"] == "done"))
            assert await stream.next() is None
        return [(one["state"], one["stage"], one["position"]) for one in seen]

    assert asyncio.run(story()) == [
        ("queued", None, 1),
        ("leased", "starting", 0),
        ("leased", "trial 2 of 5", 0),
        ("done", None, None),
    ]


@pytest.mark.parametrize("response_limit_s", [3])
def test_the_time_limit_of_responses_does_not_cut_it(address: str, run_id: int) -> None:
    """Nothing happens, and what is known is sent again and again."""

    async def story() -> list[float]:
        begun, at = time.monotonic(), list[float]()
        async with following(address, run_id) as stream:
            while not at or at[-1] < 1.7 * settings().response_limit_s:
                assert (await stream.next() or {})["state"] == "queued"
                at.append(time.monotonic() - begun)
        return at

    assert len(asyncio.run(story())) >= 6


def test_streams_take_no_place_of_requests_and_have_a_limit_of_their_own(address: str, run_id: int) -> None:
    async def story() -> tuple[set[int], httpx.Response]:
        async with AsyncExitStack() as streams, httpx.AsyncClient(timeout=60) as other:
            _open = [await opened(streams, address, run_id) for _ in range(STREAMS)]
            answers = [await other.get(f"{address}/runs/{run_id}") for _ in range(5)]
            return {one.status_code for one in answers}, await other.get(f"{address}/runs/{run_id}/events")

    served, refused = asyncio.run(story())
    assert served == {200}
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
    assert "KERNELWATCH_STREAMS_LIMIT" in refused.json()["detail"]


def test_all_who_follow_share_one_read_and_no_transaction_is_open_in_between(address: str, run_id: int) -> None:
    reads = Counter[str]()

    async def reads_in_a_second(streams: int) -> int:
        async with AsyncExitStack() as stack:
            _open = [await opened(stack, address, run_id) for _ in range(streams)]
            before = reads["begun"]
            await asyncio.sleep(1.0)
            assert reads["open"] <= 1
            return reads["begun"] - before

    def begun(*_: object) -> None:
        reads.update(("begun", "open"))

    event.listen(engine(), "checkout", begun)
    event.listen(engine(), "checkin", lambda *_: reads.subtract(["open"]))
    alone, together = asyncio.run(reads_in_a_second(1)), asyncio.run(reads_in_a_second(STREAMS))
    assert 0 < together <= 2 * alone


def test_a_client_that_disconnects_leaves_nothing_behind(address: str, run_id: int) -> None:
    reads = Counter[str]()
    threads = {thread.name for thread in threading.enumerate()} | {"progress_0"}

    async def story() -> None:
        for _ in range(2 * STREAMS):  # more than may be open at once
            async with asyncio.timeout(60):
                while True:
                    try:
                        async with following(address, run_id) as stream:
                            await stream.next()
                        break
                    except AssertionError:  # the one before is being closed
                        await asyncio.sleep(0.05)

    asyncio.run(story())
    time.sleep(0.5)
    event.listen(engine(), "checkout", lambda *_: reads.update(["begun"]))
    time.sleep(0.5)
    assert reads["begun"] == 0
    new = {thread.name for thread in threading.enumerate()} - threads
    assert not {name for name in new if "progress" in name}


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """Closed after the server has stopped."""
    with socket.socket() as opened:
        yield opened


def test_the_server_stops_while_a_run_is_followed(connection: socket.socket, address: str, run_id: int) -> None:
    """The fixture waits for it; the client still listens."""
    host = urlsplit(address)
    connection.settimeout(10)
    connection.connect((host.hostname, host.port))
    connection.sendall(f"GET {host.path}/runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    received = b""
    while b"data: " not in received:
        received += connection.recv(4096)


def test_a_run_that_nobody_may_see_is_not_followed(address: str, run_id: int) -> None:
    def status(which: int, **headers: str) -> tuple[int, str]:
        answer = httpx.get(f"{address}/runs/{which}/events", headers=headers, timeout=60)
        return answer.status_code, answer.headers["content-type"]

    problem = "application/problem+json"
    assert status(999) == (404, problem)
    assert status(run_id, authorization="Bearer kw_nonsense") == (401, problem)
    with transaction() as session:
        session.execute(update(Target).values(private=True))
    assert status(run_id) == (404, problem)


@pytest.mark.parametrize("what", ["the key is revoked", "the target becomes private", "the target is removed"])
def test_what_nobody_may_see_any_more_is_not_followed_any_more(address: str, run_id: int, what: str) -> None:
    key = new_key("read" if what == "the key is revoked" else "run:norms")

    async def story() -> dict[str, Any] | None:
        async with following(address, run_id, key if what == "the key is revoked" else None) as stream:
            await stream.next()
            with as_actor(local("root")), transaction() as session:
                if what == "the key is revoked":
                    keys.revoke(session, key[:13])
                elif what == "the target becomes private":
                    session.execute(update(Target).values(private=True))
                else:
                    session.delete(session.get_one(Run, run_id))
            for _ in range(20):
                if (last := await stream.next()) is None:
                    return None
            return last

    assert asyncio.run(story()) is None


def test_the_head_of_a_stream_is_no_stream(address: str, run_id: int) -> None:
    answer = httpx.head(f"{address}/runs/{run_id}/events", timeout=60)
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
