"""Change the state of regressions; every change is an event in their history.

Every change holds the lock of the target, which serialises workers, people and timers.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

import structlog
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import Bisection, Incident, RegressionEvent, RegressionRow, Revision, Run, Series, Target
from service.domain.metrics import SeriesKey
from service.domain.regressions.lifecycle import Action, Transition, changes, check_by_hand, follows, possible
from service.domain.states import OPEN_REGRESSIONS, FoundBy, RegressionState, SearchState
from service.domain.text import short
from service.errors import NotFound
from service.ledger import audit
from service.ledger.locking import lock
from service.ledger.notices import happenings
from service.ledger.regressions import listing
from service.ledger.targets import IS_SERIES, on_device, series_ids

log = structlog.get_logger()


@dataclass(frozen=True)
class Slower:
    """A confirmed slow-down of one case: its ratio, and its cause."""

    provider: str
    case: str
    ratio: float
    low: float | None = None
    high: float | None = None
    cause: str | None = None  # a service.domain.attribution.causes.Kind
    why: str | None = None


@dataclass(frozen=True)
class Opening:
    """A slow-down since the revision `good`, shown by `run` of a mainline revision.

    `culprit` is the revision that caused it, where the comparison itself names it.
    """

    run: Run
    slower: Slower
    found_by: FoundBy
    good: str | None
    culprit: str | None = None
    words: str | None = None

    @property
    def key(self) -> SeriesKey:
        return SeriesKey.of(self.run.target_id, self.run.device, self.slower.provider, self.slower.case)


def open_one(
    session: Session,
    run: Run,
    slower: Slower,
    *,
    found_by: FoundBy,
    good: str | None,
    culprit: str | None = None,
    words: str | None = None,
) -> RegressionRow:
    """The record of a slow-down, new or known, settled in its incident; one for each revision and case."""
    opening = Opening(run, slower, found_by, good, culprit, words)
    lock(session, run.target_id)
    stored = session.execute(
        select(RegressionRow)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(RegressionRow.series)
        .where(IS_SERIES)
        .where(Run.revision_id == run.revision_id, RegressionRow.found_by == found_by)
        .limit(1),
        asdict(opening.key),
    ).scalar_one_or_none()
    if stored is not None:
        return stored
    [row] = open_all(session, [opening], clock(session))
    listing.settle(session, [row.incident_id], row.opened_at)
    return row


def open_all(session: Session, openings: Sequence[Opening], now: float) -> list[RegressionRow]:
    """As `open_one`; the caller holds the lock, knows that there are no records yet, and settles the incidents."""
    series = series_ids(session, [opening.key for opening in openings])
    joined = dict[tuple[int, FoundBy, str | None], int]()  # the incident, looked up once for what one run showed alike
    rows = list[RegressionRow]()
    for opening in openings:
        alike = opening.run.id, opening.found_by, opening.culprit
        if alike not in joined:
            revision = session.get_one(Revision, opening.run.revision_id)
            joined[alike] = listing.incident_for(session, opening.run, revision, opening.found_by, opening.culprit, now)
        rows.append(_row(opening, series[opening.key], joined[alike], now))
        session.add(rows[-1])
    session.flush()
    for opening, row in zip(openings, rows, strict=True):
        change(session, row, Transition(Action.OPEN, words=opening.words, run_id=opening.run.id), now)
    return rows


def _row(opening: Opening, series_id: int, incident_id: int, now: float) -> RegressionRow:
    run, slower = opening.run, opening.slower
    return RegressionRow(
        series_id=series_id,
        run_id=run.id,
        incident_id=incident_id,
        found_by=opening.found_by,
        ratio=slower.ratio,
        low=slower.low,
        high=slower.high,
        state=RegressionState.OPEN,
        opened_at=now,
        good=opening.good,
        culprit=opening.culprit,
        cause_kind=slower.cause,
        cause_text=slower.why,
    )


def change(session: Session, row: RegressionRow, transition: Transition, now: float) -> None:
    """Change the state of a regression, and store the event.  The caller holds the lock and settles the incident."""
    shown_by = row.fixed_by if transition.action is Action.REOPEN else transition.run_id  # the fix that a person doubts
    row.state = follows(row.state, transition.action)
    for column, value in changes(transition, now).items():
        setattr(row, column, value)
    session.add(
        RegressionEvent(
            regression_id=row.id,
            at=now,
            who=transition.who,
            what=transition.action.value,
            state=row.state,
            words=transition.words,
            run_id=shown_by,
        )
    )
    happenings.regression_changed(session, row, transition, now)


# -- by people


def apply(session: Session, regression_id: int, transition: Transition) -> RegressionRow:
    """Apply what a person does to one regression.  Raises NotFound, BadInput or Conflict, each with a remedy."""
    check_by_hand(transition, clock(session))
    whose = select(Series.target_id).join(RegressionRow.series).where(RegressionRow.id == regression_id)
    target_id = session.scalar(whose)
    if target_id is None:
        raise NotFound("regression", regression_id, "`kernelwatch regression list` lists them.")
    [row] = _changed(session, target_id, RegressionRow.id == regression_id, transition)
    _record(session, "regression", regression_id, target_id, transition)
    return row


def apply_to_incident(session: Session, incident_id: int, transition: Transition) -> list[RegressionRow]:
    """The same for all regressions of an incident in a state that allows it.  Raises Conflict where there is none."""
    check_by_hand(transition, clock(session))
    target_id = session.scalar(select(Incident.target_id).where(Incident.id == incident_id))
    if target_id is None:
        raise NotFound("incident", incident_id, "`kernelwatch regression list` lists them.")
    rows = _changed(session, target_id, RegressionRow.incident_id == incident_id, transition)
    _record(session, "incident", incident_id, target_id, transition)
    return rows


def _record(session: Session, noun: str, number: int, target_id: int, transition: Transition) -> None:
    name = session.get_one(Target, target_id).name
    details = {"as": transition.who, "text": transition.words}
    audit.record(
        session, f"{noun}.{transition.action.name.lower()}", target=name, of=f"{noun} {number}", details=details
    )


def _changed(
    session: Session, target_id: int, which: ColumnElement[bool], transition: Transition
) -> list[RegressionRow]:
    lock(session, target_id)
    rows = _fresh(session, which)
    able = [row for row in rows if possible(row.state, transition.action)]
    now = clock(session)
    for row in able or rows:  # where no state allows it, the first raises
        change(session, row, transition, now)
    listing.settle(session, [row.incident_id for row in able], now)
    return able


def _fresh(session: Session, *which: ColumnElement[bool]) -> Sequence[RegressionRow]:
    """Read again, because they may have been read before the lock was acquired."""
    rows = select(RegressionRow).where(*which).order_by(RegressionRow.id)
    return session.scalars(rows.execution_options(populate_existing=True)).all()


def fixes_doubted_at(session: Session, ids: Collection[int]) -> dict[int, float]:
    """The times at which a person last reopened each of these after a measurement had closed it.

    Only measurements after that time count.
    """
    doubted = select(RegressionEvent.regression_id, func.max(RegressionEvent.at)).where(
        RegressionEvent.regression_id.in_(ids),
        RegressionEvent.what == Action.REOPEN.value,
        RegressionEvent.run_id.is_not(None),
    )
    return dict(session.execute(doubted.group_by(RegressionEvent.regression_id)).all())


# -- by time, by bisections and by the mainline


def expire_due() -> int:
    """Reopen the regressions whose acknowledgement has ended.  Returns how many there were."""
    with reading() as session:
        due = (RegressionRow.state == RegressionState.ACKNOWLEDGED, RegressionRow.until <= clock(session))
        whose = select(Series.target_id).join(RegressionRow.series).where(*due)
        targets = session.scalars(whose.distinct()).all()
    expired = 0
    for target_id in sorted(targets):
        try:
            expired += _expire(target_id)
        except Exception:  # one target must not hold up the others
            log.exception("acknowledgements could not be ended", target=target_id)
    return expired


def _expire(target_id: int) -> int:
    with transaction() as session:
        lock(session, target_id)
        now = clock(session)
        ours = RegressionRow.series.has(Series.target_id == target_id)
        accepted = (ours, RegressionRow.state == RegressionState.ACKNOWLEDGED)
        rows = _fresh(session, *accepted, RegressionRow.until <= now)
        for row in rows:
            change(session, row, Transition(Action.EXPIRE, words=row.reason), now)
            log.info("acknowledgement ended", regression=row.id)
        listing.settle(session, [row.incident_id for row in rows], now)
    return len(rows)


def search_began(session: Session, search: Bisection) -> list[RegressionRow]:
    """Mark the open regressions of a bisection as being bisected, and return them.  Idempotent."""
    words = f"bisection {search.id} searches {short(search.good)}..{short(search.bad)}"
    rows = [row for row in _searched(session, search) if row.state is RegressionState.OPEN]
    now = clock(session)
    for row in rows:
        change(session, row, Transition(Action.SEARCH, search.asked_by, words), now)
    return rows


def search_ended(
    session: Session,
    search: Bisection,
    run_id: int | None = None,
    explained: Collection[tuple[str, str]] | None = None,
) -> list[RegressionRow]:
    """Blame the culprit of an ended bisection for its regressions, or open them again.  Idempotent.

    A regression is left alone where its own comparison names another revision, or where the proof did not show its case
    to be slower (`explained` names provider and case of those that it did).  An acknowledged one is blamed as well, and
    stays acknowledged.
    """
    rows, now = _searched(session, search), clock(session)
    culprit = search.culprit if search.state is SearchState.FOUND else None
    for row in rows:
        news = row.culprit is None or row.state in (RegressionState.OPEN, RegressionState.BISECTING)
        shown = explained is None or row.name in explained
        if culprit is not None and shown and row.culprit in (None, culprit) and news:
            change(session, row, Transition(Action.BLAME, words=search.reason, culprit=culprit, run_id=run_id), now)
        elif row.state is RegressionState.BISECTING:
            change(session, row, Transition(Action.GIVE_UP, words=search.reason, run_id=run_id), now)
    return rows


def _searched(session: Session, search: Bisection) -> list[RegressionRow]:
    """The open regressions of the bisection's incident, or of its cases between its ends."""
    lock(session, search.target_id)
    later = set(search.line[1:])
    rows = (
        select(RegressionRow, Revision.sha)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(RegressionRow.series)
        .where(on_device(search.target_id, search.device), Series.printed.in_(search.cases))
        .where(RegressionRow.state.in_(OPEN_REGRESSIONS))
        .order_by(RegressionRow.id)
        .execution_options(populate_existing=True)
    )
    ours = search.incident_id
    return [row for row, sha in session.execute(rows) if sha in later or (ours and row.incident_id == ours)]


def revisions_left(session: Session, gone: Collection[int]) -> None:
    """Close the regressions of revisions that left the mainline, and reopen those that they had fixed.

    The caller holds the lock, and has cleared the places of the revisions.
    """
    of_them = select(Run.id).where(Run.revision_id.in_(gone))
    now = clock(session)
    undone = _fresh(session, RegressionRow.fixed_by.in_(of_them))
    for row in undone:
        words = "the mainline was rewritten without the revision that fixed it"
        change(session, row, Transition(Action.UNDO, words=words, run_id=row.fixed_by), now)
    left = _fresh(session, RegressionRow.run_id.in_(of_them), RegressionRow.state.in_(OPEN_REGRESSIONS))
    for row in left:
        leave(session, row, now)
    listing.settle(session, [row.incident_id for row in (*undone, *left)], now)


def leave(session: Session, row: RegressionRow, now: float) -> None:
    """Close a regression whose revision left the mainline.  What is still slow there has another record."""
    change(session, row, Transition(Action.LEAVE, words="the mainline was rewritten without its revision"), now)


def revisions_returned(session: Session, target_id: int) -> None:
    """Reopen the regressions of revisions that are back on the mainline.  The caller holds the lock."""
    back = (
        select(RegressionRow)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(RegressionRow.series)
        .where(Series.target_id == target_id, RegressionRow.state == RegressionState.FIXED)
        .where(RegressionRow.fixed_by.is_(None), Revision.ordinal.is_not(None))
        .order_by(RegressionRow.id)
    )
    rows, now = session.scalars(back.execution_options(populate_existing=True)).all(), clock(session)
    for row in rows:
        change(session, row, Transition(Action.RETURN, words="its revision is on the mainline again"), now)
    listing.settle(session, [row.incident_id for row in rows], now)
