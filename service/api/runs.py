"""Runs, the queue and the workers."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse

from service.api.common import Key, Limit, Place, Reading, ReadingRoute, tagged, tagged_json
from service.db.engine import clock
from service.domain.text import printable
from service.ledger import queries
from service.ledger.runs import build_logs
from service.reports import markdown
from service.reports.schema.base import Page, Problem, one_page
from service.reports.schema.runs import RunDocument, RunItem, WorkerItem

router = APIRouter(route_class=ReadingRoute, tags=["runs"], responses={404: {"model": Problem}})
_CACHED: dict[int | str, dict[str, Any]] = {304: {"description": "The version named by If-None-Match is current."}}


@router.get("/runs/{run_id}", response_model=RunDocument, responses=_CACHED)
def get_run(
    request: Request,
    run_id: Key,
    session: Reading,
    tables: Annotated[bool, Query(description="Include the tables of `facts`: megabytes for a large suite.")] = False,
) -> Response:
    """Get one run with its verdicts and measurements.  Send If-None-Match to poll it."""
    return tagged_json(request, queries.run_document(session, run_id, tables=tables))


@router.get("/runs/{run_id}/comment", response_class=PlainTextResponse, responses=_CACHED)
def get_comment(request: Request, run_id: Key, session: Reading) -> Response:
    """Get the result of a run as Markdown, as a pull request shows it."""
    return tagged(request, markdown.comment(queries.found_in(session, run_id)), "text/markdown; charset=utf-8")


@router.get("/runs/{run_id}/log", response_class=PlainTextResponse, responses=_CACHED)
def get_log(request: Request, run_id: Key, session: Reading) -> Response:
    """Get the whole build log of the run's revision."""
    return tagged(request, printable(build_logs.text_of(session, run_id)), "text/plain; charset=utf-8")


@router.get("/workers", response_model=Page[WorkerItem], tags=["workers"])
def list_workers(session: Reading) -> Page[WorkerItem]:
    """List all workers ever seen; `online` is true for those seen in the last minute."""
    now = clock(session)
    return Page(
        items=[
            WorkerItem.of(row, online=now - row.seen_at <= queries.WORKER_GONE_S) for row in queries.workers(session)
        ]
    )


@router.get("/queue", response_model=Page[RunItem], tags=["workers"])
def list_queue(session: Reading, cursor: Place = 0, limit: Limit = 200) -> Page[RunItem]:
    """List runs in progress, then waiting runs in the order in which they will be taken."""
    found, following = one_page(queries.queue(session, cursor + limit + 1), cursor, limit)
    return Page(items=[RunItem.of(run) for run in found], next=following)
