"""What workers do at each poll: measure queued runs of a device, and the periodic tasks of control."""

import os
import platform
import threading
import time
from collections.abc import Callable
from functools import cache

import structlog
from sqlalchemy.exc import DBAPIError

from service.db import schema
from service.db.engine import analyze, describe, transaction
from service.ledger import retention, stored_texts
from service.ledger.bisections import advance, bisections
from service.ledger.changepoints import follow_up, scan
from service.ledger.health.control import note_tick
from service.ledger.intake import calibrations, deliveries, registry, second_sessions
from service.ledger.notices import deliver
from service.ledger.notices import happenings as silent_workers
from service.ledger.notify import compose, outbox
from service.ledger.regressions import transitions
from service.ledger.runs import queue
from service.settings import settings
from workers.machine import device
from workers.run import heartbeat, session
from workers.run.heartbeat import draining, stopping
from workers.sandbox import sandbox

log = structlog.get_logger()


@cache
def devices() -> tuple[device.DeviceHere, ...]:
    """The devices of this process, looked up once."""
    return device.ask()


def here() -> device.DeviceHere:
    """The first of them: where one is enough, and whose name the worker has."""
    return devices()[0]


_lost = set[device.DeviceHere]()  # until this worker is restarted


def name() -> str:
    """The worker's name: stable over restarts, one for each device of a host.

    In a container with one GPU every index is 0, so a GPU is named by the beginning of its UUID.
    """
    known = here().uuid
    return f"{platform.node()}/{here().name}-{known.removeprefix('GPU-')[:8] if known else here().index}"


def work(on: str) -> int:
    """Measure queued runs of device `on` until there are none.  Returns how many were taken."""
    if on != here().name:
        log.error("wake-up for another device", wanted=on, here=here().name)
        return 0
    if not schema.fits():
        return 0
    _report_predecessor()
    taken = 0
    while not (stopping.is_set() or draining.is_set()) and schema.fits() and (lease := _claim(on)):
        log.info("run leased", run=lease.run_id, attempt=lease.attempt)
        _lost.update(session.measure(lease, *_left()))
        taken += 1
    if not taken and not stopping.is_set():
        _clean_own_mirrors()
    return taken


def _left() -> tuple[device.DeviceHere, ...]:
    """The devices of this worker that were not lost."""
    return tuple(one for one in devices() if one not in _lost)


def _description() -> str:
    first, *others = _left()
    numbers = ", ".join(str(one.index) for one in _left())
    return f"{first.product}, GPUs {numbers}" if others else first.description


def _report_predecessor() -> None:
    """Give back the run of a worker of these devices that died, without waiting for its lease to expire."""
    for one in devices():
        if left := heartbeat.remains(one):
            log.warning("the worker before this one died", run=left.lease.run_id, in_code=left.in_code)
            with transaction() as database:
                queue.died(database, left.lease, in_code=left.in_code)
            heartbeat.forget(one)


def _claim(on: str) -> queue.Lease | None:
    trouble = sandbox.self_test()
    with transaction() as database:
        queue.sweep(database)
        lease = queue.next_run(database, on, name(), settings().lease_s, has_sandbox=trouble is None)
        queue.register(database, name(), on, _description(), trouble, lease.run_id if lease else None)
        return lease


PRUNE_S = 5.0  # of one pass; the next goes on


def prune() -> None:
    """Delete some of what has expired."""
    end = time.monotonic() + PRUNE_S
    retention.prune(lambda: time.monotonic() < end and not stopping.is_set())


class Duty:
    """A periodic task of control: at most every `every_s` seconds, because it costs something with nothing to do."""

    def __init__(self, task: Callable[[], object], every_s: float = 0.0) -> None:
        self._task, self._every_s, self._next = task, every_s, 0.0
        self.__name__ = task.__name__

    def __call__(self) -> None:
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + self._every_s  # also where it fails
        self._task()
        if (took_s := time.monotonic() - now) > LONG_S:
            log.warning("periodic task took long", task=self.__name__, seconds=round(took_s, 1))


HUNG_S = 300.0  # of a lane without the end of a pass, from which on control counts as silent
LONG_S = 30.0  # a duty begins nothing after 5 to 20 s, and what it has begun has limits of its own


class Lane:
    """Duties that run one after another in a thread of their own, so that they delay none of another lane."""

    def __init__(self, name: str, *duties: Callable[[], object]) -> None:
        self.name, self.duties, self._woken = name, duties, threading.Event()
        self.passed_at: float | None = None  # of the monotonic clock, at the end of its last pass; None if not started

    def run(self) -> None:
        """Run every duty once: one that fails does not stop the others."""
        for duty in self.duties if schema.fits() else ():
            try:
                duty()
            except DBAPIError as error:
                log.exception("periodic task failed", task=duty.__name__, pid=os.getpid(), error=describe(error))
            except Exception:
                log.exception("periodic task failed", task=duty.__name__, pid=os.getpid())
        if self.passed_at is not None:
            self.passed_at = time.monotonic()

    def wake(self) -> None:
        """Let it run now."""
        self._woken.set()

    def start(self) -> threading.Thread:
        """Run it whenever it is woken, and every few seconds, until this process stops."""
        self.passed_at = time.monotonic()
        thread = threading.Thread(target=self._run_until_stopped, name=self.name, daemon=True)
        thread.start()
        return thread

    def _run_until_stopped(self) -> None:
        while not stopping.is_set():
            try:
                self.run()
            except Exception:  # e.g. without a database: tried again at the next turn
                self.passed_at = time.monotonic()
                log.exception("periodic tasks failed", lane=self.name, pid=os.getpid())
            self._woken.wait(settings().queue_poll_s)
            self._woken.clear()


def _process_deliveries() -> None:
    deliveries.process_due(wait=False)


def _poll() -> None:
    deliveries.poll_due(wait=False)


def _advance_bisections() -> None:
    advance.advance_due(wait=False)


def _tick() -> None:
    if lanes := hung():
        log.error("control hangs", lanes=lanes, pid=os.getpid())
    else:
        note_tick()


def sweep() -> None:
    with transaction() as database:
        for run_id in queue.sweep(database):
            log.warning("lease expired, run queued again or failed", run=run_id)


LANES = (
    Lane("deliveries", Duty(_process_deliveries)),
    Lane("polls", Duty(_poll)),
    Lane("reports", Duty(compose.notify_due), Duty(outbox.deliver_due)),
    Lane("notices", Duty(deliver.batch_due), Duty(deliver.deliver_due)),
    Lane("bisections", Duty(_advance_bisections)),
    Lane("mirrors", Duty(registry.clean_due, 3600.0)),
    Lane(
        "ledger",  # the database alone
        Duty(sweep),
        Duty(transitions.expire_due),
        Duty(bisections.start_due, 10.0),
        Duty(scan.scan_due),
        Duty(follow_up.follow_due, 300.0),  # new points are followed up at once, with their scan
        Duty(second_sessions.plan_due, 60.0),  # before calibrations, which make the device busy
        Duty(calibrations.plan_due, 60.0),
        Duty(stored_texts.forget_logs, 3600.0),
        Duty(stored_texts.forget_code, 3600.0),
        Duty(prune, 600.0),
        Duty(silent_workers.note_lost, 30.0),
        Duty(silent_workers.note_starting, 3600.0),  # once a day for each worker
        Duty(deliver.forget_due, 3600.0),
        Duty(analyze, 3600.0),
        Duty(_tick, 10.0),
    ),
)
_clean_own_mirrors = Duty(registry.clean_own, 3600.0)


def start() -> list[threading.Thread]:
    """Run the periodic tasks in threads until this process stops."""
    return [lane.start() for lane in LANES]


def hung() -> list[str]:
    """The lanes that have not ended a pass for `HUNG_S`."""
    now = time.monotonic()
    return [lane.name for lane in LANES if lane.passed_at is not None and now - lane.passed_at > HUNG_S]


def wake() -> None:
    """Let every lane look for work now."""
    for lane in LANES:
        lane.wake()
