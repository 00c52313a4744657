"""The limits of connections over real ones, with short times: the quick form of tests/attacks/test_serving.py."""

import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from service.api.gateway.connections import LimitedProtocol, connections_limit
from service.settings import settings
from tests.fakes.processes import served

PATIENCE_S = 60.0  # after which a connection counts as never closed
PART, PARTS = b"x" * (1 << 16), 256  # together more than the buffers of a connection hold
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with nothing, or with 16 MiB, after the whole body has arrived."""
    if scope["type"] != "http":
        return
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    parts = PARTS if scope["path"] == "/large" else 0
    headers = [(b"content-length", str(parts * len(PART)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(parts):
        await send({"type": "http.response.body", "body": PART, "more_body": True})
    await send({"type": "http.response.body"})


@pytest.fixture
def limits(state: object, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No limit is reached but the one that a test sets."""
    for name in ("HEAD", "BODY", "RESPONSE"):
        monkeypatch.setenv(f"KERNELWATCH_{name}_LIMIT_S", "1000")
    settings.cache_clear()
    return monkeypatch


def connect(address: str) -> socket.socket:
    url = urlsplit(address)
    return socket.create_connection((url.hostname, url.port), timeout=PATIENCE_S)


def rest(connection: socket.socket) -> bytes:
    """What arrives until the server closes the connection.  Raises TimeoutError if it never does."""
    found = bytearray()
    try:
        while part := connection.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return bytes(found)


@pytest.mark.parametrize(
    ("limit", "sent"),
    [
        pytest.param("HEAD", POST, id="half a head"),
        pytest.param("HEAD", b"", id="nothing"),
        pytest.param("HEAD", POST + b"Content-Length: 0\r\n\r\nGET / HTTP/1.1\r\n", id="half a second head"),
        pytest.param("BODY", POST + b"Content-Length: 1000\r\n\r\nhalf", id="half a body"),
    ],
)
def test_a_connection_whose_client_is_too_slow_is_closed(limits: pytest.MonkeyPatch, limit: str, sent: bytes) -> None:
    limits.setenv(f"KERNELWATCH_{limit}_LIMIT_S", "0.2")
    settings.cache_clear()
    with served(app, http=LimitedProtocol) as address, connect(address) as connection:
        connection.sendall(sent)
        answered = rest(connection)
    assert (b" 408 " in answered) is bool(sent)


def test_a_connection_whose_client_does_not_read_is_closed(limits: pytest.MonkeyPatch) -> None:
    limits.setenv("KERNELWATCH_RESPONSE_LIMIT_S", "0.2")
    settings.cache_clear()
    closed = threading.Event()

    class Noting(LimitedProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            closed.set()

    with served(app, http=Noting) as address, connect(address) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert closed.wait(PATIENCE_S)


def test_a_new_connection_takes_the_place_of_the_one_that_waited_longest(limits: pytest.MonkeyPatch) -> None:
    with served(app, http=LimitedProtocol, limit_concurrency=6) as address, ExitStack() as opened:
        held = []
        for _ in range(12):
            held.append(opened.enter_context(connect(address)))
            held[-1].sendall(POST)
            assert httpx.get(address, timeout=PATIENCE_S).status_code == 200
        for one in held[:6]:
            assert rest(one) == b""
        held[-1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            held[-1].recv(1)


@pytest.fixture
def files() -> Iterator[int]:
    """How many files this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
    yield 600
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_take_at_most_half_of_the_files(limits: pytest.MonkeyPatch, files: int) -> None:
    assert settings().connections_limit == 512
    assert connections_limit() == files // 2
    limits.setenv("KERNELWATCH_CONNECTIONS_LIMIT", "100")
    settings.cache_clear()
    assert connections_limit() == 100
