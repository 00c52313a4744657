"""Queue the second session of runs that offsets of earlier sessions left open, each when its device is idle."""

import structlog
from sqlalchemy import Select, exists, select
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import AWAITS_SECOND, QUEUE_ORDER, Run, Target, Worker
from service.domain.states import Purpose, RunState
from service.domain.text import is_recent
from service.ledger.intake.calibrations import LATELY_S
from service.ledger.locking import lock, within_budget
from service.ledger.runs import queue, revisions

log = structlog.get_logger()

_BUSY = (RunState.QUEUED, RunState.LEASED)
MAX_AGE_S = 7 * 86400.0  # nobody waits for the answer of an older run any more


def plan_due() -> int:
    """Queue what is due, at most one session for each device, the newest run first.  Returns how many."""
    with reading() as session:
        due = session.execute(_due(session)).all()
    return sum(_queued(run_id, target_id) for run_id, target_id in within_budget(sorted(due, reverse=True)))


def _due(session: Session) -> Select[int, int]:
    """The runs that await a second session, on devices with a worker that has nothing to do, and their targets."""
    now = clock(session)
    online = Worker.paused_at.is_(None), is_recent(Worker.seen_at, now, LATELY_S)
    devices = session.scalars(select(Worker.device).where(*online).distinct()).all()
    idle = [device for device in devices if not any(_has(session, device, state) for state in _BUSY)]
    in_force = exists().where(Target.id == Run.target_id, Target.paused_at.is_(None))
    waiting = select(Run.id, Run.target_id).where(AWAITS_SECOND, Run.finished_at > now - MAX_AGE_S, in_force)
    # SQLite knows nothing of an index that was empty when it counted, and would read all runs of a week.
    return waiting.where(Run.device.in_(idle)).with_hint(Run, "INDEXED BY ix_runs_second", "sqlite")


def _has(session: Session, device: str, state: RunState) -> bool:
    runs = select(Run.id).where(Run.device == device, Run.state == state)
    return session.scalar(runs.order_by(Run.only_worker, *QUEUE_ORDER).limit(1)) is not None  # as its index is


def _queued(run_id: int, target_id: int) -> bool:
    try:
        with transaction() as session:
            return _queue(session, run_id, target_id)
    except Exception:  # one run must not hold up the others
        log.exception("no second session was queued", run=run_id)
        return False


def _queue(session: Session, run_id: int, target_id: int) -> bool:
    lock(session, target_id)
    if (
        session.execute(_due(session).where(Run.id == run_id)).first() is None
    ):  # queued by another control, or the device is busy meanwhile
        return False
    run = session.get_one(Run, run_id)
    run.awaits_second = False
    same = (Run.revision_id == run.revision_id, Run.device == run.device, Run.suite == run.suite, Run.pull == run.pull)
    newer = select(Run.id).where(*same, Run.id > run.id, Run.purpose == Purpose.WATCH).limit(1)
    if session.scalar(newer) is not None or queue.unwanted(session, run) is not None:
        return False
    second = revisions.second_session(session, run)
    log.info("second session queued", run=second.id, first=run.id)
    return True
