"""Hold a process to its limits from outside: time, processes, memory, disk, and output."""

import errno
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from service.settings import GIB, MIB
from workers.sandbox import cgroups, usage
from workers.sandbox.cgroups import Limits

CHECK_EVERY_S = 0.1  # a fork bomb makes about 500 processes in that time
# Below these the machine itself is short of something: whatever runs in a sandbox ends first.
MIN_FREE_DISK, MIN_FREE_FILES = 256 * MIB, 5000
MIN_FREE_MEMORY, MIN_MEMORY_SHARE = GIB, 0.05  # the smaller one
AnyProcess = subprocess.Popen[bytes] | subprocess.Popen[str]


class Tail:
    """Keeps the end of any amount of output in memory and optionally in a file; in memory its beginning as well.

    `limit` and `beginning` are in bytes.
    """

    def __init__(self, limit: int, file: Path | None = None, *, beginning: int = 0) -> None:
        self._limit, self._kept, self._dropped = limit, bytearray(), 0
        self._first, self._beginning = bytearray(), beginning
        self._out = open(file, "wb+", buffering=0) if file else None  # noqa: SIM115  # closed by close()
        self._lock = threading.Lock()

    def add(self, data: bytes) -> None:
        # On a full disk only the file is incomplete: the end is kept in memory as well.
        with self._lock, suppress(OSError):
            room = self._beginning - len(self._first)
            self._first += data[:room]
            self._kept += data[room:]
            if len(self._kept) <= 2 * self._limit:
                if self._out:
                    self._out.write(data)
                return
            self._dropped += len(self._kept) - self._limit
            del self._kept[: -self._limit]
            if self._out:
                self._out.seek(0)
                self._out.truncate()
                self._out.write(self._note() + self._kept)

    def say(self, line: str) -> None:
        """Add a line of kernelwatch to the log."""
        with self._lock:
            start = b"" if not self._kept or self._kept.endswith(b"\n") else b"\n"
        self.add(start + f"[kernelwatch] {line}\n".encode())

    def text(self) -> str:
        with self._lock:
            return (self._first + self._note() + self._kept[-self._limit :]).decode(errors="replace")

    def close(self) -> None:
        with self._lock:
            if self._out:
                self._out.close()
                self._out = None

    def _note(self) -> bytes:
        left_out = self._dropped + max(0, len(self._kept) - self._limit)
        if not left_out:
            return b""
        start, where = ("\n", "here ") if self._first else ("", "the first ")
        return f"{start}[kernelwatch] {where}{left_out / MIB:.1f} MiB were left out\n".encode()


def pump(source: int, into: Tail) -> threading.Thread:
    """Drain the read end of a pipe into a tail from a thread, and close both at the end.

    If the thread cannot start, only the read end is closed.
    """

    def drain() -> None:
        with os.fdopen(source, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 18):
                into.add(data)
        into.close()

    thread = threading.Thread(target=drain, name="pump", daemon=True)
    try:
        thread.start()
    except BaseException:
        os.close(source)
        raise
    return thread


def kill_group(process: AnyProcess) -> None:
    """Kill a process that has not ended, and its process group."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Disk:
    """The folders of a program on disk, and what they held before it started: it cannot falsify that."""

    folders: tuple[Path, ...]
    devices: Mapping[int, Path]  # a folder on each
    used: int  # bytes
    free: Mapping[int, usage.Free]  # by device

    @classmethod
    def measured(cls, folders: Sequence[Path], limits: Limits) -> Self:
        """Raises OSError if one of the folders cannot be measured."""
        devices = {os.stat(folder).st_dev: folder for folder in folders}
        return cls(tuple(folders), devices, usage.used(folders, limits.disk * 64), _free_on(devices))


class Watchdog(threading.Thread):
    """Checks one process until it ends, and kills it with everything that it started once it breaks a limit.

    `inner` is the first process of a sandbox's namespace: all others in it die with it.  Without a sandbox, `cookie` is
    in the environment of the process and finds descendants that left their parent.  `in_memory` are file systems in
    memory, and `group` is the process's control group.

    `shortage` is the error number of what the machine has run out of, where it did: then the process, whose limits were
    not broken, is not at fault.
    """

    def __init__(
        self,
        process: AnyProcess,
        limits: Limits,
        disk: Disk,
        log: Tail,
        *,
        inner: int | None = None,
        cookie: str | None = None,
        in_memory: Sequence[Path] = (),
        group: cgroups.Group | None = None,
        every_s: float = CHECK_EVERY_S,
        leaves: ExitStack | None = None,
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.reason: str | None = None
        self.timed_out = False
        self.shortage = 0
        self.started = True  # False once it is known that bubblewrap failed to start the program
        self._died_of_memory = False
        self._process, self._limits, self._log, self._cookie = process, limits, log, cookie
        self._disk, self._leaves = disk, leaves or ExitStack()
        self._in_memory, self._group = tuple(in_memory), group
        self._inner_pid = inner
        self._inner, self._every_s = _pidfd(inner), every_s
        self._ends = time.monotonic() + limits.wall_s
        self._done, self._ending = threading.Event(), threading.Lock()
        self._written, self._free = 0, disk.free
        self._next_disk_check = self._earliest_disk_check = 0.0

    def run(self) -> None:
        # Any failure here kills the process: it must not run without a watchdog.
        with self._leaves:
            try:
                while self._process.poll() is None and not self._done.wait(self._every_s):
                    if reason := self.broken():
                        self.reason = reason
                        # Before the end, so that the log is complete when the process has ended.
                        self._log.say(f"ended: {reason}")
                        break
            finally:
                self.end()
                self._died_of_memory = self._group is not None and self._group.ran_out_of_memory()

    def over(self) -> None:
        """Kill everything now, and return when it is gone."""
        self._done.set()
        self.join()

    def end(self) -> None:
        """Kill the process and everything that belongs to it, and wait a few seconds at most until it is gone."""
        with self._ending:
            if self._inner_pid:
                # Among thousands of processes it would be scheduled only after seconds, and it must run to kill them.
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, self._inner_pid, -20)
            kill_group(self._process)
            # bubblewrap ties the namespace to its own life only once it is set up, so kill that as well.
            if self._inner is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._inner, signal.SIGKILL)
                select.select([self._inner], [], [], 5)  # readable once the namespace is empty
                os.close(self._inner)
                self._inner = None
            if self._cookie:
                _kill_carriers(self._cookie)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)

    def broken(self) -> str | None:
        """The limit that is broken now, in words; None where there is none."""
        if time.monotonic() > self._ends:
            self.timed_out = True
            return f"it took longer than {self._limits.wall_s:g} s"
        pids = usage.processes(self._process.pid, self._cookie, self._limits.processes)
        if usage.threads(pids) >= self._limits.processes:  # the kernel refuses more, and it might retry without end
            return f"it had {self._limits.processes} processes and threads at once, which is the limit"
        held = cache(lambda: usage.held(pids, frozenset(self._disk.devices)))
        return self._memory_broken(pids, held) or self._disk_due(held) or self._machine_short()

    def used_up(self) -> str | None:
        """The limit on memory or disk that the process had broken when it ended, in words."""
        return self._too_much_memory() if self._died_of_memory else self._disk_broken(usage.Held())

    def _memory_broken(self, pids: Sequence[int], held: Callable[[], usage.Held]) -> str | None:
        if self._group and self._group.limits_memory:
            return self._too_much_memory() if self._group.ran_out_of_memory() else None
        used = usage.memory(pids, self._in_memory, held(), self._limits.max_memory)
        return self._too_much_memory() if used > self._limits.max_memory else None

    def _too_much_memory(self) -> str:
        return f"it used more than {self._limits.max_memory / GIB:.1f} GiB of memory"

    def _disk_due(self, held: Callable[[], usage.Held]) -> str | None:
        now, room = time.monotonic(), max(0, self._limits.disk - self._written) // 2
        # Others may use the disk as well, so less free space is a reason to count, and no proof.
        early = now >= self._earliest_disk_check and self._fell_by(self._free, room)
        return self._disk_broken(held()) if early or now >= self._next_disk_check else None

    def _disk_broken(self, held: usage.Held) -> str | None:
        began = time.monotonic()
        self._free = _free_on(self._disk.devices)
        if held.hidden:
            return "it hid its open files: its program may be run, but not read"
        if held.in_flight and self._fell_by(self._disk.free, self._limits.disk):
            return "it hid open files in sockets while the disk filled up"
        most = self._disk.used + self._limits.disk
        self._written = usage.used(self._disk.folders, most) - self._disk.used + held.disk
        # Walking a large tree takes long: spend at most a twentieth of the time on it, and half if the disk fills up.
        took = time.monotonic() - began
        self._next_disk_check, self._earliest_disk_check = began + 21 * took, began + 2 * took
        if self._written > self._limits.disk:
            return f"it wrote more than {self._limits.disk / MIB:.0f} MiB to disk"
        return None

    def _fell_by(self, before: Mapping[int, usage.Free], amount: int) -> bool:
        now = _free_on(self._disk.devices)
        return any(free.size - now.get(device, free).size > amount for device, free in before.items())

    def _machine_short(self) -> str | None:
        for free in _free_on(self._disk.devices).values():
            if free.size < MIN_FREE_DISK or (free.files is not None and free.files < MIN_FREE_FILES):
                self.shortage = errno.ENOSPC
                return "the disk of the worker is full"
        available, total = usage.available()
        if available < min(MIN_FREE_MEMORY, total * MIN_MEMORY_SHARE):
            self.shortage = errno.ENOMEM
            return "the worker has run out of memory"
        return None


def _free_on(devices: Mapping[int, Path]) -> dict[int, usage.Free]:
    """By device."""
    found = ((device, usage.free(folder)) for device, folder in devices.items())
    return {device: free for device, free in found if free is not None}


def _pidfd(pid: int | None) -> int | None:
    try:
        return os.pidfd_open(pid) if pid else None
    except OSError:  # gone already
        return None


def _kill_carriers(cookie: str) -> None:
    """Kill what an unsandboxed process left behind, until nothing new appears."""
    empty = 0
    for _ in range(50):
        left = {pid for pid in usage.carriers(cookie) if _lives(pid)}
        empty = 0 if left else empty + 1
        if empty == 2:  # in the middle of execve, a process shows no environment
            return
        for one in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False
