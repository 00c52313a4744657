"""Hold a process to its limits from outside: time, processes, memory, disk, and output."""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from service.settings import GIB, MIB

CHECK_EVERY_S = 0.1  # a fork bomb makes about 500 processes in that time
MIN_FILE_BYTES = 4096  # counted for every file: many empty files fill a disk as well
AnyProcess = subprocess.Popen[bytes] | subprocess.Popen[str]
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Limits:
    """The limits of one process and everything that it starts."""

    wall_s: float = 600
    disk: int = 2 * GIB  # bytes in the writable folders beyond what was there at the start
    memory: int = 0  # bytes of their own memory; 0: three quarters of the machine's
    processes: int = 2048  # threads count as well
    files: int = 4096  # open at once

    @property
    def max_memory(self) -> int:
        return self.memory or os.sysconf("SC_PHYS_PAGES") * _PAGE * 3 // 4


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
    """Drain the read end of a pipe into a tail from a thread, and close it at the end."""

    def drain() -> None:
        with os.fdopen(source, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 18):
                into.add(data)
        into.close()

    thread = threading.Thread(target=drain, name="pump", daemon=True)
    thread.start()
    return thread


class Watchdog(threading.Thread):
    """Checks one process until it ends, and kills it with everything that it started once it breaks a limit.

    `inner` is the first process of a sandbox's namespace: all others in it die with it.  Without a sandbox, `cookie` is
    in the environment of the process and finds descendants that left their parent.
    """

    def __init__(
        self,
        process: AnyProcess,
        limits: Limits,
        folders: Sequence[Path],
        log: Tail,
        *,
        inner: int | None = None,
        cookie: str | None = None,
        every_s: float = CHECK_EVERY_S,
        leaves: ExitStack | None = None,
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.reason: str | None = None
        self.timed_out = False
        self._process, self._limits, self._log, self._cookie = process, limits, log, cookie
        self._folders, self._leaves = tuple(folders), leaves or ExitStack()
        self._inner_pid = inner
        self._inner, self._every_s = _pidfd(inner), every_s
        self._ends = time.monotonic() + limits.wall_s
        self._done, self._ending = threading.Event(), threading.Lock()
        self._disk_at_start = used(self._folders, limits.disk * 64)
        self._next_disk_check = 0.0

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
            if self._process.poll() is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
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
        threads, memory = _weight(self._process.pid, self._cookie, self._limits.processes)
        if threads >= self._limits.processes:  # the kernel refuses more, and the process might retry without end
            return f"it had {self._limits.processes} processes and threads at once, which is the limit"
        if memory > self._limits.max_memory:
            return f"it used {memory / GIB:.1f} GiB of memory; the limit is {self._limits.max_memory / GIB:.1f}"
        return self.disk_broken() if time.monotonic() > self._next_disk_check else None

    def disk_broken(self) -> str | None:
        began = time.monotonic()
        written = used(self._folders, self._disk_at_start + self._limits.disk) - self._disk_at_start
        # Walking a large tree takes long: spend at most a twentieth of the time on it.
        self._next_disk_check = time.monotonic() + 20 * (time.monotonic() - began)
        if written > self._limits.disk:
            return f"it wrote more than {self._limits.disk / MIB:.0f} MiB to disk"
        return None


def used(folders: Sequence[Path], enough: int) -> int:
    """Bytes on disk in these folders; stops counting above `enough`."""
    total, waiting = 0, [os.fspath(folder) for folder in folders]
    while waiting and total <= enough:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    total += max(MIN_FILE_BYTES, entry.stat(follow_symlinks=False).st_blocks * 512)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                if total > enough:
                    break
    return total


def _weight(pid: int, cookie: str | None, enough: int) -> tuple[int, int]:
    """(threads, bytes of memory of their own) of a process and all that it started; stops counting above `enough`."""
    seen, waiting = {pid}, [pid]
    threads = memory = 0
    if cookie:
        waiting += _carriers(cookie) - seen
        seen.update(waiting)
    while waiting and threads <= enough:
        one = waiting.pop()
        with suppress(OSError, ValueError, IndexError):
            resident, shared = Path(f"/proc/{one}/statm").read_text().split()[1:3]
            memory += (int(resident) - int(shared)) * _PAGE
            threads += len(os.listdir(f"/proc/{one}/task"))
        new = [child for child in _children(one) if child not in seen]
        seen.update(new)
        waiting += new
    return threads, memory


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return children


def _carriers(cookie: str) -> set[int]:
    found = set()
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and cookie.encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.add(int(name))
    return found - {os.getpid()}


def _pidfd(pid: int | None) -> int | None:
    try:
        return os.pidfd_open(pid) if pid else None
    except OSError:  # gone already
        return None


def _kill_carriers(cookie: str) -> None:
    """Kill what an unsandboxed process left behind, until nothing new appears."""
    for _ in range(50):
        left = {pid for pid in _carriers(cookie) if _lives(pid)}
        if not left:
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
