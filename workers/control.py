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
from service.db.engine import describe, transaction
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


class Throttled:
    """A task that runs at most every `every_s` seconds, because it costs something even with nothing to do."""

    def __init__(self, task: Callable[[], object], every_s: float) -> None:
        self._task, self._every_s, self._next = task, every_s, 0.0
        self.__name__ = task.__name__

    def __call__(self) -> None:
        if (now := time.monotonic()) >= self._next:
            self._next = now + self._every_s  # also where it fails
            self._task()


_follow = Throttled(follow_up.follow_due, 300.0)  # follow new points at once, in the same poll
_auto_start = Throttled(bisections.start_due, 10.0)
_calibrate = Throttled(calibrations.plan_due, 60.0)
_measure_twice = Throttled(second_sessions.plan_due, 60.0)
_forget_logs = Throttled(stored_texts.forget_logs, 3600.0)
_forget_code = Throttled(stored_texts.forget_code, 3600.0)
_note_lost_workers = Throttled(silent_workers.note_lost, 30.0)
_note_starting_workers = Throttled(silent_workers.note_starting, 3600.0)  # once a day for each worker
_note_tick = Throttled(note_tick, 10.0)
_forget_notices = Throttled(deliver.forget_due, 3600.0)
_prune = Throttled(prune, 600.0)
_clean_mirrors = Throttled(registry.clean_due, 3600.0)
_clean_own_mirrors = Throttled(registry.clean_own, 3600.0)


def run() -> None:
    """Run every periodic task once: deliveries, expired leases, bisections, change points, notifications."""
    if not schema.fits():
        return
    for task in (
        deliveries.process_due,
        sweep,
        transitions.expire_due,
        _auto_start,
        scan.scan_due,
        _follow,
        advance.advance_due,
        _measure_twice,  # before calibrations, which make the device busy
        _calibrate,
        _forget_logs,
        _forget_code,
        _prune,
        _clean_mirrors,
        compose.notify_due,
        outbox.deliver_due,
        _note_lost_workers,
        _note_starting_workers,
        deliver.batch_due,
        deliver.deliver_due,
        _forget_notices,
        _note_tick,
    ):
        try:
            task()
        except DBAPIError as error:
            log.exception("periodic task failed", task=task.__name__, pid=os.getpid(), error=describe(error))
        except Exception:  # one task must not hold up the others
            log.exception("periodic task failed", task=task.__name__, pid=os.getpid())


def start_polling() -> threading.Thread:
    """Poll remotes in a thread until this process stops: a slow one must hold up neither webhooks nor comments."""

    def poll_until_stopped() -> None:
        while not stopping.is_set():
            try:
                if schema.fits():
                    deliveries.poll_due()
            except Exception:  # e.g. without a database: retried at the next poll
                log.exception("remotes could not be polled", pid=os.getpid())
            stopping.wait(settings().queue_poll_s)

    thread = threading.Thread(target=poll_until_stopped, name="remotes", daemon=True)
    thread.start()
    return thread


def sweep() -> None:
    with transaction() as database:
        for run_id in queue.sweep(database):
            log.warning("lease expired, run queued again or failed", run=run_id)
