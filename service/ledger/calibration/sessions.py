"""What a recorded session adds: the totals of its run, comparisons of equal code, and the variance of its cases.

Equal code is compared by A/A controls, and in a calibration by two builds of one source.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from sqlalchemy import ColumnElement, func, insert, select
from sqlalchemy.orm import Session

from kernels.cases import Metric, Role
from service.db.engine import clock
from service.db.models import Calibration, CalibrationTotals, Measurement, Run, RunTotals, Series, VerdictRow, unpack
from service.domain import roofline
from service.domain.metrics import SeriesKey, metric_of
from service.domain.phases import seconds_by_phase
from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind, CellState, Equal, Outcome, Purpose, Rounds, RunState
from service.domain.stats.case_variances import PastComparison, learn
from service.domain.verdicts import calibration
from service.domain.verdicts.analysis import NONE_KNOWN, KnownVariances
from service.domain.verdicts.calibration import Compared, variance_of
from service.domain.verdicts.samples import Name, Pairs
from service.domain.verdicts.session_result import SessionResult
from service.domain.verdicts.totals import CaseAgainstSota, JudgedCase, slower_than_wrong, totals
from service.ledger.calibration import quarantines
from service.ledger.targets import series_ids

SIDES = (Role.HEAD, Role.PARENT)
SESSIONS = 20  # the newest of the same target on the same worker, and so many calibrations
MAX_AGE_S = 90 * 86400.0  # a worker's whole history is long, and an old session says little of the machine today
_OF_SUITES = (Purpose.WATCH, Purpose.CALIBRATION)  # a bisection measures few cases, and would crowd out the others


def note_totals(session: Session, run: Run, verdicts: Iterable[VerdictRow]) -> None:
    """Keep the numbers of a run that has just been judged; a second time they replace the first."""
    counted = [row for row in verdicts if row.quarantined_by is None]
    slower = _slower_than_wrong(session, run, counted)
    summed = totals(
        [
            JudgedCase(Outcome(row.outcome), bool(row.known_before), (row.provider, row.case) in slower)
            for row in counted
            if row.baseline_kind == BaselineKind.PARENT
        ],
        [_against(row) for row in counted if row.baseline_kind == BaselineKind.SOTA],
    )
    row = session.get(RunTotals, run.id) or RunTotals(run_id=run.id)
    row.target_id, row.device, row.purpose, row.stack_id = run.target_id, run.device, run.purpose, run.stack_id
    row.at = clock(session) if run.finished_at is None else run.finished_at
    row.took_s = row.at - run.started_at if run.attempt == 1 and run.started_at is not None else None
    for outcome in Outcome:
        setattr(row, outcome.value, summed.outcomes.get(outcome, 0))
    row.newly_broken, row.slower_than_wrong = summed.newly_broken, summed.slower_than_wrong
    row.behind, row.sota = summed.behind, summed.sota
    row.sota_cases, row.sota_log, row.sota_digest = 0, 0.0, None
    if summed.mean is not None:
        row.sota_cases, row.sota_log, row.sota_digest = summed.mean.cases, summed.mean.log, summed.mean.digest
    row.copy_gb_s = roofline.ceilings(run.telemetry).get("copy_gb_s")
    row.seconds = seconds_by_phase(run.telemetry) or None
    session.add(row)


def note_calibration(session: Session, run: Run, compared: Collection[Compared], now: float) -> None:
    """Keep the numbers of a session's comparisons of equal code."""
    row = CalibrationTotals(run_id=run.id, target_id=run.target_id, at=now, comparisons=len(compared))
    row.alarmed = sum(comparison.alarmed for comparison in compared)
    row.squares = math.fsum(math.log(comparison.ratio) ** 2 for comparison in compared if comparison.ratio > 0)
    session.merge(row)


def _slower_than_wrong(session: Session, run: Run, verdicts: Iterable[VerdictRow]) -> set[tuple[str, str]]:
    """The cases, by provider, that are slower than their parent, whose results were wrong."""
    slower = {
        (row.provider, row.case)
        for row in verdicts
        if row.baseline_kind == BaselineKind.WRONG_PARENT
        and slower_than_wrong(Outcome(row.outcome), row.ratio, (row.reason_args or {}).get("limit"))
    }
    if not slower:
        return slower
    of_parent = Measurement.run_id == run.id, Measurement.role == Role.PARENT, Measurement.state == CellState.INVALID
    wrong = session.execute(select(Measurement.provider, Measurement.case).where(*of_parent))
    return slower & {(provider, case) for provider, case in wrong}


def _against(row: VerdictRow) -> CaseAgainstSota:
    timed = row.ratio if metric_of(row.case) is Metric.KERNEL else None
    return CaseAgainstSota(row.provider, row.case, row.baseline or "", timed, bool(row.behind_sota))


def compared(session: Session, run: Run, result: SessionResult, policy: Policy, variances: KnownVariances) -> None:
    """Store a session's comparisons of equal code, and quarantine or release the cases that they are about.

    Sessions with untrusted code are ignored: whoever disturbs the controls could choose which cases are quarantined.
    """
    if not run.trusted or run.repeated:  # of a run that is measured twice, the first session counts
        return
    comparisons = calibration.compared(result.taken, policy, variances, calibration=run.purpose is Purpose.CALIBRATION)
    if not comparisons:
        return
    now = clock(session)
    keys = [SeriesKey.of(run.target_id, run.device, comparison.provider, comparison.case) for comparison in comparisons]
    series = series_ids(session, keys)
    rows = [_row(run, series[key], comparison, now) for key, comparison in zip(keys, comparisons, strict=True)]
    session.execute(insert(Calibration), rows)
    note_calibration(session, run, comparisons, now)
    quarantines.review(session, run.target_id, run.device, comparisons, policy)


def _row(run: Run, series_id: int, comparison: Compared, now: float) -> dict[str, object]:
    return {
        "run_id": run.id,
        "series_id": series_id,
        "worker": run.worker,
        "ratio": comparison.ratio,
        "p": comparison.p,
        "trials": comparison.trials,
        "alarmed": comparison.alarmed,
        "kind": comparison.kind,
        "at": now,
    }


def calibrations_before(session: Session, run: Run) -> int:
    """Number of calibrations of the target on the worker that compared two builds before this run began."""
    if run.worker is None or run.started_at is None:
        return 0
    builds = Run.id.in_(select(Calibration.run_id).where(Calibration.kind == Equal.BUILD))
    of_target = (*_earlier(run), Run.purpose == Purpose.CALIBRATION)
    return session.scalar(select(func.count(Run.id)).where(*of_target, builds)) or 0


def _earlier(run: Run) -> tuple[ColumnElement[bool], ...]:
    """Sessions of the same target on the same worker that ended before this run began."""
    same = (Run.worker == run.worker, Run.target_id == run.target_id, Run.device == run.device)
    lately = (Run.finished_at < run.started_at, Run.finished_at > (run.started_at or 0.0) - MAX_AGE_S)
    return *same, *lately, Run.state == RunState.DONE, Run.trusted.is_(True), Run.repeated.is_(False)


def known_variances(session: Session, run: Run, policy: Policy, baseline: str | None = None) -> KnownVariances:
    """By metric, from the comparisons of equal code in sessions that ended before this run began.

    With the first session of the run, if this is its second one; `baseline` is what it is compared with, where that is
    not stored yet.

    So the worker that asks for more trials, the judge, and a later replay know the same.  A run that was measured twice
    is left out: its rows are of the first session, maybe of another worker, whose controls were off.
    """
    if run.worker is None or run.started_at is None:
        return NONE_KNOWN
    compared = Run.id.in_(select(Calibration.run_id))  # not those that ended every case after one trial
    earlier = select(Run.id).where(*_earlier(run), Run.purpose.in_(_OF_SUITES), compared)
    earlier = earlier.order_by(Run.finished_at.desc(), Run.id.desc())
    # Calibrations apart: on a busy worker none might be among the newest sessions.
    calibrations = earlier.where(Run.purpose == Purpose.CALIBRATION)
    newest = {run_id for rows in (earlier, calibrations) for run_id in session.scalars(rows.limit(SESSIONS))}
    columns = (
        Series.metric,
        Series.provider,
        Series.printed,
        Calibration.run_id,
        Calibration.kind,
        Calibration.ratio,
        Calibration.p,
        Calibration.trials,
    )
    rows = select(*columns).join(Calibration.series).where(Calibration.run_id.in_(newest))
    rows = rows.where(Calibration.worker == run.worker, Calibration.at < run.started_at).order_by(Calibration.id)
    past = defaultdict[Metric, list[PastComparison]](list)
    for metric, provider, case, run_id, kind, ratio, p, trials in session.execute(rows):
        variance = variance_of(ratio, p, trials)
        if variance is not None and metric.varies:
            copy = kind is Equal.COPY
            past[metric].append(PastComparison(run_id, (provider, case), math.log(ratio), variance, trials - 1, copy))
    learned = {metric: learn(some, policy.screening[0] - 1) for metric, some in past.items()}
    first = _first_session(session, run, baseline or run.baseline)
    return {
        metric: replace(variances, first={name: own for name, own in first.items() if metric_of(name[1]) is metric})
        for metric, variances in learned.items()
        if variances is not None
    }


def _first_session(session: Session, run: Run, baseline: str | None) -> dict[Name, tuple[float, ...]]:
    """The effects of all trials of the session that this one is the second of, on the same worker.

    Of the cases that were compared with the same revision.
    """
    first = session.get(Run, run.second_of) if run.second_of is not None else None
    if first is None or first.worker != run.worker:
        return {}
    of_parent = (VerdictRow.run_id == first.id, VerdictRow.baseline_kind == BaselineKind.PARENT)
    verdicts = select(VerdictRow.provider, VerdictRow.case).where(*of_parent, VerdictRow.baseline == baseline)
    names = {(provider, case) for provider, case in session.execute(verdicts)}
    measured = select(Measurement.role, Measurement.provider, Measurement.case, Measurement.samples).where(
        Measurement.run_id == first.id,
        Measurement.role.in_(SIDES),
        Measurement.state == CellState.MEASURED,
    )
    sides = defaultdict[Name, dict[str, tuple[Rounds, ...]]](dict)
    for role, provider, case, samples in session.execute(measured):
        if (provider, case) in names and samples is not None:
            screened, confirmed, _ = unpack(samples)
            sides[provider, case][role] = (*screened, *confirmed)
    pairs = {name: Pairs(both[Role.HEAD], both[Role.PARENT]) for name, both in sides.items() if len(both) == len(SIDES)}
    return {name: tuple(own.effects()) for name, own in pairs.items()}
