"""Shared by endpoints: a reading transaction, page parameters, ETags, and reserved threads."""

import asyncio
import hashlib
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Annotated, Any, ParamSpec, TypeVar

from fastapi import Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from sqlalchemy.orm import Session

from service.db.engine import reading

LARGEST_KEY = 2**63 - 1
Item = TypeVar("Item")
Given = ParamSpec("Given")

Reading = Annotated[Session, "a reading transaction, opened by ReadingRoute"]
Key = Annotated[int, Path(ge=1, le=LARGEST_KEY)]
Cursor = Annotated[str | None, Query(max_length=200, description="`next` of the previous page.")]
Place = Annotated[int, Query(alias="cursor", ge=0, le=1_000_000, description="`next` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=200)]


class ReadingRoute(APIRoute):
    """A route that passes a reading transaction to its endpoint, as the parameter annotated `Reading`.

    The transaction opens and closes in the thread that runs the endpoint.  A dependency with `yield` would open it in
    one thread and close it in another: requests that wait for a thread to close their transaction keep their
    connections from the requests that have a thread, and twenty readers stop the service.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, _with_transaction(endpoint), **options)


def _with_transaction(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(endpoint)
    wanted = [name for name, one in signature.parameters.items() if one.annotation == Reading]
    if not wanted:
        return endpoint
    [name] = wanted

    @wraps(endpoint)
    def run(**given: Any) -> Any:
        with reading() as session:
            return endpoint(**given, **{name: session})

    rest = [one for one in signature.parameters.values() if one.name != name]
    run.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]  # what FastAPI reads
    return run


async def in_thread_of(
    threads: ThreadPoolExecutor, function: Callable[Given, Item], *args: Given.args, **kwargs: Given.kwargs
) -> Item:
    """Run a blocking function in one of `threads`, which serve no pages and no API."""
    return await asyncio.get_running_loop().run_in_executor(threads, lambda: function(*args, **kwargs))


def tagged(request: Request, text: str | bytes, media_type: str) -> Response:
    """Respond with the text and its ETag, or with 304 if the client has it already."""
    body = text.encode() if isinstance(text, str) else text
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    known = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
    if known & {tag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def tagged_json(request: Request, value: BaseModel) -> Response:
    return tagged(request, value.model_dump_json(), "application/json")
