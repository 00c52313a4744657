"""What a sandboxed program sees of this machine (bubblewrap), and folders of builds made read-only or removed.

External programs do it, because Python's own functions recurse, and a build may nest thousands of folders.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from service.settings import MIB
from workers.sandbox import seccomp
from workers.sandbox.cgroups import Limits
from workers.sandbox.usage import MemoryDisk

_MEMORY, _MAX_MEMORY = (Path("/tmp"), Path("/dev/shm")), 1024 * MIB  # noqa: S108  # fresh ones, inside
_SMALL = 1 * MIB  # of a file system that holds only links and mount points
TOOL_LIMIT_S = 600  # of one program over a tree that a build left
_UID = 1000  # inside; nothing in it needs to be root
# What programs need of /etc.  Not all of it: as root the sandbox's user owns /etc/shadow outside.
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf")
# Not what `bwrap --dev` makes: its terminals count for the machine, and a program could take them all.
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_DESCRIPTORS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}
# What container engines hide, and what tells of other users: their keys, the kernel's addresses and its command line.
_SECRET_PROC = (
    *("acpi", "asound", "cmdline", "kallsyms", "kcore", "key-users", "keys", "kmsg", "latency_stats", "pagetypeinfo"),
    *("sched_debug", "scsi", "slabinfo", "timer_list", "timer_stats", "vmallocinfo"),
)
# The energy that processors use tells what others compute; the rest is for administrators.
_SECRET_SYS = (
    *("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/fs", "/sys/firmware"),
    *("/sys/devices/virtual/powercap", "/sys/devices/virtual/dmi"),
)


@dataclass(frozen=True)
class Box:
    """The paths and resources that one process may use.  Paths are the same inside and outside, except for `inside`."""

    folder: Path  # where it starts, writable
    read_only: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Path, ...] = ()  # nodes of the leased GPU
    limits: Limits = field(default_factory=Limits)
    sandboxed: bool = True
    inside: Path | None = None  # how `folder` is called inside, when that differs
    disk: MemoryDisk | None = None  # on which `folder` is, where it is one
    kept: bool = True  # False: in a sandbox `folder` is in memory, empty at the start and lost at the end

    @property
    def on_disk(self) -> tuple[Path, ...]:
        """The writable folders whose content a limit must hold, because their file system is the machine's."""
        own = self.disk is None and (self.kept or not self.sandboxed)
        return (*([self.folder] if own else []), *self.writable)

    @property
    def in_memory(self) -> tuple[Path, ...]:
        """The file systems in memory that only a sandboxed process writes to, as it sees them."""
        return _MEMORY if self.kept else (*_MEMORY, self.inside or self.folder)


def bwrap() -> str | None:
    return shutil.which("bwrap")


def bare_environment() -> dict[str, str]:
    """For bubblewrap itself: its environment can be read inside as that of process 1."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **kept}


@contextmanager
def command(box: Box) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """bubblewrap's command up to the program, and the descriptors that it needs until it has started."""
    user = f"kernelwatch:x:{_UID}:{_UID}::/tmp:/bin/sh\n".encode()
    fds: list[int] = []
    try:
        fds.append(passwd := seccomp.file_of(user))
        fds.append(group := seccomp.file_of(f"kernelwatch:x:{_UID}:\n".encode()))
        if (rules := seccomp.filter_fd()) is not None:
            fds.append(rules)
        arguments = [*(box.disk.enter if box.disk else ()), *_walls(box)]
        arguments += ["--ro-bind-data", str(passwd), "/etc/passwd", "--ro-bind-data", str(group), "/etc/group"]
        # The root and /dev are in memory that is not accounted.
        arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(box.inside or box.folder)]
        arguments += ["--seccomp", str(rules)] if rules is not None else []
        yield arguments, tuple(fds)
    finally:
        for fd in fds:
            os.close(fd)


@cache
def _disables_namespaces(program: str) -> bool:
    said = subprocess.run([program, "--help"], env=bare_environment(), capture_output=True, text=True, check=False)
    return "--disable-userns" in said.stdout


def _walls(box: Box) -> list[str]:
    program = bwrap() or "bwrap"
    walls = [program, "--unshare-all", "--unshare-user", "--uid", str(_UID), "--gid", str(_UID)]
    walls += ["--disable-userns"] if _disables_namespaces(program) else []
    walls += ["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--hostname", "kernelwatch", "--clearenv"]
    home = str(_MEMORY[0])
    plain = {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "USER": "kernelwatch", "LANG": "C.UTF-8"}
    for name, value in {**plain, **box.environment}.items():
        walls += ["--setenv", name, value]
    walls += ["--ro-bind", "/usr", "/usr", *_merged_folders(), "--proc", "/proc", *_kernel_files(), *_nodes()]
    for path in [*(Path("/etc", name) for name in _ETC), *Path("/etc").glob("python3*")]:
        walls += ["--ro-bind-try", str(path), str(path)]
    size = str(min(_MAX_MEMORY, box.limits.disk))
    for folder in _MEMORY:
        walls += ["--perms", "1777", "--size", size, "--tmpfs", str(folder)]
    walls += _machine(box.devices)
    # Outer folders first: a mount hides what was mounted below it before.
    mounts = {path: ["--ro-bind-try", str(path)] for path in _each_way(box.read_only)}
    mounts |= {path: ["--bind", str(path)] for path in box.writable}
    mounts[box.inside or box.folder] = ["--bind", str(box.folder)] if box.kept else ["--size", size, "--tmpfs"]
    mounted = {Path("/usr"): "--ro-bind-try"}
    for path, how in sorted(mounts.items(), key=lambda mount: len(mount[0].parts)):
        around = next((mounted[parent] for parent in path.parents if parent in mounted), None)
        if path not in mounted and around == how[0] == "--ro-bind-try":
            continue  # it is there already, and a link in a folder cannot be mounted upon
        walls += [*how, str(path)]
        mounted[path] = how[0]
    # uv locks the environment that it changes by this file, and waits.  Whoever can read a file can lock it.
    for lock in (path / ".lock" for path in _each_way(box.read_only)):
        walls += ["--ro-bind", "/dev/null", str(lock)] if lock.is_file() else []
    return walls


def _each_way(paths: Sequence[Path]) -> Iterator[Path]:
    """Each path as it is written and as it is without links: an interpreter may be called either way."""
    for path in paths:
        yield path
        with suppress(OSError):
            yield path.resolve(strict=True)


def _merged_folders() -> list[str]:
    """/bin, /lib and their like, which are links into /usr on most systems."""
    arguments: list[str] = []
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path).removeprefix("/"), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    return arguments


def _nodes() -> list[str]:
    arguments = ["--size", str(_SMALL), "--tmpfs", "/dev"]
    for name in _NODES:
        arguments += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, descriptor in _DESCRIPTORS.items():
        arguments += ["--symlink", f"/proc/self/fd{descriptor}", f"/dev/{name}"]
    return arguments


@cache
def _kernel_files() -> tuple[str, ...]:
    """Arguments that hide parts of /proc, and mount others that concern the whole machine read-only.

    Host root may write core_pattern and its like even when it has no capability left.  Not /proc as a whole: CUDA must
    write to its own process's files in there, or fails with error 304 (H200, driver 580).
    """
    arguments: list[str] = []
    for entry in sorted(os.scandir("/proc"), key=lambda entry: entry.name):
        if entry.name.isdigit() or entry.is_symlink():
            continue
        if entry.name in _SECRET_PROC:
            arguments += _hidden(entry.path) if entry.is_dir() else ["--ro-bind", "/dev/null", entry.path]
        elif entry.is_dir() or entry.stat().st_mode & 0o222:
            arguments += ["--ro-bind-try", entry.path, entry.path]
    return tuple(arguments)


def _hidden(folder: str) -> list[str]:
    return ["--size", str(_SMALL), "--tmpfs", folder, "--remount-ro", folder]


def _machine(devices: Sequence[Path]) -> list[str]:
    """Mounts that describe the machine: processors always, and the leased GPU with its driver's files."""
    if not devices:
        return ["--ro-bind-try", "/sys/devices/system", "/sys/devices/system"]
    arguments = ["--ro-bind", "/sys", "/sys"]
    for hidden in _SECRET_SYS:
        if Path(hidden).is_dir():
            arguments += _hidden(hidden)
    for node in devices:
        arguments += ["--dev-bind", str(node), str(node)]
    driver = Path("/usr/local/nvidia")  # where some clusters mount the driver; perhaps a link out of /usr
    if driver.is_dir() and not driver.resolve().is_relative_to("/usr"):
        arguments += ["--ro-bind", str(driver.resolve()), str(driver.resolve())]
    return arguments


def remove(folder: Path, keep_going: Callable[[], None] = lambda: None) -> None:
    """Remove a tree, also one whose folders a build made unreadable.  What cannot be removed stays.

    Raises nothing but what `keep_going` raises, which is called every half second.
    """
    with suppress(subprocess.TimeoutExpired):
        if folder.is_dir() and not folder.is_symlink():
            tool("chmod", "-R", "u+rwx", "--", folder, keep_going=keep_going)
        tool("rm", "-rf", "--", folder, keep_going=keep_going)


def make_read_only(folder: Path, keep_going: Callable[[], None] = lambda: None) -> None:
    """Make a tree readable by all users and writable by none, even without a sandbox.  Raises as `tool` does."""
    # No file may run as its owner outside of the sandbox, whose file systems ignore these bits.
    # GNU chmod does not follow links in the tree, and opens a folder only after it made that readable.
    tool("chmod", "-R", "a-w,a+rX,ug-s", "--", folder, keep_going=keep_going).check_returncode()


def tool(
    *command: str | Path, keep_going: Callable[[], None] = lambda: None, limit_s: float = TOOL_LIMIT_S
) -> "subprocess.CompletedProcess[str]":
    """Run a program of this machine over a tree that a build left, which decides how long that takes.

    `keep_going` is called every half second; what it raises ends the program.  Raises TimeoutExpired after `limit_s`.
    """
    ends = time.monotonic() + limit_s
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, errors="replace", **pipes) as process:
        try:
            while True:
                try:
                    output, errors = process.communicate(timeout=0.5)
                except subprocess.TimeoutExpired:
                    keep_going()
                    if time.monotonic() > ends:
                        raise subprocess.TimeoutExpired(command, limit_s) from None
                else:
                    return subprocess.CompletedProcess(command, process.returncode, output, errors)
        except BaseException:
            process.kill()
            raise
