"""Runs, their reports, and who works on them."""

from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse

from service.api.common import Key, Limit, Place, Reading, ReadingRoute, one_page, tagged, tagged_json
from service.api.schemas import Page, Problem, RunOut, RunWhole, WorkerOut
from service.db.engine import clock
from service.domain.text import printable
from service.errors import BadInput
from service.ledger import queries
from service.ledger.runs import build_logs
from service.reports import markdown, schema

router = APIRouter(route_class=ReadingRoute, tags=["runs"], responses={404: {"model": Problem}})
_EXPANDABLE = frozenset({"measurements", "verdicts"})
_CACHED: dict[int | str, dict[str, Any]] = {304: {"description": "What If-None-Match names is still right."}}


class Form(StrEnum):
    JSON = "json"
    MD = "md"


@router.get("/runs/{run_id}", response_model=RunWhole, responses=_CACHED)
def get_run(
    request: Request,
    run_id: Key,
    session: Reading,
    expand: Annotated[str, Query(max_length=100, description="`measurements`, `verdicts`, or both with a comma.")] = "",
) -> Response:
    """One run.  Ask again with If-None-Match while it is being measured."""
    wanted = frozenset(part.strip() for part in expand.split(",") if part.strip())
    if unknown := wanted - _EXPANDABLE:
        raise BadInput(f"expand: {', '.join(sorted(unknown))} is unknown; known: {', '.join(sorted(_EXPANDABLE))}.")
    return tagged_json(request, RunWhole.whole(queries.whole_run(session, run_id), wanted))


@router.get("/runs/{run_id}/report", response_model=dict[str, Any], responses=_CACHED)
def get_report(request: Request, run_id: Key, session: Reading, format: Form = Form.JSON) -> Response:
    """What the run found: as JSON, or as the comment that a pull request receives."""
    found = queries.found_in(session, run_id)
    if format is Form.MD:
        return tagged(request, markdown.comment(found), "text/markdown; charset=utf-8")
    return tagged(request, schema.document(found), "application/json")


@router.get("/runs/{run_id}/log", response_class=PlainTextResponse, responses=_CACHED)
def get_log(request: Request, run_id: Key, session: Reading) -> Response:
    """Everything that the build of the run's revision printed, also where it went well."""
    return tagged(request, printable(build_logs.text_of(session, run_id)), "text/plain; charset=utf-8")


@router.get("/workers", response_model=Page[WorkerOut], tags=["workers"])
def list_workers(session: Reading) -> Page[WorkerOut]:
    """Every worker ever seen; `here` says whether it still answers."""
    now = clock(session)
    rows = [(row, now - row.seen_at <= queries.WORKER_GONE_S) for row in queries.workers(session)]
    return Page(items=[WorkerOut.model_validate({**_known(row), "here": here}) for row, here in rows])


@router.get("/queue", response_model=Page[RunOut], tags=["workers"])
def list_queue(session: Reading, cursor: Place = 0, limit: Limit = 200) -> Page[RunOut]:
    """What is being measured, then what waits, in the order in which it will be taken."""
    found, following = one_page(queries.queue(session, cursor + limit + 1), cursor, limit)
    return Page(items=[RunOut.of(run) for run in found], next=following)


def _known(row: object) -> dict[str, Any]:
    return {name: getattr(row, name) for name in WorkerOut.model_fields if name != "here"}
