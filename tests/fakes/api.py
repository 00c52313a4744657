"""The API as a program elsewhere uses it: over HTTP, with a key or without."""

import asyncio
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI

from service.app import create_app
from service.db.engine import transaction
from service.domain.access import local, read_grants
from service.ledger.access import keys
from service.ledger.acting import as_actor


@cache
def app_openapi() -> dict[str, Any]:
    """The OpenAPI of the app, to be read: describing it takes a second."""
    return create_app().openapi()


def new_key(*scopes: str, name: str = "CI", **options: Any) -> str:
    """Make a key on the server's machine.  Returns its text."""
    with as_actor(local("root")), transaction() as session:
        return keys.create(session, name, read_grants(scopes), **options)[1]


class Within(httpx.BaseTransport):
    """Sends requests of a `Client` to an app in this process, as a network would."""

    def __init__(self) -> None:
        self._app = httpx.ASGITransport(create_app())

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = {**request.headers, "accept-encoding": "identity"}
        sent = httpx.Request(request.method, request.url, headers=headers, content=request.read())

        async def answer() -> httpx.Response:
            answered = await self._app.handle_async_request(sent)
            return httpx.Response(answered.status_code, headers=answered.headers, content=await answered.aread())

        return asyncio.run(answer())


@dataclass(frozen=True)
class Api:
    """A client of the app in this process."""

    key: str | None = None
    app: FastAPI = field(default_factory=create_app)

    def with_key(self, *scopes: str, name: str = "CI", **options: Any) -> "Api":
        """The same app, used with a new key."""
        return Api(new_key(*scopes, name=name, **options), self.app)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def at(self, path: str) -> httpx.Response:
        """GET a page, or a whole path of the API."""
        return self.request("GET", path, below="")

    def post(self, path: str, document: object = None, **options: Any) -> httpx.Response:
        return self.request("POST", path, json=document if document is not None else {}, **options)

    def request(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        below: str = "/api/v1",
        **options: Any,
    ) -> httpx.Response:
        """Send one request."""
        address = f"{below}{path}"
        sent = {"Authorization": f"Bearer {self.key}"} if self.key else {}

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8712") as client:
                return await client.request(method, address, headers=sent | (headers or {}), **options)

        return asyncio.run(send())
