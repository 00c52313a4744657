"""Keep on disk which attempt this worker holds, so that its successor can report how the attempt ended.

An expired lease says only that nobody renewed it: the database, the network, the machine or the worker may have failed.
A file that the next worker on the device finds says that the one before it died, and whether the code of the revision
was running.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from service.ledger.runs.queue import Lease
from service.settings import settings
from workers.device import DeviceHere

log = structlog.get_logger()

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
    return settings().state / "holding" / f"{here.uuid or here.name}.json"


def _boot() -> str:
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""
