"""Regressions, incidents, change points, bisections and calibration."""

from typing import Annotated

from fastapi import APIRouter, Query

from service.api.common import Cursor, Key, Limit, Place, Reading, ReadingRoute
from service.db.engine import clock
from service.domain.states import PointState, RegressionState
from service.ledger.bisections import bisections
from service.ledger.calibration import quarantines, rates
from service.ledger.changepoints import change_points
from service.ledger.intake.targets import target_named
from service.ledger.regressions import listing
from service.reports.schema.base import Page, Problem, one_page
from service.reports.schema.bisections import BisectionDocument, BisectionItem
from service.reports.schema.calibration import CalibrationDocument, QuarantineItem
from service.reports.schema.regressions import ChangePointItem, IncidentItem, RegressionDocument, RegressionItem

router = APIRouter(route_class=ReadingRoute, responses={404: {"model": Problem}})
DAY_S = 86_400.0
TargetName = Annotated[str | None, Query(description="Only this target.", max_length=80)]


@router.get("/regressions", response_model=Page[RegressionItem], tags=["regressions"])
def list_all_regressions(
    session: Reading,
    state: Annotated[list[RegressionState] | None, Query(description="May be repeated; all by default.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RegressionItem]:
    """List confirmed regressions of all targets, the newest first."""
    page = listing.listed(session, None, state or (), cursor, limit)
    return Page(items=[RegressionItem.of(found) for found in page.items], next=page.next)


@router.get("/regressions/{regression_id}", response_model=RegressionDocument, tags=["regressions"])
def get_regression(regression_id: Key, session: Reading) -> RegressionDocument:
    """Get one regression with its history, its incident and its bisections."""
    return RegressionDocument.whole(listing.one(session, regression_id))


@router.get("/bisections", response_model=Page[BisectionItem], tags=["bisections"])
def list_bisections(
    session: Reading,
    target: TargetName = None,
    running: Annotated[bool, Query(description="Only those that have not ended.")] = False,
    cursor: Place = 0,
    limit: Limit = 50,
) -> Page[BisectionItem]:
    """List bisections, the newest first."""
    of = target_named(session, target) if target else None
    rows = bisections.listed(session, of, open_only=running, most=cursor + limit + 1)
    found, following = one_page(rows, cursor, limit)
    return Page(items=[BisectionItem.of(row, row.target.name) for row in found], next=following)


@router.get("/bisections/{bisection_id}", response_model=BisectionDocument, tags=["bisections"])
def get_bisection(bisection_id: Key, session: Reading) -> BisectionDocument:
    """Get one bisection with its steps; each step is a run."""
    return BisectionDocument.whole(bisections.one(session, bisection_id))


@router.get("/calibration", response_model=CalibrationDocument, tags=["calibration"])
def get_calibration(
    session: Reading,
    target: TargetName = None,
    device: Annotated[str | None, Query(max_length=40)] = None,
    worker: Annotated[str | None, Query(max_length=120)] = None,
    days: Annotated[int, Query(ge=1, le=3650, description="Only comparisons of the last days.")] = 90,
    limit: Annotated[int | None, Query(ge=1, description="At most so many cases; all by default.")] = None,
) -> CalibrationDocument:
    """Get the measured false-alarm rates of equal code, and the quarantined cases."""
    of = target_named(session, target) if target else None
    since = clock(session) - days * DAY_S
    found = rates.rates(session, of, device=device, worker=worker, since=since)
    quarantined = quarantines.listed(session, of, device=device)
    return CalibrationDocument.of(rates.by_metric(found), found[:limit], quarantined)


@router.get("/quarantines", response_model=Page[QuarantineItem], tags=["calibration"])
def list_quarantines(
    session: Reading,
    target: TargetName = None,
    released: Annotated[bool, Query(description="Include released cases.")] = False,
    cursor: Place = 0,
    limit: Limit = 50,
) -> Page[QuarantineItem]:
    """List quarantined cases, the newest first."""
    of = target_named(session, target) if target else None
    found, following = one_page(quarantines.listed(session, of, released=released), cursor, limit)
    return Page(items=[QuarantineItem.of(*one) for one in found], next=following)


@router.get("/targets/{name}/incidents", response_model=Page[IncidentItem], tags=["regressions"])
def list_incidents(
    name: str,
    session: Reading,
    closed: Annotated[bool, Query(description="Include closed incidents.")] = False,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[IncidentItem]:
    """List incidents: regressions with one cause, the newest first."""
    page = listing.incidents(session, target_named(session, name), open_only=not closed, cursor=cursor, limit=limit)
    return Page(items=[IncidentItem.of(one) for one in page.items], next=page.next)


@router.get("/targets/{name}/change-points", response_model=Page[ChangePointItem], tags=["targets"])
def list_change_points(
    name: str,
    session: Reading,
    device: Annotated[str | None, Query(max_length=40)] = None,
    state: PointState | None = None,
    cursor: Place = 0,
    limit: Limit = 50,
) -> Page[ChangePointItem]:
    """List steps in the histories of its cases, those of the newest revisions first."""
    found = change_points.points(session, target_named(session, name), device, state, limit=cursor + limit + 1)
    shown, following = one_page(found, cursor, limit)
    return Page(items=[ChangePointItem.of(one) for one in shown], next=following)
