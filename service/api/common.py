"""Shared by endpoints: page parameters and filters of lists, ETags, problems, and reserved threads."""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from fastapi import Depends, Path, Query, Request, Response
from pydantic import BaseModel
from pydantic_core import to_json
from sqlalchemy.orm import Session

from kernels.cases import Metric
from kernelwatch.documents.base import Page
from kernelwatch.documents.regressions import RegressionItem
from kernelwatch.documents.runs import RunItem
from service.db.models import Target
from service.db.paging import MAX_CURSOR, ResultPage
from service.domain.states import Purpose, RegressionState, RunState
from service.ledger.reading import queries, runs
from service.ledger.reading.queries import Glance
from service.ledger.reading.runs import CaseFilter, RunFilter
from service.ledger.regressions import listing
from service.reports.schema.base import Instant
from service.reports.schema.regressions import regression_item
from service.reports.schema.runs import run_item

PRIVATE = "private, no-cache"  # caching of what depends on who reads it, or changes
LARGEST_KEY = 2**63 - 1
Item = TypeVar("Item")
Shown = TypeVar("Shown", bound=BaseModel)
Given = ParamSpec("Given")

Key = Annotated[int, Path(ge=1, le=LARGEST_KEY, description="The id that lists and documents show.")]
Cursor = Annotated[str | None, Query(max_length=MAX_CURSOR, description="`next` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=200, description="The most items of a page.")]


CACHED: dict[int | str, dict[str, Any]] = {304: {"description": "The version named by If-None-Match is current."}}

# What every endpoint may answer besides its document.  With a `model` FastAPI would claim that errors have the media
# type of the document; `create_app` adds the schema.
_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def problems(descriptions: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Describe errors, for the OpenAPI."""
    return {status: {"description": words, "content": _PROBLEM} for status, words in descriptions.items()}


ERRORS = problems(
    {
        400: "The Host of the request is not one of this server, or its body is not JSON.",
        401: "The key is unknown, expired or revoked, or one is needed.",
        403: "The key does not have the scope.",
        404: "Not found.",
        414: "The address is too long.",
        422: "A parameter is not valid.",
        429: "More requests than the rate allows; see Retry-After.",
        431: "The headers are too long.",
        503: "Too many requests are in progress, or the database reports an error.",
    }
)
# What a change may answer as well.
WRITING_ERRORS = problems(
    {
        408: "The request arrived too slowly.",
        409: "The state of the thing does not allow it, or the first request with this Idempotency-Key is in progress.",
        413: "The body is too long.",
        502: "A repository or an index did not answer.",
    }
)


async def in_thread_of(
    threads: ThreadPoolExecutor, function: Callable[Given, Item], *args: Given.args, **kwargs: Given.kwargs
) -> Item:
    """Run a blocking function in one of `threads`, which serve no pages and no API.

    If the caller is cancelled, it still waits for a function that has started: nothing can interrupt that, and it may
    use the database, which must not be closed before.
    """
    job = threads.submit(function, *args, **kwargs)
    try:
        return await asyncio.wrap_future(job)
    except asyncio.CancelledError:
        if job.running():
            with suppress(Exception):
                await asyncio.wrap_future(job)
        raise


def page_of(found: ResultPage[Item], show: Callable[[Item], Shown]) -> Page[Shown]:
    """The document of a page."""
    return Page(items=[show(item) for item in found.items], next=found.next)


def tagged(
    request: Request,
    text: str | bytes,
    media_type: str,
    *,
    caching: str = PRIVATE,
    modified: float | None = None,
    status: int = 200,
) -> Response:
    """Respond with the text and its ETag, or with 304 if the client has it already.

    `modified` is when its content last changed, for clients that keep no ETag.
    """
    body = text.encode() if isinstance(text, str) else text
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": caching, "Vary": "Accept-Encoding"}
    if modified is not None:
        headers["Last-Modified"] = formatdate(int(modified), usegmt=True)
    if status == HTTPStatus.OK and _has_it(request, tag, modified):
        return Response(status_code=304, headers=headers)
    return Response(body, status, media_type=media_type, headers=headers)


def _has_it(request: Request, tag: str, modified: float | None) -> bool:
    """Whether the client has this version; its tags count before its date (RFC 9110, 13.1.3)."""
    tags = request.headers.get("if-none-match")
    if tags is not None:
        return bool({one.strip().removeprefix("W/") for one in tags.split(",")} & {tag, "*"})
    since = request.headers.get("if-modified-since")
    if modified is None or since is None:
        return False
    try:
        return int(modified) <= parsedate_to_datetime(since).timestamp()
    except ValueError:
        return False


def tagged_json(request: Request, value: BaseModel | Mapping[str, Any]) -> Response:
    """The same of a document, or of the values of one."""
    text = value.model_dump_json() if isinstance(value, BaseModel) else to_json(value, inf_nan_mode="null")
    return tagged(request, text, "application/json")


_LARGEST_PULL = 2**31 - 1  # of its column; PostgreSQL compares it with no larger number
Since = Annotated[
    Instant | None, Query(description="Only what began at this time or later, as in 2026-11-21T03:02:00Z.")
]
RegressionStates = Annotated[list[RegressionState] | None, Query(description="May be repeated; all by default.")]
WithEvents = Annotated[list[Literal["events"]] | None, Query(description="`events` adds the history of each.")]
RunStates = Annotated[list[RunState] | None, Query(description="May be repeated; all by default.")]
Purposes = Annotated[Purpose | None, Query(description="Only runs for this purpose; all by default.")]
TargetName = Annotated[str | None, Query(description="Only this target.", max_length=80)]
DeviceName = Annotated[str | None, Query(description="Only this device.", max_length=40)]
RevisionName = Annotated[str | None, Query(max_length=100, description="A sha or its beginning, or a version.")]
PullNumber = Annotated[int | None, Query(ge=1, le=_LARGEST_PULL, description="Only this pull request.")]
Tables = Annotated[bool, Query(description="Include the tables of `facts`: megabytes for a large suite.")]
Expanded = Annotated[
    list[Literal["counts"]] | None, Query(description="`counts` adds the number of cases by outcome to each run.")
]


def seconds(since: datetime | None) -> float | None:
    """As it is stored.  Documents round to a microsecond: a time from one of them includes what it is the time of."""
    return since.timestamp() - 1e-6 if since else None


async def _cases(
    provider: Annotated[str | None, Query(max_length=80, description="For example norms or quack.")] = None,
    op: Annotated[str | None, Query(max_length=80, description="For example rmsnorm.")] = None,
    metric: Annotated[Metric | None, Query(description="What was measured of a case; all by default.")] = None,
    case: Annotated[
        str | None, Query(max_length=120, description="A case, or with * and ? several: `rmsnorm.*.bf16*`.")
    ] = None,
) -> CaseFilter:
    return CaseFilter(provider, op, metric, case)


Cases = Annotated[CaseFilter, Depends(_cases)]


def page_of_runs(
    session: Session, which: RunFilter, cursor: str | None, limit: int, expand: Collection[str] | None
) -> Page[RunItem]:
    """Runs that fit, the newest first."""
    found = runs.listed(session, which, cursor, limit)
    if not expand:
        return page_of(found, run_item)
    return Page(items=run_items(queries.glances(session, found.items)), next=found.next)


def run_items(glances: Iterable[Glance]) -> list[RunItem]:
    """Runs with the number of their cases by outcome."""
    return [run_item(one.run, one.counts, one.behind) for one in glances]


def page_of_regressions(
    session: Session,
    target: Target | None,
    states: Collection[RegressionState] | None,
    cursor: str | None,
    limit: int,
    expand: Collection[str] | None,
) -> Page[RegressionItem]:
    """Regressions of a target or of all, the newest first."""
    found = listing.listed(session, target, states or (), cursor, limit)
    events = listing.events(session, [one.row.id for one in found.items]) if expand else {}
    return page_of(found, lambda one: regression_item(one, events.get(one.row.id)))
