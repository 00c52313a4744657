"""What people decide, applied once to what they saw; among it, that a pull request may be slower.

The acceptance is of exactly one head; a new push voids it.  Merge commit and acceptance may become known in any order,
before or after the mainline is measured, so each of the three looks for the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import Incident, Pull, RegressionEvent, RegressionRow, Revision, Run, Series, Target, VerdictRow
from service.domain.regressions.lifecycle import MAX_NAME, Action, Transition, changes, possible
from service.domain.states import OPEN_REGRESSIONS, BaselineKind, Outcome, Purpose, RegressionState, RunState
from service.errors import Conflict, LaterChange, NotFound, Stale
from service.ledger import audit
from service.ledger.locking import lock
from service.ledger.regressions import listing, transitions


def newest_event(session: Session, ids: Sequence[int]) -> int:
    """The newest event of these regressions, by which a form knows what its sender saw; 0 without any."""
    newest = select(func.max(RegressionEvent.id)).where(RegressionEvent.regression_id.in_(ids))
    return session.scalar(newest) or 0


def decide(session: Session, regression_id: int, transition: Transition, seen: int) -> None:
    """Apply what a person decided who saw the events up to `seen`.

    Nothing happens if the same person did it already since then.  Raises Stale if something else happened, and what
    `transitions.apply` raises.
    """
    if _is_new(session, f"Regression {regression_id}", RegressionRow.id == regression_id, transition, seen):
        transitions.apply(session, regression_id, transition)


def decide_incident(session: Session, incident_id: int, transition: Transition, seen: int) -> None:
    """The same for all regressions of an incident in a state that allows it."""
    if session.get(Incident, incident_id) is None:
        raise NotFound("incident", incident_id, "`kernelwatch incident list` lists them.")
    if _is_new(session, f"Incident {incident_id}", RegressionRow.incident_id == incident_id, transition, seen):
        transitions.apply_to_incident(session, incident_id, transition)


def is_new_search(session: Session, regression_id: int, who: str, seen: int) -> bool:
    """Whether this person has not started a search for the culprit since they saw `seen`.  Raises Stale."""
    transition = Transition(Action.SEARCH, who)
    return _is_new(session, f"Regression {regression_id}", RegressionRow.id == regression_id, transition, seen)


def is_new_common_search(session: Session, incident_id: int, who: str, seen: int) -> bool:
    """The same for a search that covers regressions of an incident."""
    of_it = RegressionRow.incident_id == incident_id
    return _is_new(session, f"Incident {incident_id}", of_it, Transition(Action.SEARCH, who), seen)


def _is_new(session: Session, what: str, which: ColumnElement[bool], transition: Transition, seen: int) -> bool:
    target_id = session.scalar(select(Series.target_id).join(RegressionRow.series).where(which).limit(1))
    if target_id is None:
        return True  # what applies it says that there is none
    lock(session, target_id)
    rows = {row.id: row for row in session.scalars(select(RegressionRow).where(which))}
    events = (
        select(RegressionEvent)
        .where(RegressionEvent.regression_id.in_(rows), RegressionEvent.id > seen)
        .order_by(RegressionEvent.id)
    )
    since = session.scalars(events).all()
    if _is_done(rows, since, transition, clock(session)):
        return False
    if since and transition.action is not Action.NOTE:  # a note is true whatever happened
        raise Stale(what, summary(since))
    return True


def _is_done(
    rows: dict[int, RegressionRow], since: Sequence[RegressionEvent], transition: Transition, now: float
) -> bool:
    """Whether one of these events is this decision, and its effect lasts."""
    wanted = changes(transition, now)
    return any(
        (event.who, event.what) == (transition.who, transition.action.value)
        and (event.words == transition.words or transition.action is Action.SEARCH)
        and all(getattr(rows[event.regression_id], column) == value for column, value in wanted.items())
        for event in since
    )


@dataclass(frozen=True)
class CommonEvent:
    """An event that some regressions of an incident have alike."""

    at: float
    who: str
    what: str
    words: str | None
    state: RegressionState
    run_id: int | None
    cases: int
    case: str | None  # where it is an event of one


def in_common(session: Session, cases: Mapping[int, str]) -> list[CommonEvent]:
    """The events of regressions, of which `cases` has the cases by id, the oldest first.

    An event that several have is there once.
    """
    event = RegressionEvent
    columns = (event.at, event.who, event.what, event.words, event.state, event.run_id)
    several = (func.count().label("cases"), func.max(event.regression_id).label("newest"))
    alike = select(*columns, *several).where(event.regression_id.in_(cases)).group_by(*columns)
    return [
        CommonEvent(
            row.at,
            row.who,
            row.what,
            row.words,
            row.state,
            row.run_id,
            row.cases,
            cases[row.newest] if row.cases == 1 else None,
        )
        for row in session.execute(alike.order_by(event.at, func.max(event.id))).all()
    ]


def summary(events: Sequence[RegressionEvent]) -> list[LaterChange]:
    """Events in words; one that several regressions have is said once."""
    latest = {(event.who, event.what, event.words): event.at for event in reversed(events)}
    changes = [
        LaterChange(at, who, f"{what} {words}" if what in _WITH_OBJECT else f"{what}: {words}" if words else what)
        for (who, what, words), at in latest.items()
    ]
    return sorted(changes, key=lambda change: change.at)


_WITH_OBJECT = (Action.ASSIGN.value, Action.DUE.value)  # "assigned to bob", "due on 2026-12-01"


def accept(session: Session, target: Target, pull: Pull, who: str, why: str) -> int:
    """Accept the slower cases of the recorded head; returns how many there are.

    Raises Conflict where no measurement of the head found one.
    """
    lock(session, target.id)
    runs = _done_runs(session, pull)
    cases = len(_slower(session, runs))
    if not cases:
        raise Conflict(f"No case is slower at {(pull.head or 'the head')[:10]}; there is nothing to accept.")
    pull.accepted_head, pull.accepted_by, pull.accepted_why = pull.head, who[:MAX_NAME], why
    details = {"revision": pull.head, "cases": cases, "text": why}
    audit.record(session, "pull.accept", target=target.name, of=f"pull request {pull.number}", details=details)
    for run in runs:
        run.notified_state = ""  # its check passes now
    acknowledge_merged(session, pull)
    return cases


def is_accepted(pull: Pull | None, sha: str) -> bool:
    """Whether somebody accepted exactly this head."""
    return pull is not None and pull.accepted_head == sha


def acknowledge_merged(session: Session, pull: Pull) -> None:
    """Acknowledge the open regressions of the commit that an accepted pull request was merged as.

    A rebase or a fast-forward brings several commits to the mainline, and each of them is measured: at those before the
    last one, the regressions of the accepted cases are acknowledged.
    """
    if pull.merged_as is None or pull.accepted_by is None or not is_accepted(pull, pull.head or ""):
        return
    lock(session, pull.target_id)
    runs = _done_runs(session, pull)
    accepted, earlier = _slower(session, runs), _commits_before_last(session, pull, runs)
    found = session.execute(
        select(RegressionRow, Revision.sha, Series.provider, Series.printed)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(RegressionRow.series)
        .where(Series.target_id == pull.target_id, Revision.sha.in_({pull.merged_as, *earlier}))
        .where(RegressionRow.state.in_(OPEN_REGRESSIONS), RegressionRow.state != RegressionState.ACKNOWLEDGED)
        .order_by(RegressionRow.id)
        .execution_options(populate_existing=True)
    ).all()
    rows = [row for row, sha, *name in found if sha == pull.merged_as or tuple(name) in accepted]
    now = clock(session)
    for row in rows:
        if possible(row.state, Action.ACKNOWLEDGE):
            transition = Transition(Action.ACKNOWLEDGE, pull.accepted_by, pull.accepted_why)
            transitions.change(session, row, transition, now)
    session.flush()
    listing.settle(session, {row.incident_id for row in rows}, now)


def acknowledge_at(session: Session, run: Run) -> None:
    """The same for the pull requests that may have brought the revision of a mainline run, or were merged later."""
    ordinal = select(Revision.ordinal).where(Revision.id == run.revision_id).scalar_subquery()
    same_target = (Revision.target_id == Pull.target_id, Pull.target_id == run.target_id)
    merged = select(Pull).join(Revision, Revision.sha == Pull.merged_as).where(*same_target)
    ours = (Pull.accepted_head == Pull.head, Revision.ordinal >= ordinal)
    for pull in session.scalars(merged.where(*ours).order_by(Pull.id)):
        acknowledge_merged(session, pull)


def _slower(session: Session, runs: Sequence[Run]) -> set[tuple[str, str]]:
    """Provider and case of everything that these runs found slower than the base."""
    rows = (
        select(VerdictRow.provider, VerdictRow.case)
        .where(VerdictRow.run_id.in_([run.id for run in runs]), VerdictRow.outcome == Outcome.REGRESSION)
        .where(VerdictRow.baseline_kind == BaselineKind.PARENT)
    )
    return {(provider, case) for provider, case in session.execute(rows)}


def _commits_before_last(session: Session, pull: Pull, runs: Sequence[Run]) -> set[str]:
    """The commits that a pull request brought to the mainline before the one that it was merged as.

    After a fast-forward they are its own commits, and after a rebase copies with the same authors and subjects.  Other
    commits may have come between its base and these, and regressions of those are not what was accepted.
    """

    def known(sha: str | None) -> Revision | None:
        return session.scalar(select(Revision).where(Revision.target_id == pull.target_id, Revision.sha == sha))

    last, base = known(pull.merged_as), known(runs[0].baseline if runs else None)
    if last is None or last.ordinal is None or base is None or base.ordinal is None:
        return set()
    own, revision = list[Revision](), known(pull.head)
    while (
        revision is not None
        and revision.sha != base.sha
        and (revision.ordinal is None or revision.ordinal > base.ordinal)
    ):
        own.append(revision)
        revision = known(revision.parent)
    brought = {revision.sha for revision in own} | {(revision.author, revision.subject) for revision in own}
    line = (
        select(Revision)
        .where(Revision.target_id == pull.target_id, Revision.ordinal > base.ordinal, Revision.ordinal < last.ordinal)
        .order_by(Revision.ordinal.desc())
        .limit(max(0, len(own) - 1))
    )
    return {
        revision.sha
        for revision in session.scalars(line)
        if not brought.isdisjoint({revision.sha, (revision.author, revision.subject)})
    }


def runs_of_head(session: Session, target_id: int, pull: int, sha: str | None) -> Sequence[Run]:
    """The runs that a head of a pull request has, oldest first; without those of bisections."""
    same = (Run.target_id == target_id, Run.pull == pull, Run.purpose == Purpose.WATCH)
    return session.scalars(select(Run).where(*same, Run.revision.has(sha=sha)).order_by(Run.id)).all()


def _done_runs(session: Session, pull: Pull) -> list[Run]:
    """The newest run of the head that is done, for each device; none of before its base changed."""
    runs = runs_of_head(session, pull.target_id, pull.number, pull.head)
    against_base = [run for run in runs if baseline_in_key(run) == baseline_in_key(runs[-1])]
    return list({run.device: run for run in against_base if run.state is RunState.DONE}.values())


def baseline_in_key(run: Run) -> str:
    """The beginning of the sha that the run was to be compared with; empty for its parent, and where it is unknown."""
    return run.dedupe.partition("^")[2].partition("+")[0]
