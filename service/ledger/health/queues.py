"""The queue of each device in time, its workers, and the runs that wait for approval."""

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import String, func, select, type_coerce
from sqlalchemy.orm import Session

from service.db.models import Attempt, Run, RunTotals, Target, Worker
from service.domain.health.queue_end import CurrentRun, RunKind, WaitingRuns, ends_in_s, usual_durations
from service.domain.states import RunState
from service.domain.times import WORKER_GONE_S, is_recent
from service.reports.health.facts import DeviceQueue, HeldRuns, LeasedRun, Queues, WorkerState

RECENT = 300  # finished runs from which durations are taken


def queues(session: Session, now: float) -> Queues:
    """The queues of all devices that have one, or a worker.  Hidden runs are in no number."""
    found = defaultdict[str, DeviceQueue](lambda: DeviceQueue(""))
    leased = _leased(session)
    by_run = {one.run_id: one for one in leased}
    for row in session.scalars(_WORKERS):
        online = bool(is_recent(row.seen_at, now, WORKER_GONE_S))
        found[row.device].workers.append(WorkerState(row, online, by_run.get(row.run_id or 0)))
    held = list[HeldRuns]()
    for one in session.execute(_WAITING):
        if one.state == RunState.HELD:
            held.append(HeldRuns(one.name, one.runs, one.first, one.since, one.pulls))
            continue
        queue = found[one.device]
        queue.queued += one.runs
        queue.untrusted += 0 if one.trusted and one.allow_unsandboxed else one.runs
        queue.oldest_at = min(queue.oldest_at, one.since)
        queue.waiting.append(WaitingRuns((one.target_id, one.device, one.purpose), one.runs))
    for current in leased:
        found[current.device].current.append(CurrentRun(current.kind, max(0.0, now - current.since)))
    usual_s = usual_durations(_durations(session)) if any(one.waiting or one.current for one in found.values()) else {}
    for device, queue in found.items():
        queue.device = device
        able = sum(one.takes_runs for one in queue.workers)
        queue.ends_in_s = ends_in_s(queue.waiting, queue.current, able, usual_s)
    return Queues(tuple(found[device] for device in sorted(found)), tuple(_by_target(held)))


def _by_target(held: Sequence[HeldRuns]) -> list[HeldRuns]:
    groups = defaultdict[str, list[HeldRuns]](list)
    for one in held:
        groups[one.target].append(one)
    joined = [
        HeldRuns(
            target,
            sum(one.count for one in some),
            min(one.first_run_id for one in some),
            min(one.since for one in some),
            max(one.pulls for one in some),
        )
        for target, some in groups.items()
    ]
    return sorted(joined, key=lambda one: one.since)


_kind = (
    Run.target_id,
    Target.name,
    Run.device,
    type_coerce(Run.purpose, String).label("purpose"),
    type_coerce(Run.state, String).label("state"),
    Run.trusted,
    Target.allow_unsandboxed,
)
# Statements are made once: making one takes longer than the database needs for it.
_WAITING = (
    select(
        *_kind,
        func.count().label("runs"),
        func.min(Run.id).label("first"),
        func.min(Run.created_at).label("since"),
        func.count(Run.pull.distinct()).label("pulls"),
    )
    .join(Target, Target.id == Run.target_id)
    .where(Run.state.in_((RunState.QUEUED, RunState.HELD)))
    .group_by(Run.target_id, Target.name, Run.device, Run.purpose, Run.state, Run.trusted, Target.allow_unsandboxed)
)
_LEASED = (
    select(
        Run.id,
        Target.name,
        Run.device,
        Run.worker,
        Run.stage,
        Run.target_id,
        type_coerce(Run.purpose, String),
        func.coalesce(Attempt.started_at, Run.started_at, Run.created_at),
    )
    .join(Target, Target.id == Run.target_id)
    .outerjoin(Attempt, (Attempt.run_id == Run.id) & (Attempt.attempt == Run.attempt))
    .where(Run.state == RunState.LEASED)
)
# How long the last runs took that were done at their first attempt.
_DURATIONS = (
    select(RunTotals.target_id, RunTotals.device, type_coerce(RunTotals.purpose, String), RunTotals.took_s)
    .order_by(RunTotals.at.desc())
    .limit(RECENT)
)
_WORKERS = select(Worker).order_by(Worker.name)


def _leased(session: Session) -> list[LeasedRun]:
    return [
        LeasedRun(run_id, name, device, worker, stage, (target_id, device, purpose), since)
        for run_id, name, device, worker, stage, target_id, purpose, since in session.execute(_LEASED)
    ]


def _durations(session: Session) -> list[tuple[RunKind, float]]:
    return [
        ((target_id, device, purpose), seconds)
        for target_id, device, purpose, seconds in session.execute(_DURATIONS)
        if seconds is not None and seconds >= 0
    ]
