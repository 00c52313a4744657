"""This machine as a server: requests are answered in this process, by the same endpoints, without a network."""

import asyncio
from functools import cache
from typing import Any

import httpx
from sqlalchemy.exc import DBAPIError

from service.api.access import LOCAL
from service.app import create_app
from service.commands.people import this_person
from service.domain.access import Actor, local
from service.errors import ServiceError


class InProcess(httpx.BaseTransport):
    """Sends requests to the application as the user of this system, who may do everything.

    An exception of an endpoint is raised as it is.
    """

    def __init__(self, person: str | None) -> None:
        self._actor = local(person if person is not None else this_person())

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request."""
        return asyncio.run(_answer(request, self._actor))


async def _answer(request: httpx.Request, actor: Actor) -> httpx.Response:
    request.headers["accept-encoding"] = "identity"
    request.headers.pop("idempotency-key", None)  # no answer is lost inside a process
    app = _app()

    async def as_actor(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, LOCAL: actor, "client": None}, receive, send)

    answer = await httpx.ASGITransport(as_actor).handle_async_request(request)
    return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())


@cache
def _app() -> Any:
    """The application; errors that a server turns into answers reach the command, which has more to say of them."""
    app = create_app()
    for expected in (ServiceError, DBAPIError):
        del app.exception_handlers[expected]
    return app
