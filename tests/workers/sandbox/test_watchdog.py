"""The watchdog ends a program, whatever its own limits, when the machine is short of something."""

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import GIB, MIB
from workers.sandbox import usage
from workers.sandbox.cgroups import Limits
from workers.sandbox.usage import Free
from workers.sandbox.watchdog import Disk, Tail, Watchdog

ROOM = Free(100 * GIB, 10**6)
DISK, MEMORY = "the disk of the worker is full", "the worker has run out of memory"


@pytest.fixture
def watchdog(tmp_path: Path) -> Iterator[Watchdog]:
    """Of a program that takes nothing, before it has looked."""
    limits = Limits()
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield Watchdog(process, limits, Disk.measured([tmp_path], limits), Tail(1000))
        process.kill()


@pytest.mark.parametrize(
    ("free", "memory", "reason", "shortage"),
    [
        (ROOM, (8 * GIB, 64 * GIB), None, 0),
        (Free(256 * MIB, 10**6), (GIB, 64 * GIB), None, 0),
        (Free(256 * MIB - 1, 10**6), (8 * GIB, 64 * GIB), DISK, errno.ENOSPC),
        (Free(100 * GIB, 4999), (8 * GIB, 64 * GIB), DISK, errno.ENOSPC),
        (Free(100 * GIB, None), (8 * GIB, 64 * GIB), None, 0),
        (ROOM, (GIB - 1, 64 * GIB), MEMORY, errno.ENOMEM),
        (ROOM, (GIB // 2, 8 * GIB), None, 0),
        (ROOM, (GIB // 4, 8 * GIB), MEMORY, errno.ENOMEM),
    ],
)
def test_a_machine_that_is_short_ends_the_program_without_blame(
    watchdog: Watchdog,
    monkeypatch: pytest.MonkeyPatch,
    free: Free,
    memory: tuple[int, int],
    reason: str | None,
    shortage: int,
) -> None:
    monkeypatch.setattr(usage, "free", lambda _: free)
    monkeypatch.setattr(usage, "available", lambda: memory)
    assert (watchdog.broken(), watchdog.shortage) == (reason, shortage)
