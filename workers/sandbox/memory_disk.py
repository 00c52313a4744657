"""A file system of its own size, in memory: a program that fills it fills nothing else.

It needs no rights: bubblewrap mounts it in namespaces in which a process waits, and sandboxes are started from there.
Everybody else reaches it through the root of that process.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from workers.sandbox import usage

log = structlog.get_logger()

MAX_SHARE = 0.5  # of the memory that is available: a larger one would crowd out other work
START_S = 10.0
Spawn = Callable[[list[str]], "subprocess.Popen[bytes]"]


@dataclass(frozen=True)
class MemoryDisk:
    folder: Path  # where it is mounted in the namespaces of `pid`
    pid: int

    @property
    def enter(self) -> tuple[str, ...]:
        """The prefix of a command that has to see the file system at its folder."""
        return ("nsenter", f"--target={self.pid}", "--user", "--mount", "--preserve-credentials", "--")

    @property
    def content(self) -> Path:
        """The path of the file system for this process."""
        return Path(f"/proc/{self.pid}/root{self.folder}")

    @property
    def full(self) -> bool:
        free = usage.free(self.content)
        return free is not None and free.size == 0


@contextmanager
def mounted(folder: Path, size: int, bwrap: str | None, spawn: Spawn) -> Iterator[MemoryDisk | None]:
    """Mount an empty file system of `size` bytes at `folder`; None where the machine has no room or no rights for it.

    `spawn` starts bubblewrap with a pipe for its output.  Its content is gone at the end.
    """
    if bwrap is None or not shutil.which("nsenter") or size > MAX_SHARE * usage.available()[0]:
        yield None
        return
    wait = "echo $$; exec sleep infinity"
    walls = ["--unshare-user", "--die-with-parent", "--dev-bind", "/", "/", "--size", str(size), "--tmpfs", str(folder)]
    process = spawn([bwrap, *walls, "--", "/bin/sh", "-c", wait])
    with process:
        try:
            said = process.stdout.readline() if process.stdout else b""  # ends at the latest with the process
            disk = MemoryDisk(folder, int(said)) if said else None
            if disk is None or not _can_enter(disk):
                disk = None
                log.warning("this build gets no file system in memory; its use of the disk is checked from outside")
            yield disk
        finally:
            process.kill()


def _can_enter(disk: MemoryDisk) -> bool:
    tried = subprocess.run([*disk.enter, "/bin/true"], capture_output=True, timeout=START_S, check=False)
    return tried.returncode == 0 and disk.content.is_dir()
