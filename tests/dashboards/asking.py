"""Requests to the app over HTTP, in this process, and its pages as text."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import httpx

from service.app import create_app

Get = Callable[..., httpx.Response]


def asking() -> Get:
    """Asks an app of its own for an address; GET unless `method` says otherwise."""
    app = create_app()

    def ask(path: str, **rest: Any) -> httpx.Response:
        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(rest.pop("method", "GET"), path, **rest)

        return asyncio.run(once())

    return ask


def words(page: httpx.Response) -> str:
    """The text of a page on one line."""
    main = page.text[page.text.index("<main") : page.text.index("</main>")]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", main))
