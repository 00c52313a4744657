"""Regressions, incidents, change points, bisections, calibration and policies, and what people decide about them."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from sqlalchemy.orm import Session

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
    ReplayDocument,
)
from kernelwatch.documents.runs import RunItem
from service.api.access import Acting, Reading, api_router, needs, permit
from service.api.common import (
    CACHED,
    Cursor,
    DeviceName,
    Key,
    Limit,
    RegressionStates,
    TargetName,
    WithEvents,
    page_of,
    page_of_regressions,
    tagged_json,
)
from service.api.objects import AnyName, document, permitted_target
from service.api.objects import TargetName as TargetPath
from service.db.engine import clock, reading, transaction
from service.db.models import Bisection, Target
from service.domain.access import Actor, Scope
from service.domain.policy.policy import read
from service.domain.regressions.lifecycle import MAX_NAME, Action, Transition
from service.domain.states import PointState
from service.domain.text import DAY_S
from service.errors import NotFound
from service.ledger import policies
from service.ledger.bisections import advance, bisections
from service.ledger.calibration import error_rates, quarantines
from service.ledger.changepoints import load
from service.ledger.intake import calibrations
from service.ledger.policies import server_policy
from service.ledger.reading import queries
from service.ledger.regressions import listing, transitions
from service.ledger.runs import replays
from service.ledger.targets import target_named
from service.reports.schema.regressions import (
    bisection_document,
    bisection_item,
    calibration_document,
    change_point_item,
    incident_item,
    quarantine_item,
    regression_document,
    replay_document,
)
from service.reports.schema.requests import (
    AcknowledgeRequest,
    AssignRequest,
    BisectionRequest,
    CalibrationRequest,
    DueRequest,
    NoteRequest,
    QuarantineRequest,
    ReasonRequest,
    ReopenRequest,
    ReplayRequest,
    RequestDocument,
)
from service.reports.schema.runs import run_item

router = api_router()
Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="`policy_version` of a verdict.")]
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
    device: DeviceName = None,
    worker: Annotated[str | None, Query(max_length=120, description="Only this worker.")] = None,
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
    name: AnyName,
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
    name: AnyName,
    session: Reading,
    device: DeviceName = None,
    state: Annotated[PointState | None, Query(description="Only steps in this state.")] = None,
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


_OPEN_ALREADY: dict[int | str, dict[str, Any]] = {200: {"description": "It was open already."}}


# What people may do to a regression or to all regressions of an incident: the request, and what the endpoint says.
VERBS: Mapping[str, tuple[Action, type[RequestDocument], str]] = {
    "acknowledge": (Action.ACKNOWLEDGE, AcknowledgeRequest, "Accept it: its revision may be a baseline again."),
    "dismiss": (Action.DISMISS, ReasonRequest, "Close it as false or intended.  It is not reopened automatically."),
    "reopen": (Action.REOPEN, ReopenRequest, "Reopen it.  Later measurements may mark it as fixed."),
    "assign": (Action.ASSIGN, AssignRequest, "Assign it to a person."),
    "note": (Action.NOTE, NoteRequest, "Add a note to its history."),
    "due": (Action.DUE, DueRequest, "Set the day by which it must be fixed."),
}


def transition(action: Action, body: RequestDocument, who: str) -> Transition:
    """What a request asks for."""
    match body:
        case AcknowledgeRequest():
            return Transition(action, who, body.reason, until=_seconds(body.until))
        case ReasonRequest() | ReopenRequest():
            return Transition(action, who, body.reason)
        case AssignRequest():
            return Transition(action, who, f"to {body.assignee or 'nobody'}", assignee=body.assignee)
        case DueRequest():
            words = f"on {body.due_at:%Y-%m-%d}" if body.due_at else "never"
            return Transition(action, who, words, due_at=_seconds(body.due_at))
    assert isinstance(body, NoteRequest)  # noqa: S101  # the last of the table
    return Transition(action, who, body.text)


def _add_verb(verb: str, action: Action, kind: Any, words: str) -> None:
    """The endpoints of one action, on a regression and on all regressions of an incident."""

    @needs(Scope.TRIAGE)
    def on_regression(regression_id: Key, body: kind, actor: Acting) -> RegressionDocument:
        with transaction() as session:
            whole = listing.one(session, regression_id)
            _permit(session, actor, whole.regressed.row.target_id)
            transitions.apply(session, regression_id, transition(action, body, _name(actor)))
        with reading() as session:
            return regression_document(listing.one(session, regression_id))

    @needs(Scope.TRIAGE)
    def on_incident(incident_id: Key, body: kind, actor: Acting) -> IncidentItem:
        with transaction() as session:
            _permit(session, actor, listing.incident(session, incident_id).row.target_id)
            transitions.apply_to_incident(session, incident_id, transition(action, body, _name(actor)))
        with reading() as session:
            return incident_item(listing.incident(session, incident_id))

    for function, noun in ((on_regression, "regression"), (on_incident, "incident")):
        function.__name__, function.__doc__ = f"{verb}_{noun}", words
        router.post(f"/{noun}s/{{{noun}_id}}/{verb}", tags=["regressions"])(function)


for _verb, _parts in VERBS.items():
    _add_verb(_verb, *_parts)


@router.post(
    "/bisections", response_model=BisectionDocument, status_code=201, responses=_OPEN_ALREADY, tags=["bisections"]
)
@needs(Scope.RUN)
def start_bisection(body: BisectionRequest, actor: Acting) -> Response:
    """Search for the revision that made cases slower.  An open bisection of the same is returned."""
    permitted_target(actor, Scope.RUN, body.target)
    requested = advance.search(
        body.target,
        body.good,
        body.bad,
        device=body.device,
        suite=body.suite,
        patterns=body.cases,
        max_runs=body.max_runs,
        asked_by=_name(actor),
    )
    with reading() as session:
        found = bisection_document(bisections.one(session, requested.id))
    return document(found, 201 if requested.created else 200)


@router.post("/bisections/{bisection_id}/stop", response_model=BisectionDocument, tags=["bisections"])
@needs(Scope.RUN)
def stop_bisection(bisection_id: Key, actor: Acting) -> BisectionDocument:
    """Stop a bisection.  Its queued step is cancelled, and its steps are kept."""
    with transaction() as session:
        row = session.get(Bisection, bisection_id)
        if row is None:
            raise NotFound("bisection", bisection_id, "`kernelwatch bisection list` lists them.")
        permit(actor, Scope.RUN, session.get_one(Target, row.target_id))
        bisections.stop(session, bisection_id, _name(actor))
    with reading() as session:
        return bisection_document(bisections.one(session, bisection_id))


@router.post("/targets/{name}/calibrate", response_model=RunItem, status_code=201, tags=["calibration"])
@needs(Scope.RUN)
def start_calibration(name: TargetPath, body: CalibrationRequest, actor: Acting) -> RunItem:
    """Queue a calibration now: two builds of one mainline revision, and a copy, measured against each other."""
    permitted_target(actor, Scope.RUN, name)
    with transaction() as session:
        of = target_named(session, name)
        queued = calibrations.ask_now(
            session, of, body.device, sha=body.revision, suite=body.suite, worker=body.worker
        ).id
    with reading() as session:
        [run] = queries.runs_with_ids(session, [queued])
        return run_item(run)


@router.post("/targets/{name}/quarantine", response_model=Page[QuarantineItem], tags=["calibration"])
@needs(Scope.TRIAGE)
def quarantine_case(name: TargetPath, body: QuarantineRequest, actor: Acting) -> Page[QuarantineItem]:
    """Stop reporting a case until it is released, and list what is quarantined on its device."""
    return _quarantined(name, body, actor, quarantines.quarantine_by_hand)


@router.post("/targets/{name}/release", response_model=Page[QuarantineItem], tags=["calibration"])
@needs(Scope.TRIAGE)
def release_case(name: TargetPath, body: QuarantineRequest, actor: Acting) -> Page[QuarantineItem]:
    """Report a quarantined case again, and list what is still quarantined on its device."""
    return _quarantined(name, body, actor, quarantines.release)


def _quarantined(
    name: str, body: QuarantineRequest, actor: Actor, change: Callable[..., object]
) -> Page[QuarantineItem]:
    permitted_target(actor, Scope.TRIAGE, name)
    with transaction() as session:
        change(session, target_named(session, name), body.device, body.case, body.provider, _name(actor), body.reason)
    with reading() as session:
        found = quarantines.listed(session, target_named(session, name), device=body.device)
        return Page(items=[quarantine_item(*one) for one in found])


@router.post("/targets/{name}/replay", response_model=ReplayDocument, tags=["policies"])
@needs(Scope.RUN)
def replay_policy(name: TargetPath, body: ReplayRequest, actor: Acting) -> ReplayDocument:
    """Apply a policy to stored runs: which alarms would be new, missed or unchanged.  Nothing is changed."""
    permitted_target(actor, Scope.RUN, name)
    written, since = read(body.policy, "of the request"), body.since.timestamp() if body.since else 0.0
    with reading() as session:
        target = target_named(session, name)
        return replay_document(replays.replayed(session, written, server_policy(), target, body.device, since))


def _permit(session: Session, actor: Actor, target_id: int) -> None:
    permit(actor, Scope.TRIAGE, session.get_one(Target, target_id))


def _name(actor: Actor) -> str:
    return actor.name[:MAX_NAME]


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
