"""The limits of a sandboxed process, and control groups that hold them where this process may make groups.

That is so for root, and for every user whose own group was delegated to it (`systemd-run --user --scope --property
Delegate=yes`).  Groups are made below that of the worker, so that its own limits hold for what it starts as well; only
root without a delegated group of version 2 makes them at the top.
"""

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from service.settings import GIB

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Limits:
    """The limits of one process and everything that it starts."""

    wall_s: float = 600
    disk: int = 2 * GIB  # bytes in the writable folders beyond what was there at the start, with deleted files
    memory: int = 0  # bytes, with files in memory; 0: three quarters of the machine's
    processes: int = 2048  # threads count as well
    files: int = 4096  # open at once

    @property
    def max_memory(self) -> int:
        return self.memory or os.sysconf("SC_PHYS_PAGES") * _PAGE * 3 // 4


ABANDONED_S = 60  # a process joins its group within moments
_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("pids", "memory")
_OURS, _WORKER = "kernelwatch-", "worker"  # groups of sandboxes, and the leaf for the processes of a delegated group


@dataclass(frozen=True)
class Group:
    """The groups of one sandbox by controller; in version 2 it is one group."""

    folders: Mapping[str, Path]
    limits_memory: bool

    @property
    def joins(self) -> list[str]:
        """Shell commands by which a process joins the group."""
        return [f"echo $$ > {folder}/cgroup.procs" for folder in dict.fromkeys(self.folders.values())]

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of the group because of the limit on memory."""
        if not self.limits_memory:
            return False
        for name in ("memory.events", "memory.oom_control"):  # versions 2 and 1
            with suppress(OSError):
                fields = (self.folders["memory"] / name).read_text().split()
                return dict(zip(fields[::2], fields[1::2], strict=False)).get("oom_kill", "0") != "0"
        return False

    def remove(self) -> None:
        """Remove the group once its processes have ended."""
        for folder in dict.fromkeys(self.folders.values()):
            _remove(folder)


def make(limits: Limits) -> Group | None:
    """Make a group with these limits; None where that is not possible."""
    bases = _bases()
    if not bases:
        return None
    name = f"{_OURS}{uuid.uuid4().hex[:12]}"
    folders: dict[str, Path] = {}
    for controller, base in bases.items():
        sweep(base)
        with suppress(OSError):
            (base / name).mkdir(exist_ok=True)
            folders[controller] = base / name
    limited = {
        "pids": "pids" in folders and _write(folders["pids"] / "pids.max", limits.processes),
        "memory": "memory" in folders and _limit_memory(folders["memory"], limits.max_memory),
    }
    group = Group({name: folder for name, folder in folders.items() if limited[name]}, limited["memory"])
    for folder in set(folders.values()) - set(group.folders.values()):
        _remove(folder)
    return group if group.folders else None


def _limit_memory(folder: Path, limit: int) -> bool:
    # The limit with swap comes second: it may not be below the one without.
    limited = _write(folder / "memory.max", limit) or _write(folder / "memory.limit_in_bytes", limit)
    _write(folder / "memory.swap.max", 0)
    _write(folder / "memory.memsw.limit_in_bytes", limit)
    _write(folder / "memory.oom.group", 1)
    return limited


def _write(file: Path, value: object) -> bool:
    try:
        if not file.exists():
            return False
        file.write_text(str(value))
    except OSError:
        return False
    return True


def _remove(folder: Path) -> None:
    for _ in range(20):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return


def sweep(base: Path) -> None:
    """Remove the groups of workers that were killed; a group with processes stays."""
    for left in base.glob(f"{_OURS}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_ctime > ABANDONED_S:
                left.rmdir()


def _bases() -> dict[str, Path]:
    """Where groups can be made, by controller."""
    own = _own()
    if (_ROOT / "cgroup.controllers").exists():
        base = _delegated(_ROOT / own.get("", "").lstrip("/")) or (_ROOT if _enabled(_ROOT) else None)
        return dict.fromkeys(_CONTROLLERS, base) if base else {}
    if os.geteuid() != 0:  # version 1 is never delegated
        return {}
    return dict(_older(own))


def _older(own: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    for controller in _CONTROLLERS:
        hierarchy = _ROOT / controller
        for base in (hierarchy / own.get(controller, "").lstrip("/"), hierarchy):
            if (base / "cgroup.procs").exists():  # in a container its own group may not be in sight
                yield controller, base
                break


def _own() -> dict[str, str]:
    """The groups of this process by controller; that of version 2 has no name."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            found |= dict.fromkeys(controllers.split(","), path)
    return found


@cache
def _delegated(own: Path) -> Path | None:
    """A group of version 2 in which groups with limits can be made: the worker's own, if it was delegated to us.

    Only groups without processes can pass limits on, so its processes move into a leaf.
    """
    if own.name == _WORKER and _enabled(own.parent):
        return own.parent
    if _enabled(own):
        return own  # the root of the system: it may hold processes all the same
    if not _may_divide(own):
        return None
    leaf = own / _WORKER
    for _ in range(5):  # a process may start meanwhile
        with suppress(OSError):
            leaf.mkdir(exist_ok=True)
            for pid in (own / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    (leaf / "cgroup.procs").write_text(pid)
            (own / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
            return own
    return None


def _enabled(group: Path) -> bool:
    with suppress(OSError):
        enabled = (group / "cgroup.subtree_control").read_text().split()
        return set(_CONTROLLERS) <= set(enabled) and os.access(group, os.W_OK)
    return False


def _may_divide(group: Path) -> bool:
    """Whether a group is this worker's alone: systemd marks what it delegates, and a container sees its own as root."""
    with suppress(OSError):
        if not set(_CONTROLLERS) <= set((group / "cgroup.controllers").read_text().split()):
            return False
        if not os.access(group / "cgroup.subtree_control", os.W_OK):
            return False
        if group == _ROOT:
            return (group / "cgroup.events").exists()  # the root of the system has none
        return os.getxattr(group, "user.delegate") == b"1"
    return False
