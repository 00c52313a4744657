"""Triage in the browser: the forms of a regression or of a whole incident, what they do, and the culprit's search."""

import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from dashboards import forms
from dashboards.forms import ActionForm, Field, FieldKind, Sent
from service.api.access import Reading, ReadingRoute
from service.api.common import Key
from service.api.writes.triage import VERBS
from service.db.engine import transaction
from service.db.models import Account, RegressionRow, Revision, Run, Target
from service.domain.access import Actor, Scope
from service.domain.regressions.lifecycle import MAX_NAME, Action, Transition, possible
from service.domain.states import RegressionState
from service.domain.text import short
from service.errors import BadInput
from service.ledger.bisections import advance
from service.ledger.bisections.advance import RequestedBisection
from service.ledger.regressions import decisions, listing
from service.reports.views import IncidentView, RegressionHistory

MAX_PATTERNS = 200  # as in the API
_SEARCHED = (RegressionState.OPEN, RegressionState.ACKNOWLEDGED)


@dataclass(frozen=True)
class CulpritSearch:
    """A bisection that has not started: its ends, and the cases of which it finds the culprit."""

    target: str
    device: str
    suite: str
    good: str
    bad: str
    cases: tuple[str, ...]
    incident_id: int | None

    @property
    def command(self) -> str:
        """The command that starts it."""
        ends = f"{short(self.good)}..{short(self.bad)}"
        words = ["kernelwatch", "bisection", "start", self.target, ends, "--device", self.device, "--suite", self.suite]
        return shlex.join([*words, *(word for case in self.cases for word in ("--case", case))])

    def start(self, asked_by: str) -> RequestedBisection:
        """Start it, or find the open one of the same.  Raises what `advance.search` raises."""
        return advance.search(
            self.target,
            self.good,
            self.bad,
            device=self.device,
            suite=self.suite,
            patterns=self.cases,
            incident_id=self.incident_id,
            asked_by=asked_by,
        )


def can_search(row: RegressionRow) -> bool:
    """Whether its culprit is unknown, no bisection searches for it, and a good revision is known."""
    return bool(row.good) and row.culprit is None and row.state in _SEARCHED


def search_of(session: Session, target: str, rows: Sequence[RegressionRow]) -> CulpritSearch | None:
    """The bisection that fits most of these regressions of one device and incident; None where nothing is left to find.

    One bisection has one suite and two ends.  What it does not cover can be searched after it has started.
    """
    together = defaultdict[tuple[str, str, str], list[RegressionRow]](list)
    wanted = [row for row in rows if can_search(row)]
    measured = (
        select(Run.id, Run.suite, Revision.sha)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.id.in_({row.run_id for row in wanted}))
    )
    where = {run_id: (suite, sha) for run_id, suite, sha in session.execute(measured)} if wanted else {}
    for row in wanted:
        suite, bad = where[row.run_id]
        together[suite, row.good or "", bad].append(row)
    if not together:
        return None
    ends = max(together, key=lambda each: _weight(together[each]))
    cases = sorted({row.case for row in together[ends]})[:MAX_PATTERNS]
    suite, good, bad = ends
    first = together[ends][0]
    return CulpritSearch(target, first.device, suite, good, bad, tuple(cases), first.incident_id)


def _weight(rows: Sequence[RegressionRow]) -> tuple[int, int, float]:
    """Open ones count most, before accepted ones; then the number of regressions, then the largest."""
    return sum(row.state is RegressionState.OPEN for row in rows), len(rows), max(row.ratio for row in rows)


router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)

MAX_KNOWN = 50  # people who are suggested
_WHOLE = "applies"  # the field that says to what a form applies
_THIS, _EVERY = "this", "incident"


class Verb(StrEnum):
    """What a person may do to a regression, as the last part of an address."""

    ACKNOWLEDGE = "acknowledge"
    DISMISS = "dismiss"
    REOPEN = "reopen"
    ASSIGN = "assign"
    DUE = "due"
    NOTE = "note"
    BISECT = "bisect"


_ACTIONS = {
    Verb.ACKNOWLEDGE: Action.ACKNOWLEDGE,
    Verb.DISMISS: Action.DISMISS,
    Verb.REOPEN: Action.REOPEN,
    Verb.ASSIGN: Action.ASSIGN,
    Verb.DUE: Action.DUE,
    Verb.NOTE: Action.NOTE,
}
_TITLES = {
    Verb.ACKNOWLEDGE: "Acknowledge",
    Verb.DISMISS: "Dismiss",
    Verb.REOPEN: "Reopen",
    Verb.ASSIGN: "Assign",
    Verb.DUE: "Set a due date",
    Verb.NOTE: "Add a note",
    Verb.BISECT: "Find the culprit",
}
_ABOUT = {
    Verb.ACKNOWLEDGE: "Its revision becomes a baseline again. With a day, it is open again from that day (UTC).",
    Verb.DISMISS: "It is closed as false or intended, and does not come back by itself.",
    Verb.REOPEN: "Only a later measurement can close it as fixed.",
    Verb.ASSIGN: "An empty field removes the assignee.",
    Verb.DUE: "An empty field removes the day.",
    Verb.NOTE: "Notes stay in the history.",
    Verb.BISECT: "Measures revisions between the last good one and this one, at the lowest priority.",
}
_ABOUT_INCIDENT = "Measures revisions between the last good one and the incident's, at the lowest priority."
_DONE = {
    Verb.ACKNOWLEDGE: "acknowledged",
    Verb.DISMISS: "dismissed",
    Verb.REOPEN: "reopened",
    Verb.DUE: "due date changed",
    Verb.NOTE: "note added",
}
_OPTIONS = {
    Verb.ACKNOWLEDGE: " --reason WHY --until 2026-12-31",
    Verb.DISMISS: " --reason WHY",
    Verb.REOPEN: "",
    Verb.ASSIGN: " WHO",
    Verb.DUE: " 2026-12-31",
    Verb.NOTE: " TEXT",
}


@dataclass(frozen=True)
class Subject:
    """What is decided about: a regression or an incident, and what its viewer sees of it."""

    noun: str  # "regression" or "incident"
    id: int
    target: Target
    rows: Sequence[RegressionRow]  # of which the state decides what is possible
    seen: int
    incident_id: int | None = None  # of a regression, if it has several
    of_incident: int = 0  # regressions in it
    search: CulpritSearch | None = None  # None where nothing is left to find
    people: Sequence[str] = ()

    @property
    def path(self) -> str:
        return f"/{self.noun}s/{self.id}"


def of_regression(session: Session, life: RegressionHistory) -> Subject:
    """A regression with what its forms need."""
    row = life.regressed.row
    target = session.get_one(Target, row.target_id)
    return Subject(
        "regression",
        row.id,
        target,
        [row],
        decisions.newest_event(session, [row.id, *(one.id for one in life.siblings)]),
        row.incident_id if life.siblings else None,
        len(life.siblings) + 1,
        search_of(session, life.regressed.target, [row]),
        _people(session, [row]),
    )


def of_incident(session: Session, happening: IncidentView) -> Subject:
    """An incident with what its forms need."""
    rows = happening.regressions
    target = session.get_one(Target, happening.row.target_id)
    seen = decisions.newest_event(session, [one.id for one in rows])
    search = search_of(session, happening.target, rows)
    return Subject("incident", happening.row.id, target, rows, seen, search=search, people=_people(session, rows))


def forms_of(subject: Subject) -> dict[Verb, ActionForm]:
    """The forms of what the state allows."""
    states = {row.state for row in subject.rows}
    allowed = (verb for verb, action in _ACTIONS.items() if any(possible(state, action) for state in states))
    found = {verb: _form(subject, verb) for verb in allowed}
    if subject.search is not None:
        found[Verb.BISECT] = _form(subject, Verb.BISECT)
    return found


def _form(subject: Subject, verb: Verb) -> ActionForm:
    several = len(subject.rows) > 1
    noun = f"{subject.noun} {subject.id}"
    fields = [*_fields(subject, verb)]
    if subject.incident_id is not None and verb is not Verb.BISECT:
        choices = ((_THIS, "this case"), (_EVERY, f"all {subject.of_incident} cases of incident {subject.incident_id}"))
        fields.append(Field(_WHOLE, "Applies to", FieldKind.CHOICE, _THIS, choices=choices))
    command = f"kernelwatch regression {verb} {subject.id}{_OPTIONS.get(verb, '')}"
    if subject.noun == "incident":
        command += " --incident"
    if verb is Verb.BISECT:
        command = subject.search.command if subject.search else ""
    scope = Scope.RUN if verb is Verb.BISECT else Scope.TRIAGE
    return ActionForm(
        address=f"{subject.path}/{verb}",
        title=_TITLES[verb],
        button=_TITLES[verb],
        back=subject.path,
        scope=scope,
        command=command,
        target=subject.target,
        fields=tuple(fields),
        about=_about(subject, verb),
        question=f"Dismiss {noun}{f' with all {len(subject.rows)} cases' if several else ''}?"
        if verb is Verb.DISMISS
        else "",
        seen=subject.seen,
    )


def _about(subject: Subject, verb: Verb) -> str:
    if subject.noun == "regression":
        return _ABOUT[verb]
    if verb is Verb.BISECT:
        count = len(subject.search.cases) if subject.search else 0
        return f"{_ABOUT_INCIDENT} It covers {count} of {len(subject.rows)} cases."
    count = sum(possible(row.state, _ACTIONS[verb]) for row in subject.rows)
    return f"{_ABOUT[verb]} It applies to {count} of {len(subject.rows)} cases."


def _fields(subject: Subject, verb: Verb) -> list[Field]:
    [first, *rest] = subject.rows
    alike = not rest
    match verb:
        case Verb.ACKNOWLEDGE:
            until = Field("until", "Until", FieldKind.DAY)
            return [Field("reason", "Why it is accepted", FieldKind.TEXT, required=True), until]
        case Verb.DISMISS:
            return [Field("reason", "Why it is no regression", FieldKind.TEXT, required=True)]
        case Verb.REOPEN:
            return [Field("reason", "Why", FieldKind.TEXT)]
        case Verb.ASSIGN:
            known = tuple(subject.people)
            who = (first.assignee or "") if alike else ""
            return [Field("assignee", "Person", value=who, suggestions=known, max_length=MAX_NAME)]
        case Verb.DUE:
            due = f"{datetime.fromtimestamp(first.due_at, UTC):%Y-%m-%d}" if alike and first.due_at else ""
            return [Field("due_at", "Fixed by", FieldKind.DAY, due)]
        case Verb.NOTE:
            return [Field("text", "Note", FieldKind.TEXT, required=True)]
        case Verb.BISECT:
            return []


def _people(session: Session, rows: Sequence[RegressionRow]) -> list[str]:
    """People who may be assigned: who has it, and who signed in, the newest first."""
    recent = select(Account.login).where(Account.disabled_at.is_(None)).order_by(Account.signed_in_at.desc())
    known = session.scalars(recent.limit(MAX_KNOWN))
    return [*dict.fromkeys([*filter(None, (row.assignee for row in rows)), *known])][:MAX_KNOWN]


# -- one form alone, and what it does


@router.get("/regressions/{regression_id}/{verb}")
def regression_form(regression_id: Key, verb: Verb, session: Reading) -> str:
    """Show one form of a regression."""
    return forms.shown(session, _find_of_regression(regression_id, verb, session))


@router.get("/incidents/{incident_id}/{verb}")
def incident_form(incident_id: Key, verb: Verb, session: Reading) -> str:
    """Show one form of an incident."""
    return forms.shown(session, _find_of_incident(incident_id, verb, session))


@router.post("/regressions/{regression_id}/{verb}", max_body_size=forms.MAX_FORM)
async def change_regression(request: Request, regression_id: Key, verb: Verb) -> Response:
    """Do to a regression, or to its whole incident, what its form says."""
    find = partial(_find_of_regression, regression_id, verb)
    apply = partial(_start_search, regression_id) if verb is Verb.BISECT else partial(_change, regression_id, verb)
    return await forms.submitted(request, find, apply)


@router.post("/incidents/{incident_id}/{verb}", max_body_size=forms.MAX_FORM)
async def change_incident(request: Request, incident_id: Key, verb: Verb) -> Response:
    """Do to all regressions of an incident what its form says."""
    find = partial(_find_of_incident, incident_id, verb)
    apply = (
        partial(_start_common_search, incident_id) if verb is Verb.BISECT else partial(_change_all, incident_id, verb)
    )
    return await forms.submitted(request, find, apply)


def _find_of_regression(regression_id: int, verb: Verb, session: Session) -> ActionForm:
    # What the state no longer allows is refused with the reason by what applies it.
    return _form(of_regression(session, listing.one(session, regression_id)), verb)


def _find_of_incident(incident_id: int, verb: Verb, session: Session) -> ActionForm:
    return _form(of_incident(session, listing.incident(session, incident_id)), verb)


def _change(regression_id: int, verb: Verb, sent: Sent, actor: Actor) -> str:
    transition = _transition(verb, sent, actor)
    with transaction() as session:
        incident_id = session.get_one(RegressionRow, regression_id).incident_id
        if sent[_WHOLE] == _EVERY and incident_id is not None:
            decisions.decide_incident(session, incident_id, transition, sent.seen)
            return _done(f"Incident {incident_id}", verb, sent)
        decisions.decide(session, regression_id, transition, sent.seen)
    return _done(f"Regression {regression_id}", verb, sent)


def _change_all(incident_id: int, verb: Verb, sent: Sent, actor: Actor) -> str:
    with transaction() as session:
        decisions.decide_incident(session, incident_id, _transition(verb, sent, actor), sent.seen)
    return _done(f"Incident {incident_id}", verb, sent)


def _start_search(regression_id: int, sent: Sent, actor: Actor) -> str:
    with transaction() as session:
        life = listing.one(session, regression_id)
        is_new = decisions.is_new_search(session, regression_id, _name(actor), sent.seen)
        search = search_of(session, life.regressed.target, [life.regressed.row])
    return _started(f"Regression {regression_id}", search, actor, is_new=is_new)


def _start_common_search(incident_id: int, sent: Sent, actor: Actor) -> str:
    with transaction() as session:
        happening = listing.incident(session, incident_id)
        is_new = decisions.is_new_common_search(session, incident_id, _name(actor), sent.seen)
        search = search_of(session, happening.target, happening.regressions)
    return _started(f"Incident {incident_id}", search, actor, is_new=is_new)


def _started(what: str, search: CulpritSearch | None, actor: Actor, *, is_new: bool) -> str:
    if not is_new:
        return f"{what}: the search for the culprit has started."
    if search is None:
        raise BadInput(f"{what}: no open case without a culprit has a good revision, so there is no range to search.")
    started = search.start(_name(actor))
    return f"{what}: bisection {started.id} {'has started' if started.created else 'goes on'}."


def _name(actor: Actor) -> str:
    return actor.name[:MAX_NAME]


def _transition(verb: Verb, sent: Sent, actor: Actor) -> Transition:
    kind, made, _ = VERBS[verb]
    try:
        body = kind.model_validate(_VALUES[verb](sent))
    except ValidationError as error:
        raise BadInput("; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())) from None
    return made(body, _name(actor))


def _day(text: str) -> str | None:
    """The start of a day, as the API takes it."""
    try:
        return f"{date.fromisoformat(text)}T00:00:00Z" if text else None
    except ValueError:
        raise BadInput(f"There is no day {text}.") from None


_VALUES: Mapping[Verb, Callable[[Sent], Mapping[str, object]]] = {
    Verb.ACKNOWLEDGE: lambda sent: {"reason": sent["reason"], "until": _day(sent["until"])},
    Verb.DISMISS: lambda sent: {"reason": sent["reason"]},
    Verb.REOPEN: lambda sent: {"reason": sent["reason"] or None},
    Verb.ASSIGN: lambda sent: {"assignee": sent["assignee"] or None},
    Verb.DUE: lambda sent: {"due_at": _day(sent["due_at"])},
    Verb.NOTE: lambda sent: {"text": sent["text"]},
}


def _done(what: str, verb: Verb, sent: Sent) -> str:
    if verb is Verb.ASSIGN:
        return f"{what}: assigned to {sent['assignee'] or 'nobody'}."
    return f"{what}: {_DONE[verb]}."
