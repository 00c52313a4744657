"""Queue the second session of runs that offsets of earlier sessions left open, each when its device is idle."""

import structlog
from sqlalchemy import ColumnElement, TextClause, exists, select
from sqlalchemy.orm import Session, aliased

from service.db.engine import clock, reading, transaction
from service.db.models import AWAITS_SECOND, Run, Target, Worker
from service.domain.states import Purpose, RunState
from service.domain.text import is_recent
from service.ledger.intake.calibrations import LATELY_S
from service.ledger.locking import lock, within_budget
from service.ledger.runs import queue, revisions

log = structlog.get_logger()

MAX_AGE_S = 7 * 86400.0  # nobody waits for the answer of an older run any more


def plan_due() -> int:
    """Queue what is due, at most one session for each device, the newest run first.  Returns how many."""
    with reading() as session:
        due = session.execute(select(Run.id, Run.target_id).where(*_due(clock(session))).order_by(Run.id.desc())).all()
    return sum(_queued(run_id, target_id) for run_id, target_id in within_budget(due))


def _due(now: float) -> tuple[ColumnElement[bool] | TextClause, ...]:
    """The runs that await a second session, on devices with a worker that has nothing to do."""
    other, worker = aliased(Run), aliased(Worker)
    busy = exists().where(other.device == Run.device, other.state.in_((RunState.QUEUED, RunState.LEASED)))
    online = exists().where(
        worker.device == Run.device, worker.paused_at.is_(None), is_recent(worker.seen_at, now, LATELY_S)
    )
    in_force = Run.target_id.in_(select(Target.id).where(Target.paused_at.is_(None)))
    return AWAITS_SECOND, Run.finished_at > now - MAX_AGE_S, in_force, ~busy, online


def _queued(run_id: int, target_id: int) -> bool:
    try:
        with transaction() as session:
            return _queue(session, run_id, target_id)
    except Exception:  # one run must not hold up the others
        log.exception("no second session was queued", run=run_id)
        return False


def _queue(session: Session, run_id: int, target_id: int) -> bool:
    lock(session, target_id)
    run = session.scalar(select(Run).where(Run.id == run_id, *_due(clock(session))))
    if run is None:  # queued by another control, or the device is busy meanwhile
        return False
    run.awaits_second = False
    same = (Run.revision_id == run.revision_id, Run.device == run.device, Run.suite == run.suite, Run.pull == run.pull)
    newer = select(Run.id).where(*same, Run.id > run.id, Run.purpose == Purpose.WATCH).limit(1)
    if session.scalar(newer) is not None or queue.unwanted(session, run) is not None:
        return False
    second = revisions.second_session(session, run)
    log.info("second session queued", run=second.id, first=run.id)
    return True
