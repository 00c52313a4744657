"""The queue in the database: claim, renew, finish, sweep and cancel runs; their places and expected ends.

The attempt number is the fence: the holder of an older attempt can neither renew nor finish.  All times are those of
the clock of the database, so that hosts need not agree on theirs.

An attempt counts against `max_attempts` only if it ended in the code of the revision: a build or a contender failed, or
the worker died while one ran.  All others are losses, which have a generous bound of their own.

Runs are taken by their turn, a virtual time of the device (start-time fair queueing): the runs of one target, of one
priority, follow each other at the distance `step`, and the first of them comes half of it after what is measured now.
So targets take turns, and ten runs of a target go before one of the next priority.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, or_, select, true, tuple_, update
from sqlalchemy.orm import Session, selectinload

from service.db.engine import clock, database_now, wake
from service.db.models import QUEUE_ORDER, UNFINISHED, Attempt, Pull, Revision, Run, Target, Worker
from service.db.wakeups import CONTROL
from service.domain.forges import pull_name
from service.domain.states import OPEN_STATES, Priority, Purpose, RunState
from service.domain.text import WORKER_GONE_S, is_due, is_recent
from service.errors import LeaseLost, NotFound
from service.ledger import audit
from service.ledger.acting import acting
from service.ledger.calibration import plans
from service.ledger.notices import happenings
from service.settings import settings

# Wait before another attempt: a network outage or a full disk would otherwise fail everything that is queued.
_FIRST_WAIT_S, _MAX_WAIT_S = 30.0, 90.0
# A run that kills its worker before its code starts, or whose source is away for an hour, is given up in the end.
MAX_LOSSES = 50
_OF_ITS_STATE = (
    *("state", "attempt", "max_attempts", "losses", "worker", "lease_until", "not_before"),
    *("priority", "stage", "reason", "log", "started_at", "finished_at"),
)
_may_run_unsandboxed = select(Target.id).where(Target.allow_unsandboxed)
RECENT = 10  # runs from which a duration is estimated
_BEFORE_THE_NEXT = 10.0  # runs of one priority that go before a run of the next one, which waits as well


@dataclass(frozen=True)
class Lease:
    run_id: int
    attempt: int
    worker: str


def enqueue(session: Session, run: Run) -> None:
    """Queue a run behind those of its own share, and wake the workers of its device."""
    session.flush()  # it has an id then
    run.state, run.turn = RunState.QUEUED, _next_turn(session, run)
    wake(session, run.device)


def _next_turn(session: Session, run: Run) -> float:
    share = (Run.target_id == run.target_id, Run.device == run.device, Run.priority == run.priority)
    alike = select(func.max(Run.turn)).where(*share, _waits_for(run.only_worker), UNFINISHED, Run.id != run.id)
    last = session.scalar(alike)
    now, step = _turn_of_now(session, run), _step(run.priority)
    return now + step / 2 if last is None else max(now + step / 2, last + step)


def _turn_of_now(session: Session, run: Run) -> float:
    """The turn that the device of a run has come to, without that run."""
    others = (Run.device == run.device, Run.id != run.id)
    measured = session.scalar(select(func.max(Run.turn)).where(*others, Run.state == RunState.LEASED))
    waiting = _queued(run.device).where(Run.id != run.id)
    first = session.execute(waiting.where(_is_due(database_now(session)))).first()
    if first is None and measured is None:
        # Else a run that is to be tried again, or waits for a worker that is away, at a late turn, would wait for all
        # that comes from the first turn on.
        first = session.execute(waiting).first() or session.execute(_first_bound(run)).first()
    if first is None:
        return measured or 0.0
    _, turn, priority = first
    # A worker without a sandbox may measure what is far behind the first.
    return turn - _step(priority) / 2 if measured is None else min(measured, turn)


def _first_bound(run: Run) -> Select[int, float, int]:
    """The first queued run of a device that only one worker may take, without this run: of each worker one is read."""
    of_one = select(Run.id).where(Run.device == run.device, Run.state == RunState.QUEUED, Run.id != run.id)
    of_one = of_one.where(Run.only_worker == Worker.name).order_by(Run.only_worker, *QUEUE_ORDER).limit(1)
    of_each = select(of_one.scalar_subquery()).where(Worker.device == run.device)
    return select(Run.id, Run.turn, Run.priority).where(Run.id.in_(of_each)).order_by(*QUEUE_ORDER).limit(1)


def _step(priority: int) -> float:
    return math.pow(_BEFORE_THE_NEXT, (priority - Priority.PULL_REQUEST) / 10)  # priorities are ten apart


def _waits_for(worker: str | None) -> ColumnElement[bool]:
    return Run.only_worker.is_(None) if worker is None else Run.only_worker == worker


def _queued(device: str, worker: str | None = None) -> Select[int, float, int]:
    """The first queued run of a device that any worker may take, or only this one."""
    queued = select(Run.id, Run.turn, Run.priority).where(Run.device == device, Run.state == RunState.QUEUED)
    # PostgreSQL reads it in the order of the index only if that has the first of its columns, too.
    return queued.where(_waits_for(worker)).order_by(Run.only_worker, *QUEUE_ORDER).limit(1)


def _is_due(now: ColumnElement[Any]) -> ColumnElement[bool]:
    due: ColumnElement[bool] = is_due(Run.not_before, now, _MAX_WAIT_S)
    return due


def next_run(session: Session, device: str, worker: str, lease_s: float, *, has_sandbox: bool = True) -> Lease | None:
    """Claim the first queued run of `device` that this worker may take.

    A worker without a sandbox may take trusted runs of targets that are allowed to run without one; a paused one none.
    """
    if session.scalar(select(Worker.paused_at).where(Worker.name == worker)) is not None:
        return None
    now = database_now(session)
    may_run = true() if has_sandbox else Run.trusted & Run.target_id.in_(_may_run_unsandboxed)
    able = _is_due(now) & may_run
    first = session.execute(_queued(device, worker).where(able)).first()
    earlier = true() if first is None else tuple_(*QUEUE_ORDER) < (first.turn, first.priority, first.id)
    # SQLite ignores the lock: there BEGIN IMMEDIATE lets in one writer at a time.
    anybody = _queued(device).where(able, earlier).with_for_update(skip_locked=True)
    first = session.execute(anybody).first() or first
    if first is None:
        return None
    claimed = session.execute(
        update(Run)
        .where(Run.id == first.id, Run.state == RunState.QUEUED)
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
        if run.only_worker is not None:
            plans.review(session, run)
        wake(session, CONTROL)  # which reports it
    if state is RunState.FAILED:
        happenings.run_failed(session, run, now)
    _close_attempt(session, lease.run_id, lease.attempt, now, reason or state.value)
    return run


def give_back(session: Session, lease: Lease, why: str, *, blame: bool = True, wait: bool = False) -> None:
    """Queue a run again after a failure, or fail it after the last attempt.

    Without `blame` the attempt does not count, and the run waits only with `wait`.
    """
    run = _returned(session, lease, why, blame=blame)
    early = run.max_attempts - run.attempt > 1 and run.losses <= 1
    wait_s = (_FIRST_WAIT_S if early else _MAX_WAIT_S) if blame or wait else 0.0
    _queue_or_fail(session, run, why, wait_s)


def _returned(session: Session, lease: Lease, why: str, *, blame: bool) -> Run:
    """The run of a lease, out of the hands of its worker."""
    run = end(session, lease, RunState.QUEUED, why)
    if not blame:
        _count_loss(run)
    return run


def repeat(session: Session, run: Run, why: str) -> None:
    """Queue a run that has just ended for a second session; the attempt does not count."""
    run.repeated, run.max_attempts = True, run.max_attempts + 1
    _queue_or_fail(session, run, why, 0.0)


def sweep(session: Session) -> list[int]:
    """Return runs whose lease has expired to the queue, and shorten leases from before the clock was set back."""
    now, lease_s = clock(session), settings().lease_s
    expired = or_(Run.lease_until < now, Run.lease_until > now + lease_s)
    swept = []
    expired_runs = select(Run).where(Run.state == RunState.LEASED, expired).with_for_update(skip_locked=True)
    for run in session.scalars(expired_runs):
        if run.lease_until is not None and run.lease_until > now:
            run.lease_until = now + lease_s  # a worker that is alive renews it
            continue
        why = f"worker {run.worker} stopped answering in attempt {run.attempt}"
        _close_attempt(session, run.id, run.attempt, now, why, lost=True)
        _count_loss(run)
        _queue_or_fail(session, run, why, _FIRST_WAIT_S)
        swept.append(run.id)
    return swept


def died(session: Session, lease: Lease, *, in_code: bool) -> None:
    """End the attempt of a worker that died, as its successor on the machine reports.

    It counts if the code of the revision was running, also where a sweep has taken the run for lost already.  However
    often that happens, the run waits only so long that others get their turn: no outage has to pass.
    """
    run = session.scalar(select(Run).where(Run.id == lease.run_id).with_for_update())
    attempt = session.get(Attempt, (lease.run_id, lease.attempt))
    if run is None or attempt is None:  # of another database
        return
    why = f"worker {lease.worker} died {'while the code ran' if in_code else 'before the code ran'}"
    if (run.state, run.attempt) == (RunState.LEASED, lease.attempt):
        _queue_or_fail(session, _returned(session, lease, why, blame=in_code), why, _FIRST_WAIT_S)
    elif attempt.lost and in_code and run.state in OPEN_STATES:
        attempt.lost, attempt.outcome = False, why
        run.losses, run.max_attempts = run.losses - 1, run.max_attempts - 1
        if run.state is RunState.QUEUED and run.attempt >= run.max_attempts:
            _queue_or_fail(session, run, why, 0.0)


def _count_loss(run: Run) -> None:
    run.losses, run.max_attempts = run.losses + 1, run.max_attempts + 1


def _queue_or_fail(session: Session, run: Run, why: str, wait_s: float) -> None:
    run.lease_until, run.stage, run.worker = None, None, None
    now = clock(session)
    if ended := unwanted(session, run):
        (run.state, run.reason), run.finished_at = ended, now
    elif run.attempt >= run.max_attempts or run.losses > MAX_LOSSES:
        run.state, run.finished_at = RunState.FAILED, now
        run.reason = f"given up after {run.attempt} attempts: {why}"
        if run.only_worker is not None:
            plans.review(session, run)
        happenings.run_failed(session, run, now)
        wake(session, CONTROL)
    else:
        run.state, run.finished_at, run.not_before = RunState.QUEUED, None, now + wait_s
        run.reason = f"{why}; next attempt after {wait_s:.0f} s" if wait_s else why
        wake(session, run.device)


def unwanted(session: Session, run: Run) -> tuple[RunState, str] | None:
    """The final state and reason of a pull request's run that is not needed any more; None where it is."""
    pull = pull_of(session, run.target_id, run.pull) if run.pull is not None else None
    if pull is None:
        return None
    name = pull_name(session.get_one(Target, run.target_id).forge_kind, pull.number)
    if pull.closed_at is not None:
        return RunState.CANCELLED, f"{name} was closed"
    if pull.head is not None and pull.head != session.get_one(Revision, run.revision_id).sha:
        return RunState.SUPERSEDED, f"{pull.head[:10]} is a newer head of {name}"
    return None


def pull_of(session: Session, target_id: int, number: int) -> Pull | None:
    """A pull request: its head now, and whether it is closed."""
    rows = select(Pull).where(Pull.target_id == target_id, Pull.number == number)
    return session.execute(rows.execution_options(populate_existing=True)).scalar_one_or_none()


def _close_attempt(
    session: Session, run_id: int, attempt: int, now: float, outcome: str, *, lost: bool = False
) -> None:
    session.execute(
        update(Attempt)
        .where(Attempt.run_id == run_id, Attempt.attempt == attempt, Attempt.finished_at.is_(None))
        .values(finished_at=now, outcome=outcome, lost=lost)
        .execution_options(synchronize_session=False)
    )


def locked_run(session: Session, run_id: int) -> Run:
    """A run, locked, with the state that it has now.  Raises NotFound."""
    run = session.scalar(select(Run).where(Run.id == run_id).with_for_update())
    if run is None:
        raise NotFound("run", run_id)
    # The caller may have read it in this session before a worker changed it, and the query above leaves that as it is.
    session.refresh(run, _OF_ITS_STATE)
    return run


def cancel(session: Session, run_id: int, who: str) -> bool:
    """Cancel a run; False where it had ended already.

    A leased run is taken from its worker, which stops at its next heartbeat; the fence refuses its results.
    """
    run = locked_run(session, run_id)
    if run.state not in OPEN_STATES:
        return False
    now = clock(session)
    name = session.get_one(Target, run.target_id).name
    audit.record(session, "run.cancel", target=name, of=f"run {run.id}", details={"was": run.state})
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
    moved = worker.device != device
    worker.device, worker.description, worker.sandbox = device, description, sandbox
    worker.seen_at, worker.run_id = now, run_id
    if moved:
        plans.plan_worker(session, name, device)


def heartbeat(session: Session, name: str, run_id: int | None) -> None:
    """Store that a worker lives, between two calls of `register`."""
    session.execute(
        update(Worker)
        .where(Worker.name == name)
        .values(seen_at=database_now(session), run_id=run_id)
        .execution_options(synchronize_session=False)
    )


def pause(session: Session, name: str, *, paused: bool) -> Worker:
    """Let a worker take no further run, or take runs again.  The run that it measures goes on.

    A worker that is paused already stays as it is.  Raises NotFound.
    """
    row = session.execute(select(Worker).where(Worker.name == name).with_for_update()).scalar_one_or_none()
    if row is None:
        raise NotFound("worker", name, "`kernelwatch worker list` lists them.")
    if (row.paused_at is not None) != paused:
        row.paused_at = clock(session) if paused else None
        row.paused_by = acting().actor.name if paused else None
        audit.record(session, "worker.pause" if paused else "worker.resume", of=f"worker {name}"[:120])
        wake(session, row.device)
    return row


@dataclass(frozen=True)
class QueuePlace:
    """Where an unfinished run is in the queue of its device.

    `position` is 0 while it is measured, 1 if it is the next of its device, and None while it is held.  `eta_s` is the
    expected time until it ends; None if that is unknown.
    """

    position: int | None
    eta_s: float | None = None


NO_PLACE = QueuePlace(None)  # of a run that is held, or has ended


def places(session: Session) -> dict[int, QueuePlace]:
    """The places of all unfinished runs, by id.

    A run is expected to take the median duration of the last `RECENT` runs of the same target, device and purpose that
    were done at the first attempt.  The workers of the device that are online and not paused take the queue in its
    order, each run by the worker that is free first; a run that is bound to a worker waits for that one.  The time is
    unknown if there was no such run yet, if no worker may take it, or if no worker's current work has a known end.

    Runs that are hidden from the reader count neither for positions nor for times.
    """
    now = clock(session)
    rows = select(Run).where(Run.state.in_(OPEN_STATES)).options(selectinload(Run.target))
    by_device = defaultdict[str, list[Run]](list)
    for run in session.scalars(rows.order_by(*QUEUE_ORDER)):
        by_device[run.device].append(run)
    begun_at = _begun_at(session)
    crews = _crews(session, by_device, now)
    durations = _Durations(session)
    places = dict[int, QueuePlace]()
    for device, runs in by_device.items():
        places |= _on_device(runs, crews[device], durations, begun_at, now)
    return places


@dataclass
class _Crew:
    """The workers of a device that are online: in how many seconds each is free, None where that is unknown."""

    free_in_s: dict[str, float | None] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    without_sandbox: set[str] = field(default_factory=set)

    def may_take(self, run: Run) -> list[str]:
        trusted = run.trusted and run.target.allow_unsandboxed
        return [
            name
            for name in self.free_in_s
            if name not in self.paused
            and run.only_worker in (None, name)
            and (trusted or name not in self.without_sandbox)
        ]

    def first_free(self, run: Run) -> tuple[str, float] | None:
        """The worker that is expected to take the run, and in how many seconds."""
        free = [(at, name) for name in self.may_take(run) if (at := self.free_in_s[name]) is not None]
        return (min(free)[1], min(free)[0]) if free else None


def _on_device(
    runs: Sequence[Run], crew: _Crew, durations: "_Durations", begun_at: dict[int, float], now: float
) -> dict[int, QueuePlace]:
    places = dict[int, QueuePlace]()
    for run in runs:
        if run.state is RunState.LEASED:
            usual_s = durations.of(run)
            left_s = None if usual_s is None else max(0.0, usual_s - (now - begun_at.get(run.id, now)))
            places[run.id] = QueuePlace(0, left_s)
            if run.worker in crew.free_in_s:
                crew.free_in_s[run.worker] = left_s
    queued = [run for run in runs if run.state is RunState.QUEUED]
    for position, run in enumerate(queued, 1):
        taken = crew.first_free(run)
        if taken is None:
            places[run.id] = QueuePlace(position)
            continue
        worker, free_in_s = taken
        usual_s = durations.of(run)
        ends_in_s = None if usual_s is None else max(free_in_s, run.not_before - now) + usual_s
        crew.free_in_s[worker] = ends_in_s
        places[run.id] = QueuePlace(position, ends_in_s)
    return places


def _crews(session: Session, devices: Iterable[str], now: float) -> dict[str, _Crew]:
    crews = {device: _Crew() for device in devices}
    for worker in session.scalars(select(Worker).where(Worker.device.in_(list(crews)))):
        if is_recent(worker.seen_at, now, WORKER_GONE_S):
            crew = crews[worker.device]
            crew.free_in_s[worker.name] = 0.0
            if worker.paused_at is not None:
                crew.paused.add(worker.name)
            if worker.sandbox is not None:
                crew.without_sandbox.add(worker.name)
    return crews


def _begun_at(session: Session) -> dict[int, float]:
    """When the attempts that are in progress began."""
    rows = (
        select(Attempt.run_id, Attempt.started_at)
        .join(Run, (Run.id == Attempt.run_id) & (Run.attempt == Attempt.attempt))
        .where(Run.state == RunState.LEASED)
    )
    return dict(session.execute(rows).all())


class _Durations:
    """How long runs usually take, asked once for each target, device and purpose."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known = dict[tuple[int, str, Purpose], float | None]()

    def of(self, run: Run) -> float | None:
        key = run.target_id, run.device, run.purpose
        if key not in self._known:
            self._known[key] = self._median(*key)
        return self._known[key]

    def _median(self, target_id: int, device: str, purpose: Purpose) -> float | None:
        rows = (
            select(Run.finished_at - Run.started_at)
            .where(Run.target_id == target_id, Run.device == device, Run.purpose == purpose)
            .where(Run.state == RunState.DONE, Run.attempt == 1)
            .order_by(Run.id.desc())
            .limit(RECENT)
        )
        took_s = [seconds for seconds in self._session.scalars(rows) if seconds is not None and seconds >= 0]
        return statistics.median(took_s) if took_s else None
