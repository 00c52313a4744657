"""What workers do when they look: measure what is queued for a device, and everything that control looks after."""

import os
import platform
from functools import cache

import structlog

from service.database import transaction
from service.ledger import blame, history, intake, nightly, outbox, queue, regressions, searching, telling
from service.settings import settings
from workers import device, sandbox, session
from workers.heartbeat import stopping

log = structlog.get_logger()


@cache
def here() -> device.DeviceHere:
    """The device of this process, asked once."""
    return device.ask()


def name() -> str:
    """The worker's name: stable over restarts, one for each device of a host.

    In a container with one GPU every index is 0, so a GPU is named by the beginning of its UUID.
    """
    known = here().uuid
    return f"{platform.node()}/{here().name}-{known.removeprefix('GPU-')[:8] if known else here().index}"


def work(on: str) -> int:
    """Measure queued runs of device `on` until there are none.  Returns how many were taken."""
    if on != here().name:
        log.error("asked to work for another device", asked=on, here=here().name)
        return 0
    taken = 0
    while not stopping.is_set() and (lease := _claim(on)):
        log.info("run leased", run=lease.run_id, attempt=lease.attempt)
        session.measure(lease, here())
        taken += 1
    return taken


def _claim(on: str) -> queue.Lease | None:
    with transaction() as database:
        queue.sweep(database)
        lease = queue.next_run(database, on, name(), settings().lease_s)
        queue.seen(database, name(), on, here().description, sandbox.self_test(), lease.run_id if lease else None)
        return lease


def control() -> None:
    """Understand deliveries, poll remotes, return lost runs to the queue, and tell people what came of them."""
    for duty in (
        intake.understand_due,
        intake.poll_due,
        sweep,
        regressions.expire_due,
        blame.search_due,
        history.look_due,
        searching.advance_due,
        nightly.plan_due,
        telling.tell_due,
        outbox.deliver_due,
    ):
        try:
            duty()
        except Exception:  # one duty must not keep the others from being done
            log.exception("a control duty broke", duty=duty.__name__, pid=os.getpid())


def sweep() -> None:
    with transaction() as database:
        for run_id in queue.sweep(database):
            log.warning("lease ended, run swept", run=run_id)
