"""The embedded size: look at the ledger by a timer until told to stop."""

import signal
from collections.abc import Callable
from types import FrameType

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.settings import settings
from workers import duties, facts_lane
from workers.device import exclusive
from workers.heartbeat import stopping

log = structlog.get_logger()


def until_stopped(duty: Callable[[], object], every_s: float) -> None:
    """Do `duty` again and again, `every_s` apart, until SIGTERM or SIGINT.

    A database that is away and a disk that is full are waited for.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    while not stopping.is_set():
        try:
            duty()
        except SQLAlchemyError as error:
            log.error("the database did not answer", error=str(error))
        except OSError as error:
            log.error("the machine had trouble", error=str(error))
        stopping.wait(every_s)


def worker() -> None:
    """Work for this machine's device; only one process may at a time."""
    device = duties.here().name
    with exclusive(device):
        until_stopped(lambda: duties.work(device), settings().look_every_s)


def control() -> None:
    facts_lane.beside_control()
    until_stopped(duties.control, settings().look_every_s)
