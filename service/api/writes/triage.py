"""What people decide about regressions and incidents, bisections, quarantined cases, and policies to be tried."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from kernelwatch.documents.base import Page
from kernelwatch.documents.regressions import (
    BisectionDocument,
    IncidentItem,
    QuarantineItem,
    RegressionDocument,
    ReplayDocument,
)
from kernelwatch.documents.runs import RunItem
from service.api.access import Acting, WritingRoute, needs, permit
from service.api.common import Key
from service.api.writes.objects import TargetName, document, permitted_target
from service.db.engine import reading, transaction
from service.db.models import Bisection, Target
from service.domain.access import Actor, Scope
from service.domain.policy.policy import read
from service.domain.regressions.lifecycle import MAX_NAME, Action, Transition
from service.errors import NotFound
from service.ledger.bisections import advance, bisections
from service.ledger.calibration import quarantines
from service.ledger.intake import calibrations
from service.ledger.policies import server_policy
from service.ledger.reading import queries
from service.ledger.regressions import listing, transitions
from service.ledger.runs import replays
from service.ledger.targets import target_named
from service.reports.schema.regressions import (
    bisection_document,
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

router = APIRouter(route_class=WritingRoute)
_OPEN_ALREADY: dict[int | str, dict[str, Any]] = {200: {"description": "It was open already."}}


# What people may do to a regression or to all regressions of an incident: the request, and what the endpoint says.
VERBS: Mapping[str, tuple[Action, type[RequestDocument], str]] = {
    "acknowledge": (Action.ACKNOWLEDGE, AcknowledgeRequest, "Accept it: its revision may be a baseline again."),
    "dismiss": (Action.DISMISS, ReasonRequest, "Close it as false or intended.  It is not reopened by itself."),
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
def start_calibration(name: TargetName, body: CalibrationRequest, actor: Acting) -> RunItem:
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
def quarantine_case(name: TargetName, body: QuarantineRequest, actor: Acting) -> Page[QuarantineItem]:
    """Stop reporting a case until it is released, and list what is quarantined on its device."""
    return _quarantined(name, body, actor, quarantines.quarantine_by_hand)


@router.post("/targets/{name}/release", response_model=Page[QuarantineItem], tags=["calibration"])
@needs(Scope.TRIAGE)
def release_case(name: TargetName, body: QuarantineRequest, actor: Acting) -> Page[QuarantineItem]:
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
def replay_policy(name: TargetName, body: ReplayRequest, actor: Acting) -> ReplayDocument:
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
