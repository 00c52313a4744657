"""Histories that are looked at as data arrives, and the change points that this leaves in the ledger.

What was looked at is marked on its run, in the transaction that stores what was found: after a restart nothing is
forgotten, and nothing is found twice.  While numbers are looked at no transaction is open for writing.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import UNSCANNED, ChangePoint, Revision, Run, Target, VerdictRow
from service.domain.changepoints import Change, Level
from service.domain.changepoints.matching import MISSES, Known
from service.domain.changepoints.scan import LONG, SHORT, Found, closely, limits_of, worth_a_look
from service.domain.changepoints.series_table import Histories, Name
from service.domain.series import SeriesKey
from service.domain.states import BaselineKind, PointState
from service.domain.verdicts.judge import Outcome
from service.ledger.backoff import backoff
from service.ledger.calibration.quarantines import quarantined
from service.ledger.changepoints.follow_up import follow_news, policy_of
from service.ledger.changepoints.load import Mainline, histories, mainline
from service.ledger.locking import insert_if_absent, lock
from service.ledger.series import on_device, series_ids

log = structlog.get_logger()

FEW_RUNS = 8  # with more news than these everything is looked at
MAX_S = 10.0  # after which no other look begins: control has other duties
SOME = 500  # databases limit how many parameters a statement may have


def look_due() -> None:
    """Look at every history that has news, and go on with its points and with those whose search has ended."""
    with reading() as session:
        due = _due(session)
    until = time.monotonic() + MAX_S
    for (target_id, device), runs in due.items():
        key = "history", target_id, device
        if backoff.should_skip(key):
            continue
        if time.monotonic() > until:  # many targets were measured long before anybody looked: the rest comes next time
            break
        try:
            looked(target_id, device, runs)
            backoff.succeeded(key)
        except Exception:  # what one target has must not keep the others from being looked at
            backoff.failed(key)
            log.exception("a history could not be looked at", target=target_id, device=device)
    follow_news(due.keys())


def _due(session: Session) -> dict[tuple[int, str], list[int]]:
    """The runs of the mainline that are done and that no look has seen, by target and device."""
    rows = session.execute(
        select(Run.target_id, Run.device, Run.id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(UNSCANNED, Revision.ordinal.is_not(None))
        .order_by(Run.target_id, Run.device, Run.id)
    )
    due: dict[tuple[int, str], list[int]] = {}
    for target_id, device, run_id in rows:
        due.setdefault((target_id, device), []).append(run_id)
    return due


def looked(target_id: int, device: str, runs: Sequence[int]) -> bool:
    """Look at the histories of a target on a device, now that there are these runs.

    Where somebody else looked meanwhile, nothing is kept: the look comes again, if it is still wanted.  Whether it was
    kept.
    """
    with reading() as session:
        look = _look(session, target_id, device, runs)
    with transaction() as session:
        return _keep(session, look, runs)


@dataclass(frozen=True)
class Look:
    """What a look at a target on a device found."""

    measured: Mainline
    last_point: int  # the newest that was stored when it began
    found: Mapping[Name, Found]


def _look(session: Session, target_id: int, device: str, runs: Sequence[int]) -> Look:
    measured = mainline(session, target_id, device)
    policy = policy_of(session, session.get_one(Target, target_id), device)
    known = known_points(session, measured)
    table = histories(session, measured, newest=SHORT)
    limits = limits_of(table, policy)
    recent = {one.run_id for one in measured.runs if measured.place_of[one.revision_id] >= table.first}
    if len(runs) > FEW_RUNS or not recent.issuperset(runs):
        close = histories(session, measured)
    else:
        picked = worth_a_look(table, known, limits, key=runs[-1])
        close = histories(session, measured, newest=LONG, only=picked)
    left_out = quarantined(session, target_id, device, policy, {*table.names, *close.names})
    if not limits.keys() >= set(close.names):  # what was measured long ago, and not lately
        limits = limits_of(close, policy) | limits
    found = closely(close, table, known, limits, left_out, _steady(session, table))
    return Look(measured, _last_point(session, target_id, device), found)


def _steady(session: Session, table: Histories) -> set[Name]:
    """The series that the newest revision's own pair found steady: far more exact than times of two sessions."""
    runs = {run_id for run_id in table.runs[:, -1:].ravel().tolist() if run_id}
    rows = session.execute(
        select(VerdictRow.provider, VerdictRow.case)
        .where(VerdictRow.run_id.in_(runs), VerdictRow.baseline_kind == BaselineKind.PARENT)
        .where(VerdictRow.outcome == Outcome.STEADY.value)
    )
    return {(provider, case) for provider, case in rows}


def known_points(session: Session, measured: Mainline) -> dict[Name, list[Known]]:
    """The stored points of each series, oldest first.  Those of revisions that left the mainline have no place."""
    rows = session.scalars(
        select(ChangePoint)
        .join(ChangePoint.series)
        .where(on_device(measured.target_id, measured.device))
        .order_by(ChangePoint.id)
    )
    known: dict[Name, list[Known]] = {}
    for row in rows:
        if (place := measured.place_of.get(row.revision_id)) is not None:
            one = Known(row.id, place, row.ratio, row.missed_scans, row.state is PointState.OPEN)
            known.setdefault((row.provider, row.case), []).append(one)
    return known


def _last_point(session: Session, target_id: int, device: str) -> int:
    newest = select(func.max(ChangePoint.id)).join(ChangePoint.series).where(on_device(target_id, device))
    return session.scalar(newest) or 0


# -- keeping


def _keep(session: Session, look: Look, runs: Sequence[int]) -> bool:
    measured = look.measured
    lock(session, measured.target_id)
    if _last_point(session, measured.target_id, measured.device) != look.last_point or _looked_at(session, runs):
        return False
    now = clock(session)
    for some in _some(runs):
        session.execute(update(Run).where(Run.id.in_(some)).values(scanned_at=now))
    rows = _rows(session, look.found.values())
    key_of = {
        name: SeriesKey.of(measured.target_id, measured.device, *name)
        for name, found in look.found.items()
        if found.matched.new
    }
    series = series_ids(session, key_of.values())
    for name, found in look.found.items():
        for change in found.matched.new:
            _add(session, measured, series[key_of[name]], change, found.baseline.get(change.ordinal), now)
        for point_id, change in found.matched.again:
            _seen_again(rows[point_id], change)
        for point_id in found.matched.missed:
            _missed(rows[point_id])
    if new := sum(len(found.matched.new) for found in look.found.values()):
        log.info("change points found", target=measured.target_id, device=measured.device, points=new)
    return True


def _looked_at(session: Session, runs: Sequence[int]) -> bool:
    """Has somebody looked with any of these runs?  What one look misses must not count twice."""
    known = (select(Run.id).where(Run.id.in_(some), Run.scanned_at.is_not(None)).limit(1) for some in _some(runs))
    return any(session.scalar(one) is not None for one in known)


def _some(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start : start + SOME] for start in range(0, len(ids), SOME))


def _rows(session: Session, found: Iterable[Found]) -> dict[int, ChangePoint]:
    """The stored points that a look has something to say of."""
    touched = [(one.matched.missed, [point_id for point_id, _ in one.matched.again]) for one in found]
    ids = sorted({point_id for missed, again in touched for point_id in (*missed, *again)})
    rows: dict[int, ChangePoint] = {}
    for some in _some(ids):
        rows |= {row.id: row for row in session.scalars(select(ChangePoint).where(ChangePoint.id.in_(some)))}
    return rows


def _add(
    session: Session, measured: Mainline, series_id: int, change: Change, baseline: float | None, now: float
) -> None:
    values: dict[str, Any] = {
        "series_id": series_id,
        "revision_id": measured.line[change.ordinal].revision_id,
        "before_id": measured.line[change.before].revision_id,
        "ratio": change.ratio,
        "low": change.low,
        "high": change.high,
        "p": change.p,
        "level": change.level.value,
        "state": PointState.OPEN,
        "missed_scans": 0,
        "found_at": now,
    }
    if baseline is not None:
        values |= {"state": PointState.CLOSED, "reason": f"the baseline moved, not this: {_by(baseline)}"}
    # One of the same revision in the other direction may be there already: it stays, as it was first.
    insert_if_absent(session, ChangePoint, ("series_id", "revision_id"), values)


def _by(ratio: float) -> str:
    return f"SOTA is {abs(ratio - 1) * 100:.1f} % {'slower' if ratio > 1 else 'faster'} from here on"


def _seen_again(row: ChangePoint, change: Change) -> None:
    """A point is kept as it was first seen, until more data make it one that may block."""
    row.missed_scans = 0
    if change.level is Level.BLOCK and row.level != Level.BLOCK:
        row.level, row.ratio = change.level.value, change.ratio
        row.low, row.high, row.p = change.low, change.high, change.p


def _missed(row: ChangePoint) -> None:
    row.missed_scans += 1
    if row.missed_scans >= MISSES and row.state is PointState.OPEN:
        row.state = PointState.CLOSED
        row.reason = f"what was measured since does not show it: {MISSES} looks in a row did not find it again"
