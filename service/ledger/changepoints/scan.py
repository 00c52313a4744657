"""Scan histories when new runs arrive, and store the change points that were found.

The transaction that stores the result also marks the runs as scanned, so a restart neither loses nor repeats a scan.
No transaction is open for writing while the detector runs.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import structlog
from sqlalchemy import func, select, tuple_, update
from sqlalchemy.orm import Session

from kernels.cases import Metric, Role
from service.db.engine import clock, reading, transaction
from service.db.models import UNSCANNED, ChangePoint, Measurement, Revision, Run, Series, Target
from service.domain.changepoints import Change, Level
from service.domain.changepoints.detector import LONGEST
from service.domain.changepoints.matching import MAX_REFUTED, KnownPoint, Refutation
from service.domain.changepoints.scan import SeriesScan, limits_of, scan_series, select_series
from service.domain.changepoints.series_table import Histories
from service.domain.changepoints.step_test import NEAR
from service.domain.metrics import SeriesKey, metric_of
from service.domain.states import PointReason, PointState
from service.domain.verdicts.samples import Name
from service.domain.verdicts.session_result import same_code
from service.ledger.calibration.quarantines import quarantined
from service.ledger.changepoints.follow_up import close, follow_scanned, policy_of
from service.ledger.changepoints.load import Mainline, histories, mainline
from service.ledger.locking import backoff, insert_if_absent, lock
from service.ledger.targets import on_device, series_ids

log = structlog.get_logger()

T = TypeVar("T")
RunCase = tuple[int, str, str]  # run, provider and case

FEW_RUNS = 8  # with more new runs than these, whole histories of all series are scanned
MAX_S = 10.0  # after which no other scan begins: control has other tasks
BATCH = 500  # keys in one statement; databases limit the number of parameters


def scan_due() -> None:
    """Scan every history that has new runs, then follow up its points and those whose bisection has ended."""
    with reading() as session:
        due = _due(session)
    until = time.monotonic() + MAX_S
    for (target_id, device), runs in due.items():
        key = "history", target_id, device
        if backoff.should_skip(key):
            continue
        if time.monotonic() > until:  # the rest is scanned next time
            break
        try:
            scan(target_id, device, runs)
            backoff.succeeded(key)
        except Exception:  # the failure of one target must not stop the others
            backoff.failed(key)
            log.exception("scan of a history failed", target=target_id, device=device)
    follow_scanned(due.keys())


def _due(session: Session) -> dict[tuple[int, str], list[int]]:
    """The finished runs of the mainline that were not scanned yet, by target and device."""
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


def scan(target_id: int, device: str, runs: Sequence[int]) -> bool:
    """Scan the histories of a target on a device with these new runs.  Returns whether the result was stored.

    It is not stored if another process scanned meanwhile; the runs are then scanned again if that is still needed.
    """
    with reading() as session:
        result = _scan(session, target_id, device, runs)
    with transaction() as session:
        return _store(session, result, runs)


@dataclass(frozen=True)
class Scan:
    """Result of the scan of a target on a device."""

    measured: Mainline
    last_point: int  # id of the newest point that was stored when it began
    found: Mapping[Name, SeriesScan]
    same_code: Collection[tuple[Name, int]]  # series and places with the same code before and after

    def why_none(self, name: Name, change: Change) -> dict[str, Any] | None:
        """Why a change is none of the code, as columns of its point; None if it may be."""
        if (baseline := self.found[name].baseline.get(change.ordinal)) is not None:
            return {"reason_code": PointReason.BASELINE.value, "reason_args": {"ratio": baseline}}
        if (name, change.ordinal) in self.same_code:
            return {"reason_code": PointReason.SAME_CODE.value, "reason_args": {}}
        return None


def _scan(session: Session, target_id: int, device: str, runs: Sequence[int]) -> Scan:
    measured = mainline(session, target_id, device)
    policy = policy_of(session, session.get_one(Target, target_id), device)
    points = known_points(session, measured)
    table = histories(session, measured, newest=NEAR)
    limits = limits_of(table, policy)
    recent = {run.run_id for run in measured.runs if measured.place_of[run.revision_id] >= table.first}
    if len(runs) > FEW_RUNS or not recent.issuperset(runs):
        close = histories(session, measured)
    else:
        selected = select_series(table, points, limits)
        close = histories(session, measured, newest=LONGEST, only=selected)
    left_out = quarantined(session, target_id, device, policy, {*table.names, *close.names})
    if not limits.keys() >= set(close.names):  # series that were not measured lately
        limits = limits_of(close, policy) | limits
    scans = scan_series(close, table, points, limits, left_out)
    return Scan(measured, _last_point(session, target_id, device), scans, _same_code(session, close, table, scans))


def _same_code(
    session: Session, close: Histories, table: Histories, scans: Mapping[Name, SeriesScan]
) -> set[tuple[Name, int]]:
    """The new steps that a series has alone although the same code ran on both sides."""
    sides = {
        (name, change.ordinal): [
            (_run_of((close, table), name, place), *name) for place in (change.before, change.ordinal)
        ]
        for name, scanned in scans.items()
        for change in scanned.matched.new
        if change.ordinal in scanned.alone and metric_of(name[1]) is Metric.KERNEL
    }
    facts = _facts(session, [side for both in sides.values() for side in both])
    return {step for step, (before, after) in sides.items() if same_code(facts.get(before, {}), facts.get(after, {}))}


def _run_of(tables: Iterable[Histories], name: Name, place: int) -> int:
    """The run that gave the value of a series at a place; 0 for none."""
    with_place = [some for some in tables if name in some.row_of and place >= some.first]
    return max((int(some.runs[some.row_of[name], place - some.first]) for some in with_place), default=0)


def _facts(session: Session, measured: Sequence[RunCase]) -> dict[RunCase, Mapping[str, Any]]:
    of_case = Measurement.run_id, Measurement.provider, Measurement.case
    causes: dict[RunCase, Mapping[str, Any]] = {}
    for some in _batches(measured):
        rows = select(*of_case, Measurement.facts).where(Measurement.role == Role.HEAD.value)
        causes |= {(run, *name): facts for run, *name, facts in session.execute(rows.where(tuple_(*of_case).in_(some)))}
    return causes


def known_points(session: Session, measured: Mainline) -> dict[Name, list[KnownPoint]]:
    """The stored points of each series, oldest first, without those of revisions that left the mainline."""
    of_point = ChangePoint.id, ChangePoint.revision_id, ChangePoint.ratio, ChangePoint.refuted_scans
    rows = session.execute(
        select(Series.provider, Series.printed, *of_point, ChangePoint.state, ChangePoint.course)
        .select_from(ChangePoint)
        .join(ChangePoint.series)
        .where(on_device(measured.target_id, measured.device))
        .order_by(ChangePoint.id)
    )
    points: dict[Name, list[KnownPoint]] = {}
    for provider, case, point_id, revision_id, ratio, refuted, state, course in rows:
        if (place := measured.place_of.get(revision_id)) is not None:
            until = measured.place_of_sha.get(course[-1]["revision"], place) if course else None
            point = KnownPoint(point_id, place, ratio, refuted, state, until)
            points.setdefault((provider, case), []).append(point)
    return points


def _last_point(session: Session, target_id: int, device: str) -> int:
    newest = select(func.max(ChangePoint.id)).join(ChangePoint.series).where(on_device(target_id, device))
    return session.scalar(newest) or 0


# -- storing


def _store(session: Session, scanned: Scan, runs: Sequence[int]) -> bool:
    measured = scanned.measured
    lock(session, measured.target_id)
    if _last_point(session, measured.target_id, measured.device) != scanned.last_point or _were_scanned(session, runs):
        return False
    now = clock(session)
    for some in _batches(runs):
        session.execute(update(Run).where(Run.id.in_(some)).values(scanned_at=now))
    rows = _rows(session, scanned.found.values())
    key_of = {
        name: SeriesKey.of(measured.target_id, measured.device, *name)
        for name, scan in scanned.found.items()
        if scan.matched.new
    }
    series = series_ids(session, key_of.values())
    for name, scan in scanned.found.items():
        for change in scan.matched.new:
            _add(session, measured, series[key_of[name]], change, scanned.why_none(name, change), now)
        for point_id, change in scan.matched.again:
            _seen_again(rows[point_id], change, measured)
        for point_id, leak_id in scan.matched.parts:
            row = rows[point_id]
            close(row, PointReason.PART, leak=leak_id)
            row.refuted_scans = 0
        for point_id, evidence in scan.matched.refuted:
            _refuted(rows[point_id], evidence)
        for point_id in scan.matched.lost:
            _lost(rows[point_id])
        for point_id in scan.matched.kept:
            # This scan could contradict the point, and did not.
            rows[point_id].refuted_scans = 0
    if new := sum(len(scan.matched.new) for scan in scanned.found.values()):
        log.info("change points found", target=measured.target_id, device=measured.device, points=new)
    return True


def _were_scanned(session: Session, runs: Sequence[int]) -> bool:
    """Whether another process has scanned any of these runs; evidence against a point must not count twice."""
    statements = (
        select(Run.id).where(Run.id.in_(some), Run.scanned_at.is_not(None)).limit(1) for some in _batches(runs)
    )
    return any(session.scalar(statement) is not None for statement in statements)


def _batches(ids: Sequence[T]) -> Iterator[Sequence[T]]:
    return (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))


def _rows(session: Session, scans: Iterable[SeriesScan]) -> dict[int, ChangePoint]:
    """The stored points that a scan found again, as parts of leaks, contradicted, lost, or contradicted no more."""
    matched = [scan.matched for scan in scans]
    touched = {point_id for match in matched for point_id, _ in (*match.again, *match.parts, *match.refuted)}
    ids = sorted(touched.union(*((*match.lost, *match.kept) for match in matched)))
    rows: dict[int, ChangePoint] = {}
    for some in _batches(ids):
        rows |= {row.id: row for row in session.scalars(select(ChangePoint).where(ChangePoint.id.in_(some)))}
    return rows


def _add(
    session: Session, measured: Mainline, series_id: int, change: Change, why_none: dict[str, Any] | None, now: float
) -> None:
    values: dict[str, Any] = {
        "series_id": series_id,
        "revision_id": measured.line[change.ordinal].revision_id,
        "before_id": measured.line[change.before].revision_id,
        "ratio": change.ratio,
        "low": change.low,
        "high": change.high,
        "p": change.p,
        "revisions": change.revisions,
        "course": _course(measured, change),
        "level": change.level.value,
        "state": PointState.OPEN,
        "refuted_scans": 0,
        "found_at": now,
        "followed_by": len(measured.line) - 1 - change.ordinal,
    }
    if why_none is not None:
        values |= {"state": PointState.CLOSED} | why_none
    # A point of the same revision in the other direction may be stored already; it stays.
    insert_if_absent(session, ChangePoint, ("series_id", "revision_id"), values)


def _course(measured: Mainline, change: Change) -> list[dict[str, Any]] | None:
    if not change.is_leak:
        return None
    return [{"revision": measured.line[part.ordinal].sha, "ratio": part.ratio} for part in change.course]


def _seen_again(row: ChangePoint, change: Change, measured: Mainline) -> None:
    """Keep a step as it was first found, until more data raise its level to BLOCK; a leak grows, and never shrinks."""
    row.refuted_scans = 0
    row.followed_by = len(measured.line) - 1 - measured.place_of[row.revision_id]
    if change.is_leak:
        _grow(row, change, measured)
    elif not row.course and change.level is Level.BLOCK and row.level != Level.BLOCK:
        _replace(row, change, measured)


def _grow(row: ChangePoint, leak: Change, measured: Mainline) -> None:
    """Let a point become a leak or go on.  A long leak leaves the scanned revisions, which then show a part of it."""
    before = measured.place_of.get(row.before_id)
    if before is not None and leak.before < before:
        row.before_id = measured.line[leak.before].revision_id
    if not row.course or leak.ratio >= row.ratio:
        _replace(row, leak, measured)
        return
    end = measured.line[leak.course[-1].ordinal]
    if measured.place_of_sha.get(row.course[-1]["revision"], -1) < measured.place_of[end.revision_id]:
        row.course = [*row.course[:-1], {"revision": end.sha, "ratio": row.ratio}]


def _replace(row: ChangePoint, change: Change, measured: Mainline) -> None:
    row.level, row.ratio = change.level.value, change.ratio
    row.low, row.high, row.p = change.low, change.high, change.p
    row.revisions, row.course = change.revisions, _course(measured, change)


def _refuted(row: ChangePoint, evidence: Refutation) -> None:
    row.refuted_scans += 1
    if row.refuted_scans >= MAX_REFUTED and row.state is PointState.OPEN:
        close(row, PointReason.CONTRADICTED, **asdict(evidence), reported=row.ratio)


def _lost(row: ChangePoint) -> None:
    row.refuted_scans += 1
    if row.refuted_scans >= MAX_REFUTED and row.state is PointState.OPEN:
        close(row, PointReason.LOST)
