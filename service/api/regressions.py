"""Regressions, incidents, change points, bisections, calibration and policies."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from kernelwatch.documents.base import Page
from kernelwatch.documents.regressions import (
    BisectionDocument,
    BisectionItem,
    CalibrationDocument,
    ChangePointItem,
    IncidentItem,
    PolicyDocument,
    PolicyItem,
    QuarantineItem,
    RegressionDocument,
    RegressionItem,
)
from service.api.access import Acting, Reading, ReadingRoute, needs, permit
from service.api.common import (
    CACHED,
    Cursor,
    Key,
    Limit,
    RegressionStates,
    TargetName,
    WithEvents,
    page_of,
    page_of_regressions,
    tagged_json,
)
from service.db.engine import clock
from service.domain.access import Scope
from service.domain.states import PointState
from service.ledger import policies
from service.ledger.bisections import bisections
from service.ledger.calibration import error_rates, quarantines
from service.ledger.changepoints import load
from service.ledger.regressions import listing
from service.ledger.targets import target_named
from service.reports.schema.regressions import (
    bisection_document,
    bisection_item,
    calibration_document,
    change_point_item,
    incident_item,
    quarantine_item,
    regression_document,
)

router = APIRouter(route_class=ReadingRoute)
Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="`policy_version` of a verdict.")]
DAY_S = 86_400.0
WithClosed = Annotated[bool, Query(description="Include closed incidents.")]


@router.get("/regressions", response_model=Page[RegressionItem], tags=["regressions"])
def list_all_regressions(
    session: Reading,
    state: RegressionStates = None,
    expand: WithEvents = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RegressionItem]:
    """List confirmed regressions of all targets, the newest first."""
    return page_of_regressions(session, None, state, cursor, limit, expand)


@router.get("/regressions/{regression_id}", response_model=RegressionDocument, responses=CACHED, tags=["regressions"])
def get_regression(request: Request, regression_id: Key, session: Reading) -> Response:
    """Get one regression with its history, its incident and its bisections."""
    return tagged_json(request, regression_document(listing.one(session, regression_id)))


@router.get("/incidents", response_model=Page[IncidentItem], tags=["regressions"])
def list_all_incidents(
    session: Reading, closed: WithClosed = False, cursor: Cursor = None, limit: Limit = 50
) -> Page[IncidentItem]:
    """List incidents of all targets, the newest first."""
    return page_of(listing.incidents(session, open_only=not closed, cursor=cursor, limit=limit), incident_item)


@router.get("/incidents/{incident_id}", response_model=IncidentItem, tags=["regressions"])
def get_incident(incident_id: Key, session: Reading) -> IncidentItem:
    """Get one incident with its regressions."""
    return incident_item(listing.incident(session, incident_id))


@router.get("/bisections", response_model=Page[BisectionItem], tags=["bisections"])
def list_bisections(
    session: Reading,
    target: TargetName = None,
    running: Annotated[bool, Query(description="Only those that have not ended.")] = False,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[BisectionItem]:
    """List bisections, the newest first."""
    of = target_named(session, target) if target else None
    found = bisections.listed(session, of, open_only=running, cursor=cursor, limit=limit)
    return page_of(found, lambda row: bisection_item(row, row.target.name))


@router.get("/bisections/{bisection_id}", response_model=BisectionDocument, responses=CACHED, tags=["bisections"])
def get_bisection(request: Request, bisection_id: Key, session: Reading) -> Response:
    """Get one bisection with its steps; each step is a run."""
    return tagged_json(request, bisection_document(bisections.one(session, bisection_id)))


@router.get("/calibration", response_model=CalibrationDocument, responses=CACHED, tags=["calibration"])
def get_calibration(
    request: Request,
    session: Reading,
    target: TargetName = None,
    device: Annotated[str | None, Query(max_length=40)] = None,
    worker: Annotated[str | None, Query(max_length=120)] = None,
    days: Annotated[int, Query(ge=1, le=3650, description="Only comparisons of the last days.")] = 90,
    limit: Annotated[int | None, Query(ge=1, description="At most so many cases; all by default.")] = None,
) -> Response:
    """Get the measured false-alarm rates of equal code, and the quarantined cases."""
    of = target_named(session, target) if target else None
    since = clock(session) - days * DAY_S
    found = error_rates.rates(session, of, device=device, worker=worker, since=since)
    quarantined = quarantines.listed(session, of, device=device)
    return tagged_json(request, calibration_document(error_rates.by_metric(found), found[:limit], quarantined))


@router.get("/quarantines", response_model=Page[QuarantineItem], tags=["calibration"])
def list_quarantines(
    session: Reading,
    target: TargetName = None,
    released: Annotated[bool, Query(description="Include released cases.")] = False,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[QuarantineItem]:
    """List quarantined cases, the newest first."""
    of = target_named(session, target) if target else None
    found = quarantines.page(session, of, released=released, cursor=cursor, limit=limit)
    return page_of(found, lambda row: quarantine_item(*row))


@router.get("/targets/{name}/incidents", response_model=Page[IncidentItem], tags=["regressions"])
def list_incidents(
    name: str,
    session: Reading,
    closed: WithClosed = False,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[IncidentItem]:
    """List incidents: regressions with one cause, the newest first."""
    found = listing.incidents(session, target_named(session, name), open_only=not closed, cursor=cursor, limit=limit)
    return page_of(found, incident_item)


@router.get("/targets/{name}/change-points", response_model=Page[ChangePointItem], tags=["targets"])
def list_change_points(
    name: str,
    session: Reading,
    device: Annotated[str | None, Query(max_length=40)] = None,
    state: PointState | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[ChangePointItem]:
    """List steps in the histories of its cases, those of the newest revisions first."""
    found = load.points(session, target_named(session, name), device, state, cursor=cursor, limit=limit)
    return page_of(found, change_point_item)


@router.get("/policies", response_model=Page[PolicyItem], tags=["policies"])
@needs(Scope.ADMIN)
def list_policies(session: Reading, actor: Acting, cursor: Cursor = None, limit: Limit = 50) -> Page[PolicyItem]:
    """List the versions of policies that made verdicts, the newest first."""
    permit(actor, Scope.ADMIN)
    return page_of(policies.listed(session, cursor, limit), PolicyItem.model_validate)


@router.get("/policies/{digest}", response_model=PolicyDocument, tags=["policies"])
@needs(Scope.ADMIN)
def get_policy(digest: Digest, session: Reading, actor: Acting) -> PolicyDocument:
    """Get one version of a policy with its values."""
    permit(actor, Scope.ADMIN)
    return PolicyDocument.model_validate(policies.one(session, digest))
