"""The lease of a run: check and renew it, stop when it is lost, and keep on disk which attempt is held.

An expired lease says only that nobody renewed it: the database, the network, the machine or the worker may have failed.
A file that the next worker on the device finds says that the one before it died, and whether the code of the revision
was running.
"""

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

import structlog
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import selectinload

from kernels.arena.session import KnownRepeats
from kernels.cases import AnyCase
from service.db.engine import reading, transaction
from service.db.models import Run, Target
from service.domain.policy import recipes
from service.domain.policy.recipes import Recipe
from service.domain.verdicts.analysis import KnownVariances
from service.errors import LeaseLost, SandboxFailed
from service.ledger.calibration.sessions import known_variances
from service.ledger.policies import effective
from service.ledger.runs import queue, replays
from service.ledger.runs.queue import Lease
from service.settings import settings
from workers.machine.device import DeviceHere
from workers.sandbox import sandbox

log = structlog.get_logger()


stopping = threading.Event()  # this worker was asked to stop: its run goes back to the queue
draining = threading.Event()  # it was asked to end its run first


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


@dataclass(frozen=True)
class Assignment:
    """A leased run, with its recipe."""

    run: Run
    recipe: Recipe
    adapters: Mapping[str, str]
    no_sandbox: str | None  # why it is measured without a sandbox; None where there is one
    repeats_before: KnownRepeats = field(default_factory=dict)  # by the last runs of the target
    known: KnownVariances = field(default_factory=dict)  # by the last runs of the target on this worker

    @property
    def sandboxed(self) -> bool:
        return self.no_sandbox is None

    @property
    def target(self) -> Target:
        return self.run.target

    @property
    def cases(self) -> tuple[AnyCase, ...]:
        """The cases of the suite, or those of them that the run is limited to."""
        cases = self.recipe.cases(self.run.suite)
        if self.run.only_cases is None:
            return cases
        wanted = set(self.run.only_cases)
        return tuple(case for case in cases if str(case) in wanted)


def assigned(lease: queue.Lease) -> Assignment:
    """Read a leased run.  Raises SandboxFailed where the sandbox does not work any more and the run needs it."""
    loads = (selectinload(Run.target), selectinload(Run.recipe), selectinload(Run.revision))
    with reading() as session:
        run = session.execute(select(Run).where(Run.id == lease.run_id).options(*loads)).scalar_one()
        recipe = recipes.parse(run.recipe.text)
        before = replays.repeats_before(session, run, recipe.cases(run.suite))
        known = known_variances(session, run, effective(recipe, run.device))
    trouble = sandbox.self_test()
    if trouble and not (run.trusted and run.target.allow_unsandboxed):
        raise SandboxFailed(f"The sandbox stopped working: {trouble}.")
    return Assignment(run, recipe, run.recipe.adapters, trouble, before, known)


_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Remains:
    """An attempt of a worker that died."""

    lease: Lease
    in_code: bool  # the code of the revision was running, and the machine has not been restarted since


class Holding:
    """The attempt that this worker holds: a file for as long as the block lasts."""

    def __init__(self, lease: Lease, here: DeviceHere) -> None:
        self._lease, self._file = lease, _file(here)
        self.in_code = False

    def __enter__(self) -> Self:
        self._write()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def code_starts(self) -> None:
        """From now on a build or a contender of the revision may run."""
        self.in_code = True
        self._write()

    def _write(self) -> None:
        lease = self._lease
        entry = {"run": lease.run_id, "attempt": lease.attempt, "worker": lease.worker}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps({**entry, "in_code": self.in_code, "boot": _boot()}))
        except OSError as error:  # a run can do without, e.g. on a full disk that it makes room on
            log.warning("the attempt could not be noted", file=str(self._file), error=str(error))


def remains(here: DeviceHere) -> Remains | None:
    """The attempt of a worker of this device that died.  Only the holder of the device's lock may call this."""
    try:
        entry = json.loads(_file(here).read_text())
        lease = Lease(entry["run"], entry["attempt"], entry["worker"])
        return Remains(lease, in_code=entry["in_code"] and entry["boot"] == _boot())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget(here: DeviceHere) -> None:
    """Forget the attempt, once it is reported."""
    _file(here).unlink(missing_ok=True)


def _file(here: DeviceHere) -> Path:
    return settings().state / "holding" / f"{here.key}.json"


def _boot() -> str:
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""
