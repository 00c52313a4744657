"""Triage in the browser: the forms of a regression or of a whole incident, what they do, and the culprit's search."""

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from dashboards import forms
from dashboards.forms import ActionForm, Field, FieldKind, Sent, Verb
from dashboards.rendering import page_router
from service.api.regressions import VERBS, transition
from service.db.engine import transaction
from service.db.models import Account, RegressionRow, Revision, Run, Target
from service.domain.access import Actor, Scope
from service.domain.regressions.lifecycle import MAX_NAME, Transition, possible
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


router = page_router()

MAX_KNOWN = 50  # people who are suggested
_WHOLE = "applies"  # the field that says to what a form applies
_THIS, _EVERY = "this", "incident"


@dataclass(frozen=True)
class TriageVerb(Verb):
    """What a person may do to a regression, or to all regressions of an incident."""

    options: str = ""  # of its command
    done: str = ""


ACKNOWLEDGE = TriageVerb(
    "acknowledge",
    "Acknowledge",
    "Its revision becomes a baseline again. With a day, it is open again from that day (UTC).",
    fields=(
        Field("reason", "Why it is accepted", FieldKind.TEXT, required=True),
        Field("until", "Until", FieldKind.DAY),
    ),
    options=" --reason WHY --until 2026-12-31",
    done="acknowledged",
)
DISMISS = TriageVerb(
    "dismiss",
    "Dismiss",
    "It is closed as false or intended, and does not come back automatically.",
    question="Dismiss {}?",
    fields=(Field("reason", "Why it is no regression", FieldKind.TEXT, required=True),),
    options=" --reason WHY",
    done="dismissed",
)
REOPEN = TriageVerb(
    "reopen",
    "Reopen",
    "Only a later measurement can close it as fixed.",
    fields=(Field("reason", "Why", FieldKind.TEXT),),
    done="reopened",
)
ASSIGN = TriageVerb(
    "assign",
    "Assign",
    "An empty field removes the assignee.",
    fields=(Field("assignee", "Person", max_length=MAX_NAME),),
    options=" WHO",
    done="assigned to",
)
DUE = TriageVerb(
    "due",
    "Set a due date",
    "An empty field removes the day.",
    fields=(Field("due_at", "Fixed by", FieldKind.DAY),),
    options=" 2026-12-31",
    done="due date changed",
)
NOTE = TriageVerb(
    "note",
    "Add a note",
    "Notes stay in the history.",
    fields=(Field("text", "Note", FieldKind.TEXT, required=True),),
    options=" TEXT",
    done="note added",
)
BISECT = TriageVerb(
    "bisect",
    "Find the culprit",
    "Measures revisions between the last good one and this one, at the lowest priority.",
)
_CHANGES = (ACKNOWLEDGE, DISMISS, REOPEN, ASSIGN, DUE, NOTE)
_ABOUT_INCIDENT = "Measures revisions between the last good one and the incident's, at the lowest priority."


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


def forms_of(subject: Subject) -> dict[str, ActionForm]:
    """The forms of what the state allows, by their verbs."""
    allowed = [verb for verb in _CHANGES if any(_is_possible(row, verb) for row in subject.rows)]
    return {verb.name: _form(subject, verb) for verb in (*allowed, *([BISECT] if subject.search else []))}


def _is_possible(row: RegressionRow, verb: TriageVerb) -> bool:
    return possible(row.state, VERBS[verb.name][0])


def _form(subject: Subject, verb: TriageVerb) -> ActionForm:
    several = f" with all {len(subject.rows)} cases" if len(subject.rows) > 1 else ""
    command = f"kernelwatch regression {verb.name} {subject.id}{verb.options}"
    if subject.noun == "incident":
        command += " --incident"
    if verb is BISECT:
        command = subject.search.command if subject.search else ""
    scope = Scope.RUN if verb is BISECT else Scope.TRIAGE
    form = verb.form(subject.path, scope, command, f"{subject.noun} {subject.id}{several}", target=subject.target)
    return replace(form, fields=tuple(_fields(subject, verb)), about=_about(subject, verb), seen=subject.seen)


def _about(subject: Subject, verb: TriageVerb) -> str:
    if subject.noun == "regression":
        return verb.about
    if verb is BISECT:
        count = len(subject.search.cases) if subject.search else 0
        return f"{_ABOUT_INCIDENT} It covers {count} of {len(subject.rows)} cases."
    count = sum(_is_possible(row, verb) for row in subject.rows)
    return f"{verb.about} It applies to {count} of {len(subject.rows)} cases."


def _fields(subject: Subject, verb: TriageVerb) -> Iterator[Field]:
    """The fields with what is so already, where all of the subject's regressions are one."""
    [first, *rest] = subject.rows
    for each in verb.fields:
        if verb is ASSIGN:
            yield replace(each, value="" if rest else first.assignee or "", suggestions=tuple(subject.people))
        elif verb is DUE and first.due_at and not rest:
            yield replace(each, value=f"{datetime.fromtimestamp(first.due_at, UTC):%Y-%m-%d}")
        else:
            yield each
    if subject.incident_id is not None and verb is not BISECT:
        choices = ((_THIS, "this case"), (_EVERY, f"all {subject.of_incident} cases of incident {subject.incident_id}"))
        yield Field(_WHOLE, "Applies to", FieldKind.CHOICE, _THIS, choices=choices)


def _people(session: Session, rows: Sequence[RegressionRow]) -> list[str]:
    """People who may be assigned: who has it, and who signed in, the newest first."""
    recent = select(Account.login).where(Account.disabled_at.is_(None)).order_by(Account.signed_in_at.desc())
    known = session.scalars(recent.limit(MAX_KNOWN))
    return [*dict.fromkeys([*filter(None, (row.assignee for row in rows)), *known])][:MAX_KNOWN]


def _change(regression_id: int, verb: TriageVerb, sent: Sent, actor: Actor) -> str:
    """Do to a regression, or to its whole incident, what its form says."""
    with transaction() as session:
        incident_id = session.get_one(RegressionRow, regression_id).incident_id
        if verb is BISECT:
            life = listing.one(session, regression_id)
            is_new = decisions.is_new_search(session, regression_id, _name(actor), sent.seen)
            search = search_of(session, life.regressed.target, [life.regressed.row])
        elif sent[_WHOLE] == _EVERY and incident_id is not None:
            decisions.decide_incident(session, incident_id, _transition(verb, sent, actor), sent.seen)
            return _done(f"Incident {incident_id}", verb, sent)
        else:
            decisions.decide(session, regression_id, _transition(verb, sent, actor), sent.seen)
            return _done(f"Regression {regression_id}", verb, sent)
    return _started(f"Regression {regression_id}", search, actor, is_new=is_new)


def _change_all(incident_id: int, verb: TriageVerb, sent: Sent, actor: Actor) -> str:
    """Do to all regressions of an incident what its form says."""
    with transaction() as session:
        if verb is not BISECT:
            decisions.decide_incident(session, incident_id, _transition(verb, sent, actor), sent.seen)
            return _done(f"Incident {incident_id}", verb, sent)
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


def _transition(verb: TriageVerb, sent: Sent, actor: Actor) -> Transition:
    action, kind, _ = VERBS[verb.name]
    values = {one: sent[one.name] for one in verb.fields}
    fields = {one.name: _day(text) if one.kind is FieldKind.DAY else text or None for one, text in values.items()}
    try:
        body = kind.model_validate(fields)
    except ValidationError as error:
        raise BadInput("; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())) from None
    return transition(action, body, _name(actor))


def _day(text: str) -> str | None:
    """The start of a day, as the API takes it."""
    try:
        return f"{date.fromisoformat(text)}T00:00:00Z" if text else None
    except ValueError:
        raise BadInput(f"There is no day {text}.") from None


def _done(what: str, verb: TriageVerb, sent: Sent) -> str:
    who = f" {sent['assignee'] or 'nobody'}" if verb is ASSIGN else ""
    return f"{what}: {verb.done}{who}."


# What the state no longer allows is refused with the reason by what applies it.
forms.add_forms(
    router,
    "/regressions",
    (*_CHANGES, BISECT),
    lambda number, verb, session: _form(of_regression(session, listing.one(session, number)), verb),
    _change,
)
forms.add_forms(
    router,
    "/incidents",
    (*_CHANGES, BISECT),
    lambda number, verb, session: _form(of_incident(session, listing.incident(session, number)), verb),
    _change_all,
)
