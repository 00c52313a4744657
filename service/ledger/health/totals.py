"""Keep what each run came to, in numbers, when it is recorded."""

import math
from collections.abc import Collection, Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from kernels.cases import Metric, Role
from service.db.engine import clock
from service.db.models import CalibrationTotals, Measurement, Run, RunTotals, VerdictRow
from service.domain import roofline
from service.domain.metrics import metric_of
from service.domain.states import BaselineKind, CellState, Outcome
from service.domain.verdicts.calibration import Compared
from service.domain.verdicts.totals import CaseAgainstSota, JudgedCase, slower_than_wrong, totals


def note(session: Session, run: Run, verdicts: Iterable[VerdictRow]) -> None:
    """Keep the numbers of a run that has just been judged; a second time they replace the first."""
    counted = [row for row in verdicts if row.quarantined_by is None]
    slower = _slower_than_wrong(session, run, counted)
    found = totals(
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
        setattr(row, outcome.value, found.outcomes.get(outcome, 0))
    row.newly_broken, row.slower_than_wrong = found.newly_broken, found.slower_than_wrong
    row.behind, row.sota = found.behind, found.sota
    row.sota_cases, row.sota_log, row.sota_digest = 0, 0.0, None
    if found.mean is not None:
        row.sota_cases, row.sota_log, row.sota_digest = found.mean.cases, found.mean.log, found.mean.digest
    row.copy_gb_s = roofline.ceilings(run.telemetry).get("copy_gb_s")
    session.add(row)


def note_calibration(session: Session, run: Run, compared: Collection[Compared], now: float) -> None:
    """Keep the numbers of a session's comparisons of equal code."""
    row = CalibrationTotals(run_id=run.id, target_id=run.target_id, at=now, comparisons=len(compared))
    row.alarmed = sum(one.alarmed for one in compared)
    row.squares = math.fsum(math.log(one.ratio) ** 2 for one in compared if one.ratio > 0)
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
