"""The limits of a sandboxed process."""

import os
from dataclasses import dataclass

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
