"""When each worker is to calibrate each target of its device: a row for each pair, which is read when it is due."""

from sqlalchemy import CompoundSelect, Select, delete, literal, select, union, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import CalibrationPlan, Run, Series, Worker


def plan_target(session: Session, target_id: int, device: str, every_s: float) -> None:
    """Let all workers of a device calibrate a target that was measured there, at the latest in `every_s` seconds."""
    if every_s == 0:
        return
    of_device = select(literal(target_id), Worker.name, literal(0.0), literal(0.0)).where(Worker.device == device)
    _plan(session, of_device, clock(session) + every_s)


def plan_worker(session: Session, worker: str, device: str) -> None:
    """Let a worker that is new on a device calibrate all targets that were measured there."""
    session.execute(delete(CalibrationPlan).where(CalibrationPlan.worker == worker))
    measured = select(Series.target_id, literal(worker), literal(0.0), literal(0.0)).where(Series.device == device)
    _plan(session, measured.distinct(), 0.0)


def _plan(session: Session, pairs: Select[int, str, float, float], latest: float) -> None:
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    insert = dialect.insert(CalibrationPlan).from_select(["target_id", "worker", "due_at", "planned_at"], pairs)
    later = CalibrationPlan.due_at > latest
    session.execute(
        insert.on_conflict_do_update(index_elements=["target_id", "worker"], set_={"due_at": latest}, where=later)
    )


def review(session: Session, run: Run) -> None:
    """Plan again when a calibration that only one worker could do has ended: the next may be due at once."""
    pair = (CalibrationPlan.target_id == run.target_id, CalibrationPlan.worker == run.only_worker)
    session.execute(update(CalibrationPlan).where(*pair).values(due_at=0.0))


def due(now: float, seen_since: float, limit: int) -> CompoundSelect[int, str, str, str | None]:
    """Target, worker, device and trouble of the sandbox, of pairs that are due and whose worker was seen lately.

    A pair that was planned in the future is due, too: the clock was set back since.
    """
    pairs = (
        select(CalibrationPlan.target_id, Worker.name, Worker.device, Worker.sandbox)
        .join(Worker, Worker.name == CalibrationPlan.worker)
        .where(Worker.seen_at.between(seen_since, now + (now - seen_since)))
    )
    # Each condition has an index of its own: with both in one query all plans of a worker are read.
    early = pairs.where(CalibrationPlan.due_at <= now).limit(limit).subquery()
    set_back = pairs.where(CalibrationPlan.planned_at > now).limit(limit).subquery()
    return union(select(early), select(set_back))
