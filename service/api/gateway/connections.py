"""What stands before the API: limits on connections, times and rates, and checks of a request's head.

Uvicorn itself limits only the time between two requests of a connection.
"""

import asyncio
import hashlib
import ipaddress
import math
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import h11
from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.api.gateway.problems import problem
from service.errors import BadInput
from service.settings import settings

# In the state of a request: its response is a stream without a time limit.  True for one of events; for a file, the
# number of its parts that were sent.
STREAMS = "streams"
_LINGER_S = 1.0  # an error is sent for this long, then the connection is cut


def connections_limit() -> int:
    """Return KERNELWATCH_CONNECTIONS_LIMIT, but at most half of the files that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(settings().connections_limit, files // 2) if files > 0 else settings().connections_limit


def server_options() -> dict[str, Any]:
    """Options of uvicorn.  By default it would believe X-Forwarded-For of anybody on this machine."""
    proxies = [str(one) for one in settings().trusted_proxies]
    return {
        "http": LimitedProtocol,
        "ws": "none",
        "limit_concurrency": connections_limit(),
        "proxy_headers": bool(proxies),
        "forwarded_allow_ips": proxies,
    }


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 that closes connections whose client takes too long.

    A connection is in one of three phases: its client sends a head, sends a body, or receives a response.  Each phase
    has a limit, except the response to a client that receives a stream of events, or a file of which it has received
    another part meanwhile.  A body gets more time as it arrives: a slow line can send a long one, but none may fall
    behind the least rate by more than the limit.  When `limit_concurrency` is reached, the connection that has waited
    longest for its client gives its place to the new one, so that half requests cannot keep whole ones out.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        limits = settings()
        self._limits_s = {h11.IDLE: limits.head_limit_s, h11.SEND_BODY: limits.body_limit_s}
        self._response_limit_s = limits.response_limit_s
        self._body_rate = limits.body_rate
        self._phase: object = None
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._parts_seen = 1

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self.limit_concurrency is not None and len(self.connections) + 1 >= self.limit_concurrency:
            self._make_room()
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._watch() and self.conn.their_state is h11.SEND_BODY:
            self._since = min(self.loop.time(), self._since + len(data) / self._body_rate)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def shutdown(self) -> None:
        """The server stops: a stream would otherwise hold it up until the run of somebody has ended."""
        if self._streams():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.transport.close()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with the error that h11 suggests, in the form of the API's errors."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._refuse(status, "The head of the request is too long." if status == 431 else f"{msg} {error}.")

    def _watch(self) -> bool:
        """Restart the timer if the connection has entered another phase.  Returns whether it has."""
        phase = (self.cycle, self.conn.their_state)
        if phase == self._phase:
            return False
        if self._timer is not None:
            self._timer.cancel()
        self._phase, self._since, self._parts_seen = phase, self.loop.time(), 1
        self._restart_timer(self._limit_s())
        return True

    def _limit_s(self) -> float:
        return self._limits_s.get(self.conn.their_state, self._response_limit_s)

    def _restart_timer(self, after_s: float) -> None:
        self._timer = self.loop.call_later(after_s, self._expired)

    def _streams(self) -> bool:
        return (
            self.cycle is not None and not self.cycle.response_complete and bool(self.cycle.scope["state"].get(STREAMS))
        )

    def _reads_on(self) -> bool:
        """Whether the client has received parts of a file since the timer was started: it is slow, but not gone."""
        before, self._parts_seen = self._parts_seen, int(self.cycle.scope["state"][STREAMS])
        return self._parts_seen > before

    def _expired(self) -> None:
        if self._streams() and (not self.transport.get_write_buffer_size() or self._reads_on()):
            self._restart_timer(self._limit_s())
            return
        left_s = self._since + self._limit_s() - self.loop.time()
        if self.conn.their_state is h11.SEND_BODY and left_s > 0:
            self._restart_timer(left_s)
            return
        unfinished = self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]
        if self.conn.their_state in self._limits_s and unfinished:
            self._refuse(408, "The request did not arrive in time.")
        else:
            self.transport.abort()

    def _refuse(self, status: int, detail: str) -> None:
        """Send an error if no response has begun, and close the connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # nothing that the application sends from now on is written
            self.cycle.message_event.set()
        if self.transport.is_closing() or self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = problem(status, detail).model_dump_json().encode()
        headers = {"content-type": "application/problem+json", "content-length": str(len(body)), "connection": "close"}
        for event in (
            h11.Response(status_code=status, headers=list(headers.items())),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _make_room(self) -> None:
        waiting = [one for one in self.connections if isinstance(one, LimitedProtocol) and one._waits_for_client()]
        if waiting:
            oldest = min(waiting, key=lambda one: one._since)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def _waits_for_client(self) -> bool:
        answered = self.cycle is None or self.cycle.response_complete
        return self.conn.their_state in self._limits_s or answered or self.flow.write_paused


MAX_TARGET = 8 << 10  # bytes of path and query
MAX_HEADERS = 16 << 10  # bytes of all names and values
IS_HEAD = "is_head"  # in the state of a request: its response needs no body
_ANY_HOST = ("/healthz", "/readyz")
Refuse = Callable[[str, int, str], Response]


class CheckedHeads:
    """Refuse requests for other hosts (400) and with overlong targets (414) or headers (431); serve HEAD as GET.

    The check of Host stops DNS rebinding: a page of another site whose name resolves to this server would otherwise
    read everything from the browser of somebody who reaches the server.  Rebinding needs a name, so addresses pass.
    """

    def __init__(self, app: ASGIApp, refuse: Refuse) -> None:
        self.app = app
        self.refuse = refuse
        self.names = trusted_names()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif (error := self._error(scope)) is not None:
            await self.refuse(scope["path"], *error)(scope, receive, send)
        elif scope["method"] == "HEAD":
            state = {**scope.get("state", {}), IS_HEAD: True}
            await self.app({**scope, "method": "GET", "state": state}, receive, _without_body(send))
        else:
            await self.app(scope, receive, send)

    def _error(self, scope: Scope) -> tuple[int, str] | None:
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET:
            return 414, f"The address is longer than {MAX_TARGET} bytes."
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
            return 431, f"The headers are longer than {MAX_HEADERS} bytes."
        host = host_name(Headers(scope=scope).get("host", ""))
        if scope["path"] in _ANY_HOST or is_address(host) or host in self.names:
            return None
        return 400, (
            f"This server does not answer for the host {host[:200]!r}. If it should, set KERNELWATCH_PUBLIC_URL to the "
            "URL that people use, or add the name to KERNELWATCH_TRUSTED_HOSTS, and restart the API."
        )


def trusted_names() -> frozenset[str]:
    """Return the names for which the API answers, in addition to IP addresses."""
    public = urlsplit(settings().address).hostname or ""
    return frozenset(name.lower() for name in ("localhost", public, settings().host, *settings().trusted_hosts) if name)


def host_name(header: str) -> str:
    """Return the name or address in a Host header, in lower case and without its port; empty if it is malformed."""
    try:
        return (urlsplit(f"//{header}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _without_body(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_head


TOO_MANY = 429
KEY_IS_VALID = "kernelwatch.key_is_valid"  # in the scope of a request: to be called once its key was seen to be valid


class RateLimited:
    """Refuse requests to the API beyond the rate (429, with Retry-After), and say in each response what is left.

    A process counts by itself.  A key counts as it was sent, so that no request waits for the database.  Until one was
    found to be valid, its requests count for their address as well: keys that somebody makes up give no further rate.
    """

    def __init__(self, app: ASGIApp, *, rate: str, below: str, refuse: Refuse) -> None:
        self.app, self._below, self._refuse = app, below, refuse
        self._limit = _parsed(rate)
        self._counter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._valid_keys = set[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._limit is None or not scope["path"].startswith(self._below):
            await self.app(scope, receive, send)
            return
        address, key = scope["client"][0] if scope.get("client") else "unknown", _hashed_key(scope)
        client = key or address
        allowed = client in self._valid_keys or self._counter.hit(self._limit, address)
        if key is not None:
            allowed = allowed and self._counter.hit(self._limit, key)
            scope[KEY_IS_VALID] = partial(self._valid_keys.add, key)
        headers = self._headers(self._limit, client)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        app = self.app
        if not allowed:
            headers["Retry-After"] = headers["RateLimit-Reset"]
            app = self._refuse(
                scope["path"], TOO_MANY, f"More than {self._limit} requests; try again in {headers['Retry-After']} s."
            )
        await app(scope, receive, send_with_headers)

    def _headers(self, limit: RateLimitItem, client: str) -> dict[str, str]:
        window = self._counter.get_window_stats(limit, client)
        reset_s = max(1, math.ceil(window.reset_time - time.time()))
        return {
            "RateLimit-Policy": f'"default";q={limit.amount};w={limit.get_expiry()}',
            "RateLimit": f'"default";r={window.remaining};t={reset_s}',
            # Names of earlier drafts of the same header.
            "RateLimit-Limit": str(limit.amount),
            "RateLimit-Remaining": str(window.remaining),
            "RateLimit-Reset": str(reset_s),
        }


def _parsed(rate: str) -> RateLimitItem | None:
    """Read `600/minute`; empty for no limit.  Raises BadInput."""
    try:
        return parse(rate) if rate.strip() else None
    except ValueError:
        raise BadInput(f"KERNELWATCH_RATE_LIMIT is {rate!r}; write 600/minute, 10/second, or nothing.") from None


def _hashed_key(scope: Scope) -> str | None:
    """A key is counted by its hash: the storage of counts must not hold it."""
    key = Headers(scope=scope).get("authorization")
    return hashlib.sha256(key.encode()).hexdigest() if key else None
