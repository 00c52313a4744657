"""The fleet: workers, the queue of each device in time, and what may need a person."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, String, Text, bindparam, case, func, literal, select, type_coerce, union
from sqlalchemy.orm import Session, selectinload

from service.db.models import (
    QUEUE_ORDER,
    SAMPLES,
    Attempt,
    CalibrationTotals,
    Delivery,
    OutboxMessage,
    Quarantine,
    Revision,
    Run,
    RunTotals,
    Series,
    Stack,
    Target,
    Worker,
)
from service.domain.health.overview import RunKind, ends_in_s, usual_durations
from service.domain.roofline import number
from service.domain.states import OutboxState, Purpose, RunState
from service.domain.text import DAY_S, WORKER_GONE_S, is_recent
from service.reports.health.facts import (
    DeviceQueue,
    DeviceReading,
    EqualCodeSum,
    FailedHead,
    GivenUp,
    HeldRuns,
    LeasedRun,
    Queues,
    ServiceState,
    UnsentMessages,
    WorkerLately,
    WorkerState,
)

RECENT = 300  # finished runs from which durations are taken


def queues(session: Session, now: float) -> Queues:
    """The queues of all devices that have one, or a worker.  Hidden runs are in no number."""
    queues = defaultdict[str, DeviceQueue](lambda: DeviceQueue(""))
    leased = [
        LeasedRun(run_id, name, device, worker, stage, (target_id, device, purpose), since)
        for run_id, name, device, worker, stage, target_id, purpose, since in session.execute(_LEASED)
    ]
    by_run = {run.run_id: run for run in leased}
    for row in session.scalars(_WORKERS):
        online = bool(is_recent(row.seen_at, now, WORKER_GONE_S))
        queues[row.device].workers.append(WorkerState(row, online, by_run.get(row.run_id or 0)))
    held = list[HeldRuns]()
    for waiting in session.execute(_WAITING):
        if waiting.state == RunState.HELD:
            held.append(HeldRuns(waiting.name, waiting.runs, waiting.first, waiting.since, waiting.pulls))
            continue
        queue = queues[waiting.device]
        queue.queued += waiting.runs
        queue.untrusted += 0 if waiting.trusted and waiting.allow_unsandboxed else waiting.runs
        queue.oldest_at = min(queue.oldest_at, waiting.since)
        queue.waiting.append(((waiting.target_id, waiting.device, waiting.purpose), waiting.runs))
    for current in leased:
        queues[current.device].current.append((current.kind, max(0.0, now - current.since)))
    usual_s = (
        usual_durations(_durations(session)) if any(queue.waiting or queue.current for queue in queues.values()) else {}
    )
    for device, queue in queues.items():
        queue.device = device
        able = sum(worker.takes_runs for worker in queue.workers)
        queue.ends_in_s = ends_in_s(queue.waiting, queue.current, able, usual_s)
    return Queues(tuple(queues[device] for device in sorted(queues)), tuple(_by_target(held)))


def _by_target(held: Sequence[HeldRuns]) -> list[HeldRuns]:
    groups = defaultdict[str, list[HeldRuns]](list)
    for one in held:
        groups[one.target].append(one)
    joined = [
        HeldRuns(
            target,
            sum(held.count for held in some),
            min(held.first_run_id for held in some),
            min(held.since for held in some),
            max(held.pulls for held in some),
        )
        for target, some in groups.items()
    ]
    return sorted(joined, key=lambda held: held.since)


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


def _durations(session: Session) -> list[tuple[RunKind, float]]:
    return [
        ((target_id, device, purpose), seconds)
        for target_id, device, purpose, seconds in session.execute(_DURATIONS)
        if seconds is not None and seconds >= 0
    ]


LATE_S = 300.0  # messages and webhooks are processed within seconds


def failed_runs(session: Session, ids: Collection[int]) -> list[FailedHead]:
    """These runs with their reasons, the last first."""
    if not ids:
        return []
    rows = session.execute(
        select(
            Run.id,
            Target.name,
            Run.device,
            Revision.sha,
            Revision.author,
            func.coalesce(Run.reason, ""),
            Run.finished_at,
            Run.log.is_not(None),
        )
        .join(Target, Target.id == Run.target_id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.id.in_(ids))
        .order_by(Run.finished_at.desc(), Run.id.desc())
    )
    return [FailedHead(*row) for row in rows]


_GIVEN_UP = (
    select(func.count(), func.max(Run.id), func.max(Run.finished_at))
    .where(Run.state == RunState.FAILED, Run.finished_at >= bindparam("since"), Run.log.is_(None))
    .where(Run.purpose == Purpose.WATCH, Run.pull.is_not(None))
)


def given_up(session: Session, since: float) -> GivenUp | None:
    """Those that ended since a time."""
    count, last_run_id, last_at = session.execute(_GIVEN_UP, {"since": since}).one()
    return GivenUp(count, last_run_id, last_at or since) if count else None


_begun = func.coalesce(Run.finished_at, Run.created_at, OutboxMessage.created_at)
_UNSENT = (
    select(
        OutboxMessage.target_id,
        OutboxMessage.state,
        func.count(),
        func.min(_begun),
        func.max(OutboxMessage.error),
        func.max(OutboxMessage.run_id),
    )
    .outerjoin(Run, Run.id == OutboxMessage.run_id)
    .where(
        OutboxMessage.state.in_((OutboxState.WAITING, OutboxState.FAILED)),  # for the index: most have been sent
        ((OutboxMessage.state == OutboxState.WAITING) & (_begun < bindparam("late")))
        | ((OutboxMessage.state == OutboxState.FAILED) & (_begun >= bindparam("since"))),
    )
    .group_by(OutboxMessage.target_id, OutboxMessage.state)
)


def unsent_messages(session: Session, now: float, since: float) -> list[UnsentMessages]:
    """Messages that have waited for longer than `LATE_S`, and those of runs since a time that were given up."""
    return [UnsentMessages(*row) for row in session.execute(_UNSENT, {"late": now - LATE_S, "since": since})]


_OLDEST = select(func.min(Delivery.received_at)).where(
    Delivery.processed_at.is_(None), Delivery.received_at < bindparam("late")
)


def oldest_delivery(session: Session, now: float) -> float | None:
    """When the oldest webhook was received that has waited for longer than `LATE_S`."""
    return session.scalar(_OLDEST, {"late": now - LATE_S})


_QUARANTINED = (
    select(func.count(), func.sum(case((Quarantine.since >= bindparam("since"), 1), else_=0)))
    .select_from(Quarantine)
    .join(Series, Series.id == Quarantine.series_id)
    .where(Quarantine.released_at.is_(None), Series.target_id.not_in(SAMPLES))
)


def quarantined(session: Session, since: float) -> tuple[int, int]:
    """The number of quarantined cases, and of those that were quarantined since a time."""
    row = session.execute(_QUARANTINED, {"since": since}).one()
    return row[0], row[1] or 0


LATELY_S = 7 * 86_400.0  # of failures, and of the run that tells stack and temperature
AA_S = 30 * 86_400.0
PER_DEVICE = 10  # waiting runs that are listed
MAX_HELD = 12


def workers_lately(session: Session, names: Collection[str], now: float) -> dict[str, WorkerLately]:
    """What these workers did in the last days, as far as the reader may know of it."""
    done = case((Run.state == RunState.DONE, Run.id))
    failed = case((Run.state == RunState.FAILED, 1), else_=0)
    rows = session.execute(
        select(Run.worker, func.count(), func.sum(failed), func.max(done))
        .where(Run.worker.in_(names), Run.finished_at >= now - LATELY_S)
        .group_by(Run.worker)
    ).all()
    last = _last_runs(session, [run_id for *_, run_id in rows if run_id is not None])
    spreads = equal_code(session, names, now)
    ended = {name: (runs, broken, run_id) for name, runs, broken, run_id in rows}
    workers = dict[str, WorkerLately]()
    for name in names:
        runs, broken, run_id = ended.get(name, (0, 0, None))
        stack, reading = last.get(run_id, ({}, DeviceReading()))
        workers[name] = WorkerLately(runs, broken, run_id, stack, reading, spreads.get(name, EqualCodeSum()))
    return workers


def _last_runs(session: Session, ids: Collection[int]) -> dict[int | None, tuple[Mapping[str, Any], DeviceReading]]:
    """The stack of these runs, and what their device reported at their end."""
    rows = session.execute(
        select(Run.id, Stack.versions, _last_reading(session))
        .outerjoin(Stack, Stack.id == Run.stack_id)
        .where(Run.id.in_(ids))
    )
    return {run_id: (versions or {}, _reading(text)) for run_id, versions, text in rows}


def _last_reading(session: Session) -> ColumnElement[Any]:
    """The last reading of the device.  Telemetry is long, so that the database takes it out."""
    if session.get_bind().dialect.name == "sqlite":
        return func.json_extract(Run.telemetry, "$.trials[#-1].telemetry[#-1].gpu")
    path = literal(["trials", "-1", "telemetry", "-1", "gpu"], ARRAY(Text))
    return Run.telemetry.op("#>>", return_type=Text())(path)


def _reading(text: str | None) -> DeviceReading:
    values = json.loads(text) if text else None
    if not isinstance(values, dict):
        return DeviceReading()
    return DeviceReading(*(number(values.get(key)) for key in ("temperature_c", "sm_mhz", "memory_mhz", "power_w")))


def equal_code(session: Session, names: Collection[str], now: float) -> dict[str, EqualCodeSum]:
    """How much equal code differed on each worker."""
    rows = session.execute(
        select(
            Run.worker,
            func.sum(CalibrationTotals.comparisons),
            func.sum(CalibrationTotals.alarmed),
            func.sum(CalibrationTotals.squares),
        )
        .join(Run, Run.id == CalibrationTotals.run_id)
        .where(CalibrationTotals.at > now - AA_S, CalibrationTotals.at <= now, Run.worker.in_(names))
        .group_by(Run.worker)
    )
    return {name or "": EqualCodeSum(count, alarmed, squares) for name, count, alarmed, squares in rows}


_BUSY = (
    select(
        Attempt.worker,
        Run.device,
        func.sum(
            func.coalesce(Attempt.finished_at, bindparam("now"))
            - case((Attempt.started_at > bindparam("since"), Attempt.started_at), else_=bindparam("since"))
        ),
    )
    .join(Run, Run.id == Attempt.run_id)
    .where(
        Run.id.in_(
            union(
                select(Run.id).where(Run.finished_at > bindparam("since")),
                select(Run.id).where(Run.state == RunState.LEASED),
            )
        ),
        func.coalesce(Attempt.finished_at, bindparam("now")) > bindparam("since"),
    )
    .group_by(Attempt.worker, Run.device)
)


def busy_shares(session: Session, now: float) -> dict[tuple[str, str], float]:
    """The share of the last 24 hours in which each worker and device held a run, as far as the reader knows of it."""
    rows = session.execute(_BUSY, {"now": now, "since": now - DAY_S})
    return {(worker, device): busy_s / DAY_S for worker, device, busy_s in rows}


def known_runs(session: Session, ids: Collection[int | None]) -> set[int | None]:
    """Those of these runs that the reader may know of: workers belong to no target, and name runs of all."""
    return set(session.scalars(select(Run.id).where(Run.id.in_([run_id for run_id in ids if run_id is not None]))))


def first_waiting(session: Session) -> Sequence[Run]:
    """The first queued runs of each device, in the order in which they are taken."""
    place = func.row_number().over(partition_by=Run.device, order_by=QUEUE_ORDER).label("place")
    ranked = select(Run.id, place).where(Run.state == RunState.QUEUED).subquery()
    ids = session.scalars(select(ranked.c.id).where(ranked.c.place <= PER_DEVICE)).all()
    rows = select(Run).where(Run.id.in_(ids)).options(selectinload(Run.target), selectinload(Run.revision))
    return session.scalars(rows.order_by(Run.device, *QUEUE_ORDER)).all()


def held(session: Session) -> Sequence[Run]:
    """The runs that have waited longest for approval, one of each commit: an approval is for all devices."""
    first = (
        select(func.min(Run.id)).where(Run.state == RunState.HELD).group_by(Run.target_id, Run.revision_id, Run.pull)
    )
    ids = session.scalars(first.order_by(func.min(Run.id)).limit(MAX_HELD)).all()
    rows = select(Run).where(Run.id.in_(ids)).options(selectinload(Run.target), selectinload(Run.revision))
    return session.scalars(rows.order_by(Run.id)).all()


def service_state(session: Session, now: float) -> ServiceState:
    """The last signs of life of what serves the fleet."""
    poll_at = session.scalar(select(func.max(Target.poll_at)).where(Target.paused_at.is_(None)))
    return ServiceState(
        poll_at,
        unsent_messages(session, now, now - 86_400.0),
        oldest_delivery(session, now),
        session.scalar(select(Delivery.received_at).order_by(Delivery.id.desc()).limit(1)),
    )
