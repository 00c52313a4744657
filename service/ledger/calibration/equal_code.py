"""Store the comparisons of equal code of each session: A/A controls, and in a calibration two builds of one source."""

from sqlalchemy import insert
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import Calibration, Run
from service.domain.metrics import SeriesKey
from service.domain.policy.policy import Policy
from service.domain.states import Purpose
from service.domain.verdicts import calibration
from service.domain.verdicts.analysis import KnownVariances
from service.domain.verdicts.calibration import Compared
from service.domain.verdicts.session_result import SessionResult
from service.ledger.calibration import quarantines
from service.ledger.health import totals
from service.ledger.renames import series_ids


def compared(session: Session, run: Run, result: SessionResult, policy: Policy, known: KnownVariances) -> None:
    """Store a session's comparisons of equal code, and quarantine or release the cases that they are about.

    Sessions with untrusted code are ignored: whoever disturbs the controls could choose which cases are quarantined.
    """
    if not run.trusted or run.repeated:  # of a run that is measured twice, the first session counts
        return
    found = calibration.compared(result.taken, policy, known, calibration=run.purpose is Purpose.CALIBRATION)
    if not found:
        return
    now = clock(session)
    keys = [SeriesKey.of(run.target_id, run.device, one.provider, one.case) for one in found]
    series = series_ids(session, keys)
    rows = [_row(run, series[key], one, now) for key, one in zip(keys, found, strict=True)]
    session.execute(insert(Calibration), rows)
    totals.note_calibration(session, run, found, now)
    quarantines.review(session, run.target_id, run.device, found, policy)


def _row(run: Run, series_id: int, one: Compared, now: float) -> dict[str, object]:
    return {
        "run_id": run.id,
        "series_id": series_id,
        "worker": run.worker,
        "ratio": one.ratio,
        "p": one.p,
        "trials": one.trials,
        "alarmed": one.alarmed,
        "kind": one.kind,
        "at": now,
    }
