"""Control groups: the only limit on processes that applies to root as well.  Used where they can be made."""

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

from workers.sandbox.watchdog import Limits

ABANDONED_S = 3600
_ROOT = Path("/sys/fs/cgroup")


def make(limits: Limits) -> Path | None:
    """Make a group with these limits, joined by writing to its `cgroup.procs`; None where that is not possible."""
    base = _base()
    if base is None:
        return None
    _sweep(base)
    group = base / f"kernelwatch-{uuid.uuid4().hex[:12]}"
    try:
        group.mkdir()
        (group / "pids.max").write_text(str(limits.processes))
    except OSError:
        remove(group)
        return None
    with suppress(OSError):
        if (group / "memory.max").exists():
            (group / "memory.max").write_text(str(limits.max_memory))
    return group


def remove(group: Path) -> None:
    """Remove a group once its processes have ended."""
    for _ in range(20):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return


def _sweep(base: Path) -> None:
    """Remove the groups of workers that were killed; a group with processes stays."""
    for left in base.glob("kernelwatch-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_ctime > ABANDONED_S:
                left.rmdir()


def _base() -> Path | None:
    if os.geteuid() != 0:  # for other users the kernel itself counts processes
        return None
    with suppress(OSError):
        if "pids" in (_ROOT / "cgroup.subtree_control").read_text().split():
            return _ROOT
    older = _ROOT / "pids"
    return older if (older / "cgroup.procs").exists() else None
