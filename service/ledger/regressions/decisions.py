"""What people decide on pages: applied to what they saw, and once, however often the form is sent."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import Incident, RegressionEvent, RegressionRow, Series
from service.domain.regressions.lifecycle import Action, Transition, changes
from service.domain.states import RegressionState
from service.errors import LaterChange, NotFound, Stale
from service.ledger.locking import lock
from service.ledger.regressions import transitions


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


def in_common(session: Session, ids: Sequence[int]) -> list[CommonEvent]:
    """The events of these regressions, the oldest first; one that several have is there once."""
    event = RegressionEvent
    columns = (event.at, event.who, event.what, event.words, event.state, event.run_id)
    alike = select(*columns, func.count().label("cases")).where(event.regression_id.in_(ids)).group_by(*columns)
    found = session.execute(alike.order_by(event.at, func.max(event.id)))
    return [CommonEvent(one.at, one.who, one.what, one.words, one.state, one.run_id, one.cases) for one in found.all()]


def summary(events: Sequence[RegressionEvent]) -> list[LaterChange]:
    """Events in words; one that several regressions have is said once."""
    said = {(event.who, event.what, event.words): event.at for event in reversed(events)}
    found = [
        LaterChange(at, who, f"{what} {words}" if what in _WITH_OBJECT else f"{what}: {words}" if words else what)
        for (who, what, words), at in said.items()
    ]
    return sorted(found, key=lambda one: one.at)


_WITH_OBJECT = (Action.ASSIGN.value, Action.DUE.value)  # "assigned to bob", "due on 2026-12-01"
