"""The queue in the database: claim, renew, finish, sweep and cancel runs.

The attempt number is the fence: the holder of an older attempt can neither renew nor finish.  All times are those of
the clock of the database, so that hosts need not agree on theirs.
"""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, case, or_, select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, database_now, wake
from service.db.models import Attempt, PushRow, Revision, Run, Worker
from service.domain.states import OPEN_STATES, RunState
from service.errors import LeaseLost, NotFound

# Wait before another attempt: a network outage or a full disk would otherwise fail everything that is queued.
_FIRST_WAIT_S, _SECOND_WAIT_S = 30.0, 300.0


@dataclass(frozen=True)
class Lease:
    run_id: int
    attempt: int
    worker: str


def next_run(session: Session, device: str, worker: str, lease_s: float) -> Lease | None:
    """Claim the first queued run of `device` that this worker may take, by priority, older before newer."""
    now = database_now(session)
    first = (
        select(Run.id)
        .where(Run.device == device, Run.state == RunState.QUEUED, Run.not_before <= now)
        .where(or_(Run.only_worker.is_(None), Run.only_worker == worker))
        .order_by(Run.priority, Run.id)
        .limit(1)
        .with_for_update(skip_locked=True)  # SQLite ignores it: there BEGIN IMMEDIATE lets in one writer at a time
    )
    claimed = session.execute(
        update(Run)
        .where(Run.id == first.scalar_subquery(), Run.state == RunState.QUEUED)
        .values(
            state=RunState.LEASED,
            attempt=Run.attempt + 1,
            worker=worker,
            lease_until=now + lease_s,
            started_at=case((Run.started_at.is_(None), now), else_=Run.started_at),
            stage="starting",
        )
        .returning(Run.id, Run.attempt)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if claimed is None:
        return None
    session.add(Attempt(run_id=claimed.id, attempt=claimed.attempt, worker=worker, started_at=clock(session)))
    return Lease(claimed.id, claimed.attempt, worker)


def _held(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    return Run.id == lease.run_id, Run.attempt == lease.attempt, Run.state == RunState.LEASED


def renew(session: Session, lease: Lease, lease_s: float, stage: str | None = None) -> None:
    """Renew the lease, and store the stage.  Raises LeaseLost when it is no longer ours."""
    values: dict[str, object] = {"lease_until": database_now(session) + lease_s}
    if stage is not None:
        values["stage"] = stage
    kept = session.execute(update(Run).where(*_held(lease)).values(values).execution_options(synchronize_session=False))
    if kept.rowcount != 1:  # type: ignore[attr-defined]
        raise LeaseLost(f"Run {lease.run_id} is no longer leased to {lease.worker}.")


def end(session: Session, lease: Lease, state: RunState, reason: str | None = None, log: str | None = None) -> Run:
    """Take the run from leased to `state`, fenced.  Raises LeaseLost when it is no longer ours."""
    run = session.execute(select(Run).where(*_held(lease)).with_for_update()).scalar_one_or_none()
    if run is None:
        raise LeaseLost(f"Run {lease.run_id} is no longer leased to {lease.worker}.")
    now = clock(session)
    run.state, run.reason, run.log = state, reason, log
    run.lease_until, run.stage = None, None
    if state is not RunState.QUEUED:
        run.finished_at = now
    _close_attempt(session, lease.run_id, lease.attempt, now, reason or state.value)
    return run


def give_back(session: Session, lease: Lease, why: str, *, blame: bool = True) -> None:
    """Queue a run again after a failure of the worker, or fail it after the last attempt.

    Without `blame` the attempt does not count and there is no wait, because the worker was asked to stop.
    """
    run = end(session, lease, RunState.QUEUED, why)
    run.max_attempts += not blame
    _queue_or_fail(session, run, why, wait=blame)


def repeat(session: Session, run: Run, why: str) -> None:
    """Queue a run that has just ended for a second session; the attempt does not count."""
    run.repeated, run.max_attempts = True, run.max_attempts + 1
    _queue_or_fail(session, run, why, wait=False)


def sweep(session: Session) -> list[int]:
    """Return runs whose lease has expired to the queue, or fail them after `max_attempts`."""
    now = clock(session)
    lost = session.execute(
        select(Run).where(Run.state == RunState.LEASED, Run.lease_until < now).with_for_update(skip_locked=True)
    ).scalars()
    swept = []
    for run in lost:
        why = f"worker {run.worker} stopped answering in attempt {run.attempt}"
        _close_attempt(session, run.id, run.attempt, now, why)
        _queue_or_fail(session, run, why)
        swept.append(run.id)
    return swept


def _queue_or_fail(session: Session, run: Run, why: str, *, wait: bool = True) -> None:
    run.lease_until, run.stage, run.worker = None, None, None
    now, left = clock(session), run.max_attempts - run.attempt
    if unwanted := _unwanted(session, run):
        (run.state, run.reason), run.finished_at = unwanted, now
    elif left <= 0:
        run.state, run.finished_at = RunState.FAILED, now
        run.reason = f"given up after {run.attempt} attempts: {why}"
    else:
        wait_s = (_FIRST_WAIT_S if left > 1 else _SECOND_WAIT_S) if wait else 0.0
        run.state, run.finished_at, run.not_before = RunState.QUEUED, None, now + wait_s
        run.reason = f"{why}; next attempt after {wait_s:.0f} s" if wait_s else why
        wake(session, run.device)


def _unwanted(session: Session, run: Run) -> tuple[RunState, str] | None:
    """The final state and reason of a pull request's run that is not needed any more; None where it is."""
    push = newest_push(session, run.target_id, run.pull) if run.pull is not None else None
    if push is None:
        return None
    if push.closed_at is not None:
        return RunState.CANCELLED, f"pull request {run.pull} was closed"
    if push.head != session.get_one(Revision, run.revision_id).sha:
        return RunState.SUPERSEDED, f"{push.head[:10]} is a newer head of pull request {run.pull}"
    return None


def newest_push(session: Session, target_id: int, pull: int) -> PushRow | None:
    """The newest push of a pull request: its head now, and whether it is closed."""
    pushes = select(PushRow).where(PushRow.target_id == target_id, PushRow.pull == pull)
    return session.execute(pushes.order_by(PushRow.id.desc()).limit(1)).scalar_one_or_none()


def _close_attempt(session: Session, run_id: int, attempt: int, now: float, outcome: str) -> None:
    session.execute(
        update(Attempt)
        .where(Attempt.run_id == run_id, Attempt.attempt == attempt, Attempt.finished_at.is_(None))
        .values(finished_at=now, outcome=outcome)
        .execution_options(synchronize_session=False)
    )


def cancel(session: Session, run_id: int, who: str) -> bool:
    """Cancel a run; False where it had ended already.

    A leased run is taken from its worker, which stops at its next heartbeat; the fence refuses its results.
    """
    run = session.execute(select(Run).where(Run.id == run_id).with_for_update()).scalar_one_or_none()
    if run is None:
        raise NotFound("run", run_id)
    if run.state not in OPEN_STATES:
        return False
    now = clock(session)
    _close_attempt(session, run.id, run.attempt, now, f"cancelled by {who}")
    run.state, run.reason, run.finished_at = RunState.CANCELLED, f"cancelled by {who}", now
    run.lease_until, run.stage = None, None
    return True


def register(
    session: Session, name: str, device: str, description: str, sandbox: str | None, run_id: int | None
) -> None:
    """Store what a worker is and does."""
    now = clock(session)
    worker = session.execute(select(Worker).where(Worker.name == name)).scalar_one_or_none()
    if worker is None:
        worker = Worker(name=name, started_at=now)
        session.add(worker)
    worker.device, worker.description, worker.sandbox = device, description, sandbox
    worker.seen_at, worker.run_id = now, run_id


def heartbeat(session: Session, name: str, run_id: int | None) -> None:
    """Store that a worker lives, between two calls of `register`."""
    session.execute(
        update(Worker)
        .where(Worker.name == name)
        .values(seen_at=database_now(session), run_id=run_id)
        .execution_options(synchronize_session=False)
    )
