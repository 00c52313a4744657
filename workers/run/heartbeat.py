"""Renew the lease of a run while it is measured, and stop the run at once when the lease is lost."""

import threading
import time
from typing import Protocol, Self

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.db.engine import transaction
from service.errors import LeaseLost
from service.ledger.runs import queue

log = structlog.get_logger()


stopping = threading.Event()  # this worker was asked to stop: its run goes back to the queue


class Stopped(Exception):
    """The worker is stopping; the attempt of the run does not count."""

    def __init__(self) -> None:
        super().__init__("the worker was stopped")


class Heart(Protocol):
    """The interface of a lease that a session uses."""

    def say(self, stage: str) -> None:
        """Store the stage that the run is in."""

    def keep_going(self) -> None:
        """Raises when the session must end."""


class Heartbeat:
    """Renews `lease` from a thread.  `keep_going` raises LeaseLost once the run is not ours any more.

    A local monotonic clock counts as well as the database: a worker without the database for longer than the lease must
    assume that another one measures the run by now.
    """

    def __init__(self, lease: queue.Lease, lease_s: float) -> None:
        self._lease, self._lease_s = lease, lease_s
        self._renewed = time.monotonic()
        self._stage: str | None = None
        self._lost: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def say(self, stage: str) -> None:
        """The stage that the run is in; it is stored with the next heartbeat."""
        self._stage = stage

    def keep_going(self) -> None:
        """Raises LeaseLost when the run was cancelled, swept or not renewed in time; Stopped when the worker ends."""
        if stopping.is_set():
            raise Stopped
        if self._lost is None and time.monotonic() - self._renewed > self._lease_s:
            self._lost = "the database could not be reached for longer than the lease"
        if self._lost is not None:
            raise LeaseLost(self._lost)

    def _beat(self) -> None:
        while not self._over.wait(min(self._lease_s / 4, 2.0)):
            try:
                with transaction() as session:
                    queue.renew(session, self._lease, self._lease_s, self._stage)
                    queue.heartbeat(session, self._lease.worker, self._lease.run_id)
                self._renewed = time.monotonic()
            except LeaseLost as lost:
                self._lost = str(lost)
                return
            except SQLAlchemyError as error:
                log.warning("the lease could not be renewed", run=self._lease.run_id, error=str(error))
