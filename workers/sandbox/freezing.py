"""Stop what a contender started while others are measured; read its CPU time and its memory, which may be hostile.

A control group (version 2) stops every process in it, whatever it does, and counts the time of those that ended as
well.  It needs no controller, only a folder that this user may write: as root, or in a delegated subtree.  Elsewhere
SIGSTOP goes to every process, repeatedly, because a process that still runs can start others.  Stopping process 1 of
the namespace alone leaves its children running.
"""

import ctypes
import errno
import os
import signal
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from workers.sandbox import cgroups

_libc = ctypes.CDLL(None, use_errno=True)
_NOT_ALLOWED = (errno.ENOSYS, errno.EPERM)  # by an old kernel, or by a filter of system calls


class _Part(ctypes.Structure):
    """A `struct iovec`."""

    _fields_ = (("address", ctypes.c_void_p), ("count", ctypes.c_size_t))


class ProcessMemory:
    """The memory of the process that has this number now.  All methods raise OSError.

    Its open folder in /proc never refers to another process, even if one gets the same number later.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._folder)
        # Copying 2 MiB by a system call took 0.23 ms, and through the file `mem` 1.5 ms (November).
        self._by_call = hasattr(_libc, "process_vm_readv")

    def read(self, address: int, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        own = ctypes.addressof((ctypes.c_char * count).from_buffer(data))

        def from_file(done: int) -> int:
            with open("mem", "rb", buffering=0, opener=self._open) as memory:
                return os.preadv(memory.fileno(), [view[done:]], address + done)

        self._copy("process_vm_readv", from_file, own, address, count)
        return data

    def write(self, address: int, data: bytearray | memoryview) -> None:
        view = memoryview(data)
        own = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))

        def to_file(done: int) -> int:
            with open("mem", "r+b", buffering=0, opener=self._open) as memory:
                return os.pwrite(memory.fileno(), view[done:], address + done)

        self._copy("process_vm_writev", to_file, own, address, len(data))

    def _copy(self, name: str, by_file: Callable[[int], int], own: int, address: int, count: int) -> None:
        """Copy all bytes; the kernel may stop after some."""
        done = 0
        while done < count:
            copied = self._call(name, own + done, address + done, count - done) if self._by_call else by_file(done)
            if copied is None:
                self._by_call = False
                continue
            if not copied:
                raise OSError(errno.EFAULT, "the address is not in its memory")
            done += copied

    def _call(self, name: str, own: int, address: int, count: int) -> int | None:
        """How many bytes were copied; None where the call is not allowed."""
        os.stat("comm", dir_fd=self._folder)  # raises if the process has ended, so that its number may be another's
        here, there = _Part(own, count), _Part(address, count)
        function: Any = getattr(_libc, name)
        copied = int(function(self._pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
        if copied >= 0:
            return copied
        number = ctypes.get_errno()
        if number in _NOT_ALLOWED:
            return None
        raise OSError(number, os.strerror(number))

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_CLOEXEC, dir_fd=self._folder)


PREFIX = "kernelwatch-turns-"
MAX_WAIT_S = 2.0  # on a busy host each process must be scheduled once before it stops
POLL_S = 50e-6
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


class NotFrozen(Exception):
    """Some process did not stop."""


def group_for(limiting: cgroups.Group | None, leaves: ExitStack) -> Path | None:
    """The control group that freezes a process, joined by writing to its `cgroup.procs`; None without such groups.

    That which limits the process, if it is of version 2: a process is in one group of that hierarchy.  Otherwise a new
    one, which `leaves` removes.
    """
    for folder in limiting.folders.values() if limiting else ():
        if (folder / "cgroup.freeze").exists():
            return folder
    base = _base()
    if base is None:
        return None
    cgroups.sweep(base)
    group = base / f"{PREFIX}{uuid.uuid4().hex[:12]}"
    try:
        group.mkdir()
    except OSError:
        return None
    leaves.callback(cgroups.Group({"": group}, limits_memory=False).remove)
    return group if (group / "cgroup.freeze").exists() else None  # since Linux 5.2


def _base() -> Path | None:
    """The control group of this process in the hierarchy of version 2."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line.removeprefix("0::") for line in lines if line.startswith("0::"))
        mount = next(mount for mount in _MOUNTS if (mount / "cgroup.controllers").exists())
        return mount / own.lstrip("/")
    return None


class Freezer:
    """Freezes the processes of one contender: those in `group`, or else those below `first`, and `itself`."""

    def __init__(self, group: Path | None, first: int, *, itself: bool) -> None:
        self._group = group
        self._first = first
        self._itself = itself
        self._joined = False  # whether its processes were seen in the group
        self._program: ProcessMemory | None = None

    @property
    def by_group(self) -> bool:
        """Whether its processes are in a control group, which none can leave."""
        if self._group is not None and not self._joined:
            self._joined = bool(_events(self._group).get(b"populated"))
            self._group = self._group if self._joined else None
        return self._joined

    def freeze(self) -> None:
        """Return when no process runs any more.  Raises NotFrozen."""
        deadline = time.monotonic() + MAX_WAIT_S
        if self.by_group and self._group is not None:
            with suppress(FileNotFoundError):  # they have ended
                _write(f"{self._group}/cgroup.freeze", b"1")
                while not _events(self._group).get(b"frozen", 1):
                    _wait(deadline)
            return
        while running := [pid for pid in self._pids() if _runs(pid)]:
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            _wait(deadline)

    def thaw(self) -> None:
        """Let them run.  Does nothing if they are not frozen."""
        if self.by_group and self._group is not None:
            with suppress(OSError):  # they have ended
                _write(f"{self._group}/cgroup.freeze", b"0")
            return
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def cpu_s(self) -> float:
        """CPU time of all processes so far.

        Without a group that of ended processes is rounded to 10 ms, and lost where their parent ignores SIGCHLD.
        """
        if self.by_group and self._group is not None:
            return _numbers(f"{self._group}/cpu.stat").get(b"usage_usec", 0) / 1e6
        return sum(map(_cpu_s, self._pids()))

    def read(self, address: int, count: int) -> bytearray:
        """Bytes of the memory of the program itself.  Raises OSError."""
        return self._memory().read(address, count)

    def write(self, address: int, data: bytearray | memoryview) -> None:
        """Change the memory of the program itself.  Raises OSError."""
        self._memory().write(address, data)

    def _memory(self) -> ProcessMemory:
        """Its memory.  A worker may open it: it owns the namespace of the sandbox."""
        if self._program is None:
            pid = self._program_pid()
            program = ProcessMemory(pid)
            if pid != self._program_pid():
                raise ProcessLookupError(errno.ESRCH, "it has ended")
            self._program = program
        return self._program

    def _program_pid(self) -> int:
        # The first child of process 1 is the program; what later loses its parent comes behind it.
        return self._first if self._itself else next(_children(self._first), 0)

    def _pids(self) -> Iterator[int]:
        """All are found if none of them runs."""
        if self._itself:
            yield self._first
        waiting = [self._first]
        while waiting:
            children = list(_children(waiting.pop()))
            waiting += children
            yield from children


def _children(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                yield from map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())


def _wait(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise NotFrozen(f"its processes did not stop within {MAX_WAIT_S:g} s")
    time.sleep(POLL_S)


def _events(group: Path) -> dict[bytes, int]:
    return _numbers(f"{group}/cgroup.events")


def _numbers(file: str) -> dict[bytes, int]:
    """The lines `name number` of a file of the kernel; empty if it is gone."""
    with suppress(OSError):
        return {name: int(number) for name, number in map(bytes.split, _read(file).splitlines())}
    return {}


# These take a third of the time of `Path`, and there are ten of them in each turn.


def _read(file: str) -> bytes:
    opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(opened, 1 << 16)
    finally:
        os.close(opened)


def _write(file: str, data: bytes) -> None:
    opened = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(opened, data)
    finally:
        os.close(opened)


def _runs(pid: int) -> bool:
    """Does any thread run, or could it?  T: stopped, t: traced, Z and X: ended."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                if _stat(f"/proc/{pid}/task/{thread}/stat")[0] not in "TtZX":
                    return True
    return False


def _cpu_s(pid: int) -> float:
    """The CPU time of a process and of its ended children, in seconds."""
    with suppress(OSError, IndexError, ValueError):
        clock = (~pid << 3) | 2  # CPUCLOCK_SCHED of that process, see clock_getcpuclockid(3): in nanoseconds
        fields = _stat(f"/proc/{pid}/stat")
        return time.clock_gettime(clock) + (int(fields[13]) + int(fields[14])) * _TICK_S
    return 0.0


def _stat(file: str) -> list[str]:
    """The fields of a process from its state on."""
    return _read(file).decode(errors="replace").rpartition(")")[2].split()
