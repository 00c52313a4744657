"""What several endpoints need: a reading transaction, page parameters, and answers that need not be sent twice."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeVar

from fastapi import Depends, Path, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session

from service.database import reading

LARGEST_KEY = 2**63 - 1
Item = TypeVar("Item")


def _reading() -> Iterator[Session]:
    with reading() as session:
        yield session


Reading = Annotated[Session, Depends(_reading, scope="function")]  # over before the response leaves
Key = Annotated[int, Path(ge=1, le=LARGEST_KEY)]
Cursor = Annotated[str | None, Query(max_length=200, description="`next` of the page before.")]
Place = Annotated[int, Query(alias="cursor", ge=0, le=1_000_000, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=200)]


def one_page(found: Sequence[Item], place: int, limit: int) -> tuple[Sequence[Item], str | None]:
    """The page that begins at `place`, and the next cursor; `found` holds one item more than the page ends with."""
    return found[place : place + limit], str(place + limit) if len(found) > place + limit else None


def tagged(request: Request, text: str | bytes, media_type: str) -> Response:
    """The text with its ETag, or 304 for a reader who has it already."""
    body = text.encode() if isinstance(text, str) else text
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    known = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
    if known & {tag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def tagged_json(request: Request, value: BaseModel) -> Response:
    return tagged(request, value.model_dump_json(), "application/json")
