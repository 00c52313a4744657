"""A body may arrive slowly, over a real connection, but not below the least rate."""

import json
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from urllib.parse import urlsplit

import httpx
import pytest

from service.api.gateway.connections import LimitedProtocol, server_options
from service.app import create_app
from service.settings import settings
from tests import world
from tests.fakes.api import new_key
from tests.fakes.processes import served

LIMIT_S = 2.0
RATE = 20_000  # bytes per second
ROW = {"revision": "1f3a9c2", "provider": "norms", "case": "rmsnorm.fwd.4096x1024.bf16-fp32", "samples": [7.0] * 200}
BATCH = {"batch": {"tool": "a test", "machine": "here", "device": "h200"}}
BODY = b"".join(json.dumps(line).encode() + b"\n" for line in (BATCH, *[ROW] * 90))


@pytest.fixture
def address(state: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an app that is served as `kernelwatch api` serves it, with short limits."""
    monkeypatch.setenv("KERNELWATCH_BODY_LIMIT_S", str(LIMIT_S))
    monkeypatch.setenv("KERNELWATCH_BODY_RATE", str(RATE))
    settings.cache_clear()
    world.target(name="norms")
    with served(create_app(), http=LimitedProtocol) as found:
        yield found


def upload(address: str, parts: Sequence[bytes], pause_s: float) -> tuple[int, float]:
    """Send parts of a batch with pauses until there is a response.  Returns its status, and how long it took."""
    head = (
        "POST /api/v1/targets/norms/ingested HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        f"Authorization: Bearer {new_key('ingest:norms')}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    url = urlsplit(address)
    with socket.create_connection((url.hostname, url.port), timeout=10) as connection:
        began = time.monotonic()
        connection.sendall(head.encode())
        for part in parts:
            connection.sendall(part)
            if select.select([connection], [], [], pause_s)[0]:
                break
        status = connection.makefile("rb").readline().split()[1]
        return int(status), time.monotonic() - began


def test_a_slow_line_takes_longer_than_the_limit_and_sends_all(address: str) -> None:
    step = 9_000
    parts = [BODY[at : at + step] for at in range(0, len(BODY), step)]
    pause_s = 0.3  # 30,000 bytes per second
    status, took_s = upload(address, parts, pause_s)
    assert took_s > LIMIT_S, f"the test sends {len(BODY)} bytes"
    assert status == 201


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(1_000, 10, id="a trickle"),
        pytest.param(60_000, 10, id="a trickle after a quick beginning"),
        pytest.param(1_000, 500, id="a quarter of the rate"),
    ],
)
def test_a_body_below_the_rate_is_refused_at_the_limit(
    address: str, capfd: pytest.CaptureFixture[str], first: int, then: int
) -> None:
    rest = [BODY[at : at + then] for at in range(first, min(len(BODY), first + 60 * then), then)]
    status, _ = upload(address, [BODY[:first], *rest], 0.1)
    assert status == 408
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture
def narrow(state: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an app that serves two requests at once."""
    monkeypatch.setenv("KERNELWATCH_REQUESTS_LIMIT", "2")
    settings.cache_clear()
    world.target(name="norms")
    with served(create_app(), **server_options()) as found:
        yield found


@contextmanager
def stalled(address: str, body: bytes) -> Iterator[socket.socket]:
    """A connection on which a body arrives that does not end."""
    head = (
        "POST /api/v1/targets/norms/ingested HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        f"Authorization: Bearer {new_key('ingest:norms')}\r\nContent-Length: {1 << 20}\r\n\r\n"
    )
    url = urlsplit(address)
    with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        yield connection


def test_bodies_that_do_not_arrive_keep_no_place_from_others(narrow: str) -> None:
    with ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(stalled(narrow, b"{"))
        assert [httpx.get(f"{narrow}{path}").status_code for path in ("/", "/api/v1/targets")] == [200, 200]
        assert httpx.post(f"{narrow}/api/v1/runs", headers={"Authorization": "Bearer kw_wrong"}).status_code == 401


def test_of_too_many_long_bodies_the_oldest_is_refused(narrow: str) -> None:
    with ExitStack() as opened:
        connections = [opened.enter_context(stalled(narrow, bytes(200_000))) for _ in range(3)]
        [answered], _, _ = select.select(connections, [], [], 60)
        answer = HTTPResponse(answered)
        answer.begin()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert b"Too many long bodies arrive at once; send this one again in 1 s." in answer.read()
        assert not select.select([one for one in connections if one is not answered], [], [], 0)[0]
        assert httpx.get(f"{narrow}/api/v1/targets").status_code == 200
