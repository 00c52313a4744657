"""How many requests a client may send: a window for each key, and for each address without one."""

import hashlib
import math
import time

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.gateway.request_heads import Refuse
from service.errors import BadInput

TOO_MANY = 429


class RateLimited:
    """Refuse requests to the API beyond the rate (429, with Retry-After), and say in each response what is left.

    A process counts by itself.  A key counts as it was sent, valid or not, so that no request waits for the database.
    """

    def __init__(self, app: ASGIApp, *, rate: str, below: str, refuse: Refuse) -> None:
        self.app, self._below, self._refuse = app, below, refuse
        self._limit = _parsed(rate)
        self._counter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._limit is None or not scope["path"].startswith(self._below):
            await self.app(scope, receive, send)
            return
        client = _client(scope)
        allowed = self._counter.hit(self._limit, client)
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
        return {
            "RateLimit-Limit": str(limit.amount),
            "RateLimit-Remaining": str(window.remaining),
            "RateLimit-Reset": str(max(1, math.ceil(window.reset_time - time.time()))),
        }


def _parsed(rate: str) -> RateLimitItem | None:
    """Read `600/minute`; empty for no limit.  Raises BadInput."""
    try:
        return parse(rate) if rate.strip() else None
    except ValueError:
        raise BadInput(f"KERNELWATCH_RATE_LIMIT is {rate!r}; write 600/minute, 10/second, or nothing.") from None


def _client(scope: Scope) -> str:
    """A key is counted by its hash: the storage of counts must not hold it."""
    key = Headers(scope=scope).get("authorization")
    if key:
        return hashlib.sha256(key.encode()).hexdigest()
    return scope["client"][0] if scope.get("client") else "unknown"
