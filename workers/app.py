"""The entry point of a fleet: Celery carries wake-ups without content, and every process also polls by a timer.

    celery --app workers.app worker --queues h200 --concurrency 1              one for each GPU
    celery --app workers.app worker --queues control --concurrency 1           one, anywhere
    celery --app workers.app worker --queues facts --concurrency 1             where there is a stack to compile with
    celery --app workers.app beat                                              one, anywhere

The database is the queue: a lost message, a wiped broker or a dead beat cost seconds, never work.
"""

import os
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from celery import Celery
from celery.signals import celeryd_after_setup, worker_process_init, worker_process_shutdown, worker_shutting_down
from kombu.entity import Queue

from service.db import wakeups
from service.db.engine import disconnect
from service.db.wakeups import CONTROL
from service.errors import Conflict
from service.ledger.policies import server_policy
from service.log import set_up_logging
from service.ops.garbage import keep_what_is_loaded
from service.settings import make_private, settings
from workers.run.heartbeat import stopping

log = structlog.get_logger()

FACTS = "facts"
ENDING_S = 50  # how long a process waits for its threads, e.g. to give a run back; compose kills it after 60
STALE_S = 60  # after which a wake-up expires: the timers have polled many times by then
MUTE_S = 10  # how long nothing is sent after a failure: a broker that is down must not delay every request
QUORUM = {"x-queue-type": "quorum"}  # survives a broker node, and redelivers at once when a consumer dies


def _broker_url() -> str:
    url = settings().broker_url
    return url.get_secret_value() if url else "memory://"


def _transport_options() -> dict[str, Any]:
    once = {"max_retries": 0, "interval_start": 0, "interval_step": 0}  # by default kombu retries without limit
    return {**once, "confirm_publish": True} if _broker_url().startswith("amqp") else once


def _queue(name: str) -> Queue:
    return Queue(name, routing_key=name, queue_arguments=QUORUM)  # type: ignore[no-untyped-call]


server_policy()  # a policy that cannot be read ends this process now, not each of its runs
celery = Celery("kernelwatch", broker=_broker_url())
celery.conf.update(
    beat_schedule={
        "control": {
            "task": "control",
            "schedule": settings().queue_poll_s,
            "options": {"queue": CONTROL, "expires": STALE_S, "expiration": STALE_S},
        }
    },
    broker_connection_max_retries=None,  # of consumers: they wait for the broker
    broker_connection_retry_on_startup=True,
    broker_connection_timeout=3,
    broker_transport_options=_transport_options(),
    task_acks_late=False,  # the row is the truth: a lost wake-up needs no second delivery
    task_create_missing_queue_type="quorum",  # a device's queue is made by its first worker or wake-up
    task_default_queue=CONTROL,
    task_ignore_result=True,
    task_publish_retry=False,
    task_queues=[_queue(name) for name in (CONTROL, FACTS)],
    worker_enable_remote_control=False,
    worker_prefetch_multiplier=1,
)


@celery.task(name="work", ignore_result=True, expires=STALE_S)  # type: ignore[untyped-decorator]
def work(device: str) -> None:
    """Measure the queued runs of this device."""
    _once(device, partial(_measure, device))


@celery.task(name="control", ignore_result=True, expires=STALE_S)  # type: ignore[untyped-decorator]
def control_task() -> None:
    """Run the periodic tasks."""
    _once(CONTROL, _control)


@celery.task(name="facts", ignore_result=True, expires=STALE_S)  # type: ignore[untyped-decorator]
def facts() -> None:
    """Do the waiting facts checks."""
    _once(FACTS, _compile)


_silent_until = 0.0


def send_wakeup(queue: str) -> None:
    """Wake the workers of a device, or of `control`.  Raises at once where the broker is down."""
    global _silent_until
    if time.monotonic() < _silent_until:
        return
    options = {"queue": queue, "expires": STALE_S, "expiration": STALE_S}
    try:
        if queue == CONTROL:
            control_task.apply_async(**options)
        elif queue == FACTS:
            facts.apply_async(**options)
        else:
            work.apply_async((queue,), **options)
    except Exception:
        _silent_until = time.monotonic() + MUTE_S
        raise


_Task = Callable[[], object]
# A process has a thread for tasks and one for the timer: only one of them works at a time.
_busy = threading.Lock()
_wanted: dict[str, _Task] = {}  # by queue
# The queues of this worker, and a pipe that becomes readable when it must stop.  The processes of its pool
# inherit both; Celery alone would let them finish their task, which may take half an hour.
_queues: list[str] = []
_ending: list[int] = []


@celeryd_after_setup.connect  # type: ignore[untyped-decorator]
def _know_the_queues(instance: Any, **_: object) -> None:
    """Refuse to start for a device that this machine does not have, before anything is taken from its queue."""
    set_up_logging()
    if settings().broker_url is None:
        sys.exit("A worker of a fleet needs KERNELWATCH_BROKER_URL; without a broker use `kernelwatch worker start`.")
    _queues[:] = list(instance.app.amqp.queues.consume_from)
    _ending[:] = os.pipe()
    if not _devices():
        return
    from workers import control

    for device in _devices():
        if device != control.here().name:
            sys.exit(f"This worker was started for {device}, but the device here is {control.here().name}.")


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _end(**_: object) -> None:
    """Tell the processes of the pool to stop.  The pipe is never read, so that each of them sees it."""
    os.write(_ending[1], b".")


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _begin(**_: object) -> None:
    """Set up a process of the pool: its own connections, wake-ups for others, and the timer."""
    disconnect(forked=True)
    if settings().broker_url is not None:
        wakeups.send_with(send_wakeup)
    threading.Thread(target=_wait_for_stop, name="end", daemon=True).start()
    if CONTROL in _queues:
        from workers import control

        _threads.extend(control.start())
    keep_what_is_loaded()
    _timer.start()


def _wait_for_stop() -> None:
    select.select([_ending[0]], [], [])
    stopping.set()


@worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def _wait_for_the_threads(**_: object) -> None:
    """Otherwise a run that the timer took would be lost, and its attempt would count.

    A message that control has just sent would be sent again.
    """
    stopping.set()
    if CONTROL in _queues:
        _control()  # so that its threads end
    ends = time.monotonic() + ENDING_S
    for thread in _threads:
        thread.join(max(0.0, ends - time.monotonic()))


def _poll_until_stopped() -> None:
    tasks: dict[str, _Task] = {device: partial(_measure, device) for device in _devices()}
    if CONTROL in _queues:
        tasks[CONTROL] = _control
    if FACTS in _queues:
        tasks[FACTS] = _compile
    if trouble := make_private(settings().state):
        log.warning(trouble)
    while not stopping.is_set():
        for queue, task in tasks.items():
            try:
                _once(queue, task)
            except Exception:  # e.g. without a database: retried at the next poll
                log.exception("poll failed")
        if not _hangs():
            with suppress(OSError):  # a full disk must not end the polling
                (settings().state / "polled").touch()  # for the health check of a process that has no row of its own
        stopping.wait(settings().queue_poll_s)


_timer = threading.Thread(target=_poll_until_stopped, name="timer", daemon=True)
_threads = [_timer]  # of this process, and those of control


def _devices() -> list[str]:
    return [queue for queue in _queues if queue not in (CONTROL, FACTS)]


def _once(queue: str, task: _Task) -> None:
    """Run the task of a queue.  In a process that is busy, who is at work runs it next: work would wait for a poll."""
    _wanted[queue] = task
    while _wanted and _busy.acquire(blocking=False):
        try:
            while _wanted:
                _wanted.popitem()[1]()
        finally:
            _busy.release()


def _measure(device: str) -> None:
    from workers import control
    from workers.machine.device import exclusive

    try:
        with exclusive(*(one.key for one in control.devices())):
            control.work(device)
    except Conflict as taken:
        log.warning("device is in use", device=device, reason=str(taken))


def _control() -> None:
    from workers import control

    control.wake()


def _hangs() -> bool:
    if CONTROL not in _queues:
        return False
    from workers import control

    return bool(control.hung())


def _compile() -> None:
    from workers.compile import facts_worker

    facts_worker.compile_due()
