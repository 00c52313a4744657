"""What a process and all that it started use of this machine, and a file system in memory with a size of its own.

It needs no rights: bubblewrap mounts it in namespaces in which a process waits, and sandboxes are started from there.
Everybody else reaches it through the root of that process.
"""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

MIN_FILE_BYTES = 4096  # counted for every file: many empty files fill a disk as well
INODE_BYTES = 1024  # kernel memory of a file in memory
PIPE_BYTES, SOCKET_BYTES = 64 << 10, 208 << 10  # what the kernel buffers for one unless it is asked for more
MAX_PATH = 2048  # bytes; the kernel takes 4096
MAX_OPEN = 64  # folders that are open at once
_PAGE = os.sysconf("SC_PAGE_SIZE")
_DELETED = re.compile(rb"^(\w+)-(\w+) \S+ \w+ (\w+):(\w+) (\d+) +(\S.*) \(deleted\)$", re.MULTILINE)
_IN_FLIGHT = re.compile(rb"^scm_fds:\s*(\d+)", re.MULTILINE)
_IN_MEMORY = (b"/dev/zero", b"/memfd:", b"/SYSV")


# -- disk -----------------------------------------------------------------------------------------------------------


def used(folders: Iterable[Path], enough: int) -> int:
    """Bytes on disk in these folders, also below paths that are too long for the kernel; stops counting above `enough`.

    A folder that its owner may not read is made readable.  One that stays unreadable, and folders nested deeper than
    any honest program nests them, count as more than `enough`: nothing may hide there.
    """
    total = 0
    for folder in folders:
        with suppress(FileNotFoundError):
            for size in _sizes(folder, enough):
                total += size
                if total > enough:
                    return total
    return total


@dataclass
class _Base:
    """An open folder, from which the paths below it are opened."""

    fd: int

    def __del__(self) -> None:
        os.close(self.fd)


def _sizes(folder: Path, enough: int) -> Iterator[int]:
    try:
        top = _Base(_open_folder(folder))
    except PermissionError:
        yield enough + 1
        return
    waiting = [(top, ".", 0)]
    while waiting:
        base, path, depth = waiting.pop()
        if depth > MAX_OPEN:
            yield enough + 1
            return
        try:
            inside = _open_folder(path, base.fd)
        except PermissionError:
            yield enough + 1
            return
        except OSError:  # removed or replaced meanwhile
            continue
        if len(os.fsencode(path)) > MAX_PATH:
            base, path, depth = _Base(os.dup(inside)), ".", depth + 1
        try:
            with os.scandir(inside) as entries:
                for entry in entries:
                    with suppress(OSError):
                        yield max(MIN_FILE_BYTES, entry.stat(follow_symlinks=False).st_blocks * 512)
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append((base, f"{path}/{entry.name}", depth))
        finally:
            os.close(inside)


def _open_folder(path: str | Path, base: int | None = None) -> int:
    flags = os.O_DIRECTORY | os.O_CLOEXEC
    if base is not None:  # a folder that the caller names may be a link
        flags |= os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDONLY | flags, dir_fd=base)
    except PermissionError:
        # By its descriptor: in the place of a path, a link out of the sandbox may appear at any moment.
        here = os.open(path, os.O_PATH | flags, dir_fd=base)
        try:
            os.chmod(f"/proc/self/fd/{here}", 0o700)
            return os.open(f"/proc/self/fd/{here}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            os.close(here)


@dataclass(frozen=True)
class Free:
    """What may still be written to a file system."""

    size: int  # bytes
    files: int | None  # None where the file system does not count them


def free(folder: Path) -> Free | None:
    """What may still be written to the file system of a folder; None where the folder is gone."""
    try:
        found = os.statvfs(folder)
    except FileNotFoundError:
        return None
    return Free(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


# -- processes ------------------------------------------------------------------------------------------------------


def processes(pid: int, cookie: str | None, enough: int) -> list[int]:
    """A process, all that it started, and every other with `cookie` in its environment; stops above `enough`."""
    seen, waiting = {pid}, [pid]
    if cookie:
        waiting += carriers(cookie) - seen
        seen.update(waiting)
    while waiting and len(seen) <= enough:
        new = [child for child in _children(waiting.pop()) if child not in seen]
        seen.update(new)
        waiting += new
    return list(seen)


def carriers(cookie: str) -> set[int]:
    """The processes with `cookie` in their environment, without this one."""
    found = set()
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and cookie.encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.add(int(name))
    return found - {os.getpid()}


def threads(pids: Sequence[int]) -> int:
    count = 0
    for pid in pids:
        with suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def _tasks(pids: Iterable[int]) -> list[Path]:
    """The folder in /proc of one thread that lives, for each process: a process may outlive its first thread."""
    return [task for pid in pids if (task := next(filter(_lives, _threads(pid)), None)) is not None]


def _threads(pid: int) -> Iterator[Path]:
    yield Path(f"/proc/{pid}")
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            yield Path(f"/proc/{pid}/task/{thread}")


def _lives(task: Path) -> bool:
    try:
        return not (task / "statm").read_text().startswith("0 ")
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return children


# -- memory ---------------------------------------------------------------------------------------------------------


def memory(pids: Sequence[int], in_memory: Iterable[Path], held: "Held", limit: int) -> int:
    """Bytes of memory that processes hold, without pages of files on disk, which the kernel can drop.

    `in_memory` are file systems in memory that only these processes write to.
    """
    other = held.memory + sum(map(_used_in_memory, in_memory))
    tasks = _tasks(pids)
    own = sum(map(_unshared, tasks))
    if own + other <= limit:
        return own + other
    # What a process shares with its parent since a fork counts in both: divide it, which costs milliseconds.
    return other + sum(map(_proportional, tasks))


def available() -> tuple[int, int]:
    """(bytes that new programs can use, bytes in all) of this machine's memory."""
    numbers = dict(re.findall(r"^(MemAvailable|MemTotal): +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE))
    return int(numbers["MemAvailable"]) << 10, int(numbers["MemTotal"]) << 10


def _used_in_memory(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize + (found.f_files - found.f_ffree) * INODE_BYTES


def _unshared(task: Path) -> int:
    with suppress(OSError, ValueError, IndexError):
        resident, shared = (task / "statm").read_text().split()[1:3]
        return (int(resident) - int(shared)) * _PAGE
    return 0


def _proportional(task: Path) -> int:
    with suppress(OSError):
        if found := re.search(r"^Pss_Anon: +(\d+) kB", (task / "smaps_rollup").read_text(), re.MULTILINE):
            return int(found[1]) << 10
    return _unshared(task)


# -- files without a name -------------------------------------------------------------------------------------------


@dataclass
class Held:
    """What processes hold without a name in any folder: deleted files, memory that they share, pipes, and sockets."""

    memory: int = 0
    disk: int = 0
    hidden: bool = False  # the open files of a process cannot be read
    in_flight: int = 0  # open files that were sent through a socket, and not received yet
    _seen: set[tuple[int, int]] = field(default_factory=set, repr=False)


def held(pids: Sequence[int], devices: frozenset[int]) -> Held:
    """Count files without a name.  `devices` are those of the file systems on disk that the processes may write to."""
    found = Held()
    for task in _tasks(pids):
        _count_open(found, task, devices)
        _count_mapped(found, task, devices)
    return found


def _count_open(found: Held, task: Path, devices: frozenset[int]) -> None:
    try:
        names = os.listdir(task / "fd")
    except OSError:  # it has ended, or the kernel protects it because its program may not be read
        found.hidden = found.hidden or _lives(task)
        return
    for name in names:
        with suppress(OSError):
            seen = os.stat(task / "fd" / name)
            if (seen.st_dev, seen.st_ino) in found._seen or seen.st_nlink > 1:
                continue
            kind = stat.S_IFMT(seen.st_mode)
            if kind in (stat.S_IFIFO, stat.S_IFSOCK):
                found._seen.add((seen.st_dev, seen.st_ino))
                found.memory += PIPE_BYTES if kind == stat.S_IFIFO else SOCKET_BYTES
                if sent := _IN_FLIGHT.search((task / "fdinfo" / name).read_bytes()):
                    found.in_flight += int(sent[1])
            elif kind == stat.S_IFREG and seen.st_nlink == 0:
                found._seen.add((seen.st_dev, seen.st_ino))
                size = seen.st_blocks * 512
                if seen.st_dev in devices:
                    found.disk += size
                elif os.readlink(task / "fd" / name).startswith("/memfd:"):
                    found.memory += size  # deleted files of /tmp are counted with their file system


def _count_mapped(found: Held, task: Path, devices: frozenset[int]) -> None:
    """Count deleted files that are mapped but not open, by the size of the mapping: nothing tells more."""
    try:
        maps = (task / "maps").read_bytes()
    except OSError:
        return
    if b"(deleted)" not in maps:
        return
    for match in _DELETED.finditer(maps):
        begin, end, major, minor, inode, name = match.groups()
        device = os.makedev(int(major, 16), int(minor, 16))
        if (device, int(inode)) in found._seen:
            continue
        size = int(end, 16) - int(begin, 16)
        if device in devices:
            found._seen.add((device, int(inode)))
            found.disk += size
        elif name.startswith(_IN_MEMORY):
            found._seen.add((device, int(inode)))
            found.memory += size


log = structlog.get_logger()

MAX_SHARE = 0.5  # of the memory that is available: a larger one would crowd out other work
START_S = 10.0
Spawn = Callable[[list[str]], "subprocess.Popen[bytes]"]


@dataclass(frozen=True)
class MemoryDisk:
    folder: Path  # where it is mounted in the namespaces of `pid`
    pid: int
    size: int  # bytes

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
        room = free(self.content)
        return room is not None and room.size == 0


@contextmanager
def mounted(folder: Path, size: int, bwrap: str | None, spawn: Spawn) -> Iterator[MemoryDisk | None]:
    """Mount an empty file system of `size` bytes at `folder`; None where the machine has no room or no rights for it.

    `spawn` starts bubblewrap with a pipe for its output.  Its content is gone at the end.
    """
    if bwrap is None or not shutil.which("nsenter") or size > MAX_SHARE * available()[0]:
        yield None
        return
    wait = "echo $$; exec sleep infinity"
    walls = ["--unshare-user", "--die-with-parent", "--dev-bind", "/", "/", "--size", str(size), "--tmpfs", str(folder)]
    process = spawn([bwrap, *walls, "--", "/bin/sh", "-c", wait])
    with process:
        try:
            said = process.stdout.readline() if process.stdout else b""  # ends at the latest with the process
            disk = MemoryDisk(folder, int(said), size) if said else None
            if disk is None or not _can_enter(disk):
                disk = None
                log.warning("this build gets no file system in memory; its use of the disk is checked from outside")
            yield disk
        finally:
            process.kill()


def _can_enter(disk: MemoryDisk) -> bool:
    tried = subprocess.run([*disk.enter, "/bin/true"], capture_output=True, timeout=START_S, check=False)
    return tried.returncode == 0 and disk.content.is_dir()
