"""Checks of a request's head before anything else reads it: its Host, its length, and HEAD as GET."""

import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.settings import settings

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
