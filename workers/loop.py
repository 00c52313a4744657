"""The worker without Celery: poll the ledger until a signal to stop."""

import os
import signal
import time
from collections.abc import Callable
from types import FrameType

import structlog
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.db import wakeups
from service.db.engine import describe
from service.ops.garbage import keep_what_is_loaded
from service.settings import make_private, settings
from workers import control
from workers.compile import facts_worker
from workers.machine.device import exclusive
from workers.run.heartbeat import draining, stopping

log = structlog.get_logger()
_ENDING_S = 6.0  # how long control waits for its tasks and its facts check; the supervisor kills it after 10
_SOONEST_S = 0.2  # between two looks, however often somebody wakes it: a storm is one look, not thousands


def until_stopped(task: Callable[[], object], every_s: float, queue: str) -> None:
    """Run `task` every `every_s` seconds, and when `queue` is woken, until a signal.

    SIGTERM and SIGINT set `stopping`, at which a task ends early; with SIGUSR1 the loop ends after the task.
    Errors of the database and of the machine are logged, and the task is retried.
    """
    waiter = wakeups.LocalWaiter(queue)
    keep_what_is_loaded()

    def stop(number: int, _frame: FrameType | None) -> None:
        (draining if number == signal.SIGUSR1 else stopping).set()
        waiter.wake()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, stop)
    while not (stopping.is_set() or draining.is_set()):
        began = time.monotonic()
        try:
            task()
        except DBAPIError as error:
            log.error("the database failed", error=describe(error))
        except SQLAlchemyError as error:
            log.error("the database did not answer", error=str(error))
        except OSError as error:
            log.error("the machine failed", error=str(error))
        if waiter.wait(every_s):
            stopping.wait(max(0.0, began + _SOONEST_S - time.monotonic()))


def worker() -> None:
    """Measure on the devices of this worker; only one process may do so at a time."""
    if trouble := make_private(settings().state):
        log.warning(trouble)
    if os.geteuid() == 0:
        log.warning("this worker is root: give it a user of its own, who owns nothing but the state folder")
    device = control.here().name
    with exclusive(*(one.key for one in control.devices())):
        until_stopped(lambda: control.work(device), settings().queue_poll_s, device)


def run_control() -> None:
    """Run the periodic tasks and facts checks in threads, until SIGTERM or SIGINT."""
    threads = [*control.start(), facts_worker.run_with_control()]
    until_stopped(control.wake, settings().queue_poll_s, wakeups.CONTROL)
    control.wake()  # so that they end
    ends = time.monotonic() + _ENDING_S
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
