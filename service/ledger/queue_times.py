"""Places in the queue, and when runs are expected to end."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from service.db.engine import clock
from service.db.models import Attempt, Run, Worker
from service.domain.states import OPEN_STATES, Purpose, RunState
from service.domain.text import WORKER_GONE_S, is_recent

RECENT = 10  # runs from which a duration is estimated


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
    for run in session.scalars(rows.order_by(Run.priority, Run.id)):
        by_device[run.device].append(run)
    begun_at = _begun_at(session)
    crews = _crews(session, by_device, now)
    durations = _Durations(session)
    found = dict[int, QueuePlace]()
    for device, runs in by_device.items():
        found |= _on_device(runs, crews[device], durations, begun_at, now)
    return found


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
        known = [(at, name) for name in self.may_take(run) if (at := self.free_in_s[name]) is not None]
        return (min(known)[1], min(known)[0]) if known else None


def _on_device(
    runs: Sequence[Run], crew: _Crew, durations: "_Durations", begun_at: dict[int, float], now: float
) -> dict[int, QueuePlace]:
    found = dict[int, QueuePlace]()
    for run in runs:
        if run.state is RunState.LEASED:
            usual_s = durations.of(run)
            left_s = None if usual_s is None else max(0.0, usual_s - (now - begun_at.get(run.id, now)))
            found[run.id] = QueuePlace(0, left_s)
            if run.worker in crew.free_in_s:
                crew.free_in_s[run.worker] = left_s
    queued = [run for run in runs if run.state is RunState.QUEUED]
    for position, run in enumerate(queued, 1):
        taken = crew.first_free(run)
        if taken is None:
            found[run.id] = QueuePlace(position)
            continue
        worker, free_in_s = taken
        usual_s = durations.of(run)
        ends_in_s = None if usual_s is None else max(free_in_s, run.not_before - now) + usual_s
        crew.free_in_s[worker] = ends_in_s
        found[run.id] = QueuePlace(position, ends_in_s)
    return found


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
        took_s = [one for one in self._session.scalars(rows) if one is not None and one >= 0]
        return statistics.median(took_s) if took_s else None
