"""This machine as a server: requests are answered in this process, by the same endpoints, without a network."""

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
from sqlalchemy.exc import DBAPIError

from service.api.access import LOCAL
from service.app import create_api
from service.commands.arguments import this_person
from service.domain.access import Actor, local
from service.errors import ServiceError, Unavailable

_LINES = "application/x-ndjson"


class InProcess(httpx.BaseTransport):
    """Sends requests to the application as the user of this system, who may do everything.

    An exception of an endpoint is raised as it is.
    """

    def __init__(self, person: str | None) -> None:
        self._actor = local(person if person is not None else this_person())

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request."""
        request.headers["accept-encoding"] = "identity"
        if request.headers.get("content-type") != _LINES:
            # No answer is lost inside a process.  The key of measurements names their content, so that a repeated
            # import adds nothing.
            request.headers.pop("idempotency-key", None)
        return _Answer(request, self._actor).response()


class _Answer(httpx.SyncByteStream):
    """A response of the application, which runs only while a part of it is waited for: a long one needs no memory."""

    def __init__(self, request: httpx.Request, actor: Actor) -> None:
        self._request, self._actor = request, actor
        self._runner = asyncio.Runner()
        self._sent = asyncio.Queue[dict[str, Any]](1)

    def response(self) -> httpx.Response:
        """Its head, with this as its body."""
        try:
            head = self._runner.run(self._begin())
        except BaseException:
            self.close()
            raise
        return httpx.Response(head["status"], headers=head["headers"], stream=self)

    def __iter__(self) -> Iterator[bytes]:
        more = True
        while more:
            message = self._runner.run(self._next())
            more = message.get("more_body", False)
            if body := message.get("body"):
                yield body
        self._runner.run(self._finish())

    def close(self) -> None:
        """Cancel what is left."""
        self._runner.close()

    async def _begin(self) -> dict[str, Any]:
        received = asyncio.Queue[dict[str, Any]]()
        received.put_nowait({"type": "http.request", "body": self._request.read(), "more_body": False})
        self._task = asyncio.create_task(_app()(_scope(self._request, self._actor), received.get, self._sent.put))
        return await self._next()

    async def _next(self) -> dict[str, Any]:
        """The next message that the application sends.  Raises what it raises."""
        message = asyncio.create_task(self._sent.get())
        await asyncio.wait((message, self._task), return_when=asyncio.FIRST_COMPLETED)
        if message.done():
            return message.result()
        message.cancel()
        await self._task
        raise Unavailable("The answer broke off; the log says why.")

    async def _finish(self) -> None:
        """Wait for what is done after the response."""
        await self._task


def _scope(request: httpx.Request, actor: Actor) -> dict[str, Any]:
    url = request.url
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": url.scheme,
        "path": url.path,
        "raw_path": url.raw_path.partition(b"?")[0],
        "query_string": url.query,
        "server": (url.host, url.port),
        "client": None,
        "root_path": "",
        LOCAL: actor,
    }


@cache
def _app() -> Any:
    """The application; errors that a server turns into answers reach the command, which has more to say of them."""
    app = create_api()
    for expected in (ServiceError, DBAPIError):
        del app.exception_handlers[expected]
    return app
