"""The worker without Celery: an error of the database or of the machine ends no process, and a signal does."""

import errno
import os
import signal
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from structlog.testing import capture_logs

from workers import loop
from workers.run.heartbeat import draining, stopping


@pytest.fixture(autouse=True)
def signals(state: object) -> Iterator[None]:
    """The handlers of this process, and the event that they set, as they were before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    yield
    stopping.clear()
    draining.clear()
    for number, handler in before.items():
        signal.signal(number, handler)


def failing(*errors: Exception) -> tuple[Callable[[], None], list[Exception]]:
    """A task that raises these errors one after the other, and is then told to stop; and what is left to raise."""
    left = [*errors]

    def task() -> None:
        if left:
            raise left.pop(0)
        os.kill(os.getpid(), signal.SIGTERM)

    return task, left


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the machine failed"),
        (OperationalError("INSERT", {}, Exception("database or disk is full")), "the database failed"),
        (PoolTimeout("no connection became free"), "the database did not answer"),
    ],
)
def test_a_passing_failure_is_logged_and_the_task_runs_again(error: Exception, event: str) -> None:
    task, left = failing(error, error)
    with capture_logs() as logs:
        loop.until_stopped(task, 0.0, "cpu")
    assert left == []
    assert [entry["event"] for entry in logs] == [event] * 2


def test_a_mistake_of_ours_ends_the_process() -> None:
    """It is restarted by the supervisor, with the traceback in its log."""
    task, _ = failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        loop.until_stopped(task, 0.0, "cpu")


def test_a_drained_worker_is_not_told_to_stop_its_task() -> None:
    told = list[bool]()

    def task() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        told.append(stopping.is_set())

    loop.until_stopped(task, 0.0, "cpu")
    assert told == [False]
