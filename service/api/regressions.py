"""What was decided, and what is being found out: regressions with their lives, bisections, calibration."""

from typing import Annotated

from fastapi import APIRouter, Query

from service.api.common import Cursor, Key, Limit, Place, Reading, ReadingRoute, one_page
from service.api.regression_schemas import (
    BisectionOut,
    BisectionWhole,
    CalibrationOut,
    ChangePointOut,
    IncidentOut,
    QuarantineOut,
    RateOut,
    RegressionWhole,
)
from service.api.schemas import Page, Problem, RegressionOut
from service.db.engine import clock
from service.domain.states import PointState, RegressionState
from service.ledger.bisections import bisections
from service.ledger.calibration import quarantines, rates
from service.ledger.changepoints import change_points
from service.ledger.intake.targets import target_named
from service.ledger.regressions import listing

router = APIRouter(route_class=ReadingRoute, responses={404: {"model": Problem}})
DAY_S = 86_400.0
TargetName = Annotated[str | None, Query(description="Of this target only.", max_length=80)]


@router.get("/regressions", response_model=Page[RegressionOut], tags=["regressions"])
def list_all_regressions(
    session: Reading,
    state: Annotated[list[RegressionState] | None, Query(description="May be repeated; by default all.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RegressionOut]:
    """Confirmed regressions of all targets, the newest first."""
    page = listing.listed(session, None, state or (), cursor, limit)
    return Page(items=[RegressionOut.of(found) for found in page.items], next=page.next)


@router.get("/regressions/{regression_id}", response_model=RegressionWhole, tags=["regressions"])
def get_regression(regression_id: Key, session: Reading) -> RegressionWhole:
    """One regression with its whole life: who did what, what the same event made, who searched for the culprit."""
    return RegressionWhole.whole(listing.one(session, regression_id))


@router.get("/bisections", response_model=Page[BisectionOut], tags=["bisections"])
def list_bisections(
    session: Reading,
    target: TargetName = None,
    running: Annotated[bool, Query(description="Only those that have not ended.")] = False,
    cursor: Place = 0,
    limit: Limit = 50,
) -> Page[BisectionOut]:
    """Searches for who made a case slower, the newest first."""
    of = target_named(session, target) if target else None
    rows = bisections.listed(session, of, open_only=running, most=cursor + limit + 1)
    found, following = one_page(rows, cursor, limit)
    return Page(items=[BisectionOut.of(row) for row in found], next=following)


@router.get("/bisections/{bisection_id}", response_model=BisectionWhole, tags=["bisections"])
def get_bisection(bisection_id: Key, session: Reading) -> BisectionWhole:
    """One bisection with its steps, each an ordinary run."""
    return BisectionWhole.whole(bisections.one(session, bisection_id))


@router.get("/calibration", response_model=CalibrationOut, tags=["calibration"])
def get_calibration(
    session: Reading,
    target: TargetName = None,
    device: Annotated[str | None, Query(max_length=40)] = None,
    worker: Annotated[str | None, Query(max_length=120)] = None,
    days: Annotated[int, Query(ge=1, le=3650, description="Only what the last days showed.")] = 90,
    limit: Limit = 50,
) -> CalibrationOut:
    """How often equal code differed from itself, by worker, device and metric, and the cases where it did most."""
    of = target_named(session, target) if target else None
    since = clock(session) - days * DAY_S
    found = rates.rates(session, of, device=device, worker=worker, since=since)
    metrics = [RateOut.of(one) for one in rates.by_metric(found)]
    return CalibrationOut(metrics=metrics, worst=[RateOut.of(one) for one in found[:limit]])


@router.get("/quarantines", response_model=Page[QuarantineOut], tags=["calibration"])
def list_quarantines(
    session: Reading,
    target: TargetName = None,
    released: Annotated[bool, Query(description="Also those that are over.")] = False,
    cursor: Place = 0,
    limit: Limit = 50,
) -> Page[QuarantineOut]:
    """The cases that alarm nobody, the newest first."""
    of = target_named(session, target) if target else None
    found, following = one_page(quarantines.listed(session, of, released=released), cursor, limit)
    return Page(items=[QuarantineOut.of(*one) for one in found], next=following)


@router.get("/targets/{name}/incidents", response_model=Page[IncidentOut], tags=["regressions"])
def list_incidents(
    name: str,
    session: Reading,
    over: Annotated[bool, Query(description="Also those that are over.")] = False,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[IncidentOut]:
    """Regressions of many cases that one event made, the newest first."""
    page = listing.incidents(session, target_named(session, name), open_only=not over, cursor=cursor, limit=limit)
    return Page(items=[IncidentOut.of(one) for one in page.items], next=page.next)


@router.get("/targets/{name}/change-points", response_model=Page[ChangePointOut], tags=["targets"])
def list_change_points(
    name: str,
    session: Reading,
    device: Annotated[str | None, Query(max_length=40)] = None,
    state: PointState | None = None,
    cursor: Place = 0,
    limit: Limit = 50,
) -> Page[ChangePointOut]:
    """Steps in the histories of its cases, those of the newest revisions first."""
    found = change_points.points(session, target_named(session, name), device, state, most=cursor + limit + 1)
    shown, following = one_page(found, cursor, limit)
    return Page(items=[ChangePointOut.of(one) for one in shown], next=following)
