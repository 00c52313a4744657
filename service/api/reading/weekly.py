"""The weekly report, as a document and as Markdown."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.orm import Session

from kernelwatch.documents.weekly import WeeklyDocument
from service.api.access import Reading, ReadingRoute
from service.api.common import CACHED, DeviceName, TargetName, tagged, tagged_json
from service.api.runs import MarkdownResponse
from service.db.engine import clock
from service.domain.weekly.weeks import Week
from service.ledger.reading import weekly
from service.ledger.targets import target_named
from service.reports.weekly.report import compose, markdown
from service.settings import settings

router = APIRouter(route_class=ReadingRoute, prefix="/weekly", tags=["weekly"])

WeekName = Annotated[
    str | None,
    Query(pattern="^[0-9]{4}-W[0-9]{2}$", description="An ISO week, as in 2026-W47; the current one by default."),
]


def report(session: Session, week: str | None, target: str | None, device: str | None) -> WeeklyDocument:
    """The report of a week.  Raises BadInput and NotFound."""
    wanted = Week.parse(week) if week is not None else Week.at(clock(session))
    of = target_named(session, target) if target is not None else None
    return compose(weekly.facts(session, wanted, of, device))


@router.get("", response_model=WeeklyDocument, responses=CACHED)
def get_weekly_report(
    request: Request, session: Reading, week: WeekName = None, target: TargetName = None, device: DeviceName = None
) -> Response:
    """Get what moved in a week, by time at stake, and which regressions and gaps to SOTA were opened and closed."""
    return tagged_json(request, report(session, week, target, device))


@router.get("/markdown", response_class=MarkdownResponse, responses=CACHED)
def get_weekly_markdown(
    request: Request, session: Reading, week: WeekName = None, target: TargetName = None, device: DeviceName = None
) -> Response:
    """Get the same as Markdown."""
    found = report(session, week, target, device)
    return tagged(request, markdown(found, settings().address), "text/markdown; charset=utf-8")
