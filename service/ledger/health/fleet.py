"""What the page of the workers shows: how each worker did lately, the first runs of queues, and the service."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Text, case, func, literal, select
from sqlalchemy.orm import Session, selectinload

from service.db.models import CalibrationTotals, Delivery, Run, Stack, Target
from service.domain.roofline import number
from service.domain.states import RunState
from service.ledger.health import trouble
from service.reports.health.facts import DeviceReading, EqualCodeSum, ServiceState, WorkerLately

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
    spreads = _equal_code(session, names, now)
    ended = {name: (runs, broken, run_id) for name, runs, broken, run_id in rows}
    found = dict[str, WorkerLately]()
    for name in names:
        runs, broken, run_id = ended.get(name, (0, 0, None))
        stack, reading = last.get(run_id, ({}, DeviceReading()))
        found[name] = WorkerLately(runs, broken, run_id, stack, reading, spreads.get(name, EqualCodeSum()))
    return found


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
    found = json.loads(text) if text else None
    if not isinstance(found, dict):
        return DeviceReading()
    return DeviceReading(*(number(found.get(key)) for key in ("temperature_c", "sm_mhz", "memory_mhz", "power_w")))


def _equal_code(session: Session, names: Collection[str], now: float) -> dict[str, EqualCodeSum]:
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


def known_runs(session: Session, ids: Collection[int | None]) -> set[int | None]:
    """Those of these runs that the reader may know of: workers belong to no target, and name runs of all."""
    return set(session.scalars(select(Run.id).where(Run.id.in_([one for one in ids if one is not None]))))


def first_waiting(session: Session) -> Sequence[Run]:
    """The first queued runs of each device, in the order in which they are taken."""
    place = func.row_number().over(partition_by=Run.device, order_by=(Run.priority, Run.id)).label("place")
    ranked = select(Run.id, place).where(Run.state == RunState.QUEUED).subquery()
    ids = session.scalars(select(ranked.c.id).where(ranked.c.place <= PER_DEVICE)).all()
    rows = select(Run).where(Run.id.in_(ids)).options(selectinload(Run.target), selectinload(Run.revision))
    return session.scalars(rows.order_by(Run.device, Run.priority, Run.id)).all()


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
        trouble.unsent_messages(session, now, now - 86_400.0),
        trouble.oldest_delivery(session, now),
        session.scalar(select(Delivery.received_at).order_by(Delivery.id.desc()).limit(1)),
    )
