"""Run untrusted programs without network, secrets or host files, with only their folders and devices, within limits.

The protection is bubblewrap's namespaces, a filter of system calls, and limits that are checked from outside.  Where
bubblewrap does not work, `Box(sandboxed=False)` keeps the limits and the bare environment only.

User namespaces without bubblewrap are not used: they would be a second implementation of bubblewrap (order of mounts,
masked /proc, dropped capabilities, no nested namespaces, death with the parent), and one package installs the first.
"""

import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import structlog

from service.errors import Refused
from service.settings import MIB, settings
from workers.sandbox import cgroups, seccomp
from workers.sandbox.folders import remove
from workers.sandbox.watchdog import CHECK_EVERY_S, Limits, Tail, Watchdog, pump

log = structlog.get_logger()

__all__ = ["Box", "Finished", "Limits", "kill", "run", "self_test", "start"]

_MEMORY, _MAX_MEMORY = ("/tmp", "/dev/shm"), 1024 * MIB  # noqa: S108  # fresh ones, inside
_UID = 1000  # inside; nothing in it needs to be root
_RETEST_S = 60
_MIN_VERSION = "version 0.7"  # the first that knows --size
CHECK_CONTENDER_EVERY_S = 0.5  # a busier watchdog would disturb its times
# What programs need of /etc.  Not all of it: as root the sandbox's user owns /etc/shadow outside.
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf")
_DEADLY = {signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTERM}
_SECRET_SYS = ("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/fs", "/sys/firmware")


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


@dataclass(frozen=True)
class Finished:
    returncode: int
    log: str  # its output; of a long one the beginning and the end
    timed_out: bool = False
    reason: str | None = None  # why it was killed; None where it was not


def run(argv: Sequence[str], box: Box, keep_going: Callable[[], None] = lambda: None) -> Finished:
    """Run a program to its end or to its limits.  `keep_going` is called every half second; an exception kills it."""
    log = Tail(settings().log_limit * 3 // 4, beginning=settings().log_limit // 4)
    read_end, write_end = os.pipe()
    try:
        process, watch = _open(
            argv, box, log, CHECK_EVERY_S, stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    pumping = pump(read_end, log)
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
                break
            keep_going()
    finally:
        watch.over()
        pumping.join(timeout=5)
    reason = watch.reason or watch.disk_broken() or _ended(process.returncode, box.limits)
    return Finished(process.returncode, log.text(), watch.timed_out, reason)


def start(argv: Sequence[str], box: Box, log: Path) -> subprocess.Popen[str]:
    """Start a program and return it with text pipes for stdin and stdout.  The end of its stderr is kept in `log`."""
    tail = Tail(settings().log_limit, log)
    read_end, write_end = os.pipe()
    try:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": write_end, **_TEXT}
        process, _ = _open(argv, box, tail, CHECK_CONTENDER_EVERY_S, **pipes)
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    _pumps[process] = pump(read_end, tail)
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a program and everything that it started, and wait until it is gone and its log is complete."""
    if watch := _watchdogs.get(process):
        watch.over()
    if pumping := _pumps.get(process):
        pumping.join(timeout=5)


def self_test() -> str | None:
    """None where the sandbox works; otherwise why not, and the fix.  A failure is tested again later."""
    global _trouble
    if _trouble is None or (_trouble[1] is not None and time.monotonic() - _trouble[0] > _RETEST_S):
        _trouble = (time.monotonic(), _tested())
    return _trouble[1]


_trouble: tuple[float, str | None] | None = None
_TEXT: dict[str, Any] = {"text": True, "encoding": "utf-8", "errors": "replace", "bufsize": 1}
_pumps: "weakref.WeakKeyDictionary[subprocess.Popen[Any], threading.Thread]" = weakref.WeakKeyDictionary()
_watchdogs: "weakref.WeakKeyDictionary[subprocess.Popen[Any], Watchdog]" = weakref.WeakKeyDictionary()


def _tested() -> str | None:
    from service.ops import doctor  # it loads the migrations, which a worker with a sandbox does without

    if _bwrap() is None:
        return f"bubblewrap is not installed; install it with `{doctor.install('bubblewrap')}`"
    with tempfile.TemporaryDirectory(prefix="kernelwatch-") as folder, _handed(Box(Path(folder))) as (arguments, fds):
        command = [*arguments, "--", "/bin/sh", "-c", "echo works"]
        done = subprocess.run(
            command, env=_bare(), pass_fds=fds, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20
        )
    if done.stdout.strip() == "works":
        if not seccomp.filtered():
            fix = "run `apt install libseccomp2` (or `dnf install libseccomp`) and restart"
            log.warning("the sandbox filters no system calls: libseccomp is missing", fix=fix)
        return None
    said = " ".join(done.stderr.split())[-300:] or f"it exited with {done.returncode}"
    if "Unknown option" in said:
        return f"bubblewrap is too old; {_MIN_VERSION} or later is needed: {said}"
    return (
        f"bubblewrap is installed but fails, probably because user namespaces are not allowed ({said}); "
        f"to allow them: {doctor.allow_user_namespaces()}"
    )


def _open(
    argv: Sequence[str], box: Box, log: Tail, every_s: float, **pipes: Any
) -> tuple[subprocess.Popen[Any], Watchdog]:
    leaves = ExitStack()  # removed once everything has ended
    group = cgroups.make(box.limits)
    if group:
        leaves.callback(cgroups.remove, group)
    if box.sandboxed:
        if _bwrap() is None:
            raise Refused(f"The sandbox does not work here: {_tested()}.")
        with _handed(box) as (arguments, fds):
            told, tell = os.pipe()
            command = [
                *_limited(box.limits, group),
                *arguments,
                "--info-fd",
                str(tell),
                "--",
                *_counted(box.limits),
                *argv,
            ]
            try:
                process = _spawn(command, env=_bare(), cwd="/", pass_fds=(*fds, tell), **pipes)
            finally:
                os.close(tell)
                inner = _child(told)
        folders: tuple[Path, ...] = (box.folder, *box.writable)
        watch = Watchdog(process, box.limits, folders, log, inner=inner, every_s=every_s, leaves=leaves)
    else:
        cookie = f"KERNELWATCH_BOX={uuid.uuid4().hex}"
        temporary = tempfile.mkdtemp(prefix="kernelwatch-")
        leaves.callback(remove, Path(temporary))
        name, _, value = cookie.partition("=")
        environment = {"PATH": "/usr/bin:/bin", "HOME": temporary, "TMPDIR": temporary, **box.environment, name: value}
        command = [*_dying_with_us(), *_limited(box.limits, group), *argv]
        process = _spawn(command, env=environment, cwd=box.folder, **pipes)

        folders = (box.folder, *box.writable, Path(temporary))
        watch = Watchdog(process, box.limits, folders, log, cookie=cookie, every_s=every_s, leaves=leaves)
    watch.start()
    _watchdogs[process] = watch
    return process, watch


def _child(told: int) -> int | None:
    """The first process of the namespace, as bubblewrap reports it; None where it failed before that."""
    with os.fdopen(told, "rb") as pipe:
        found = re.search(rb'"child-pid":\s*(\d+)', pipe.read())
    return int(found[1]) if found else None


def _spawn(command: Sequence[str], **arguments: Any) -> subprocess.Popen[Any]:
    """Start from a thread that lives as long as this process: --die-with-parent follows the thread."""

    def begin() -> subprocess.Popen[Any]:
        return subprocess.Popen(command, start_new_session=True, **arguments)

    return _spawner(os.getpid()).submit(begin).result()


@cache
def _spawner(_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="spawner")  # a forked process needs its own


def _limited(limits: Limits, group: Path | None = None) -> tuple[str, ...]:
    """The prefix of a command: resource limits that its children inherit and cannot raise."""
    script = [
        *([f"echo $$ > {group}/cgroup.procs"] if group else []),
        "ulimit -c 0",
        f"ulimit -f {_at_most(limits.disk, resource.RLIMIT_FSIZE) // 512}",
        f"ulimit -n {_at_most(limits.files, resource.RLIMIT_NOFILE)}",
        # When memory runs out the kernel takes this one first.
        "{ echo 1000 > /proc/self/oom_score_adj; } 2>/dev/null || :",
        'exec "$@"',
    ]
    return ("/bin/sh", "-c", "; ".join(script), "sh")


def _counted(limits: Limits) -> tuple[str, ...]:
    """The prefix of a command inside the namespace, where the limit on processes counts only those in it.

    The kernel does not count the processes of root: for it there are control groups, or the watchdog alone.
    """
    if not _counts_by_namespace():
        return ()
    number = limits.processes  # some shells call it -u, others -p
    return ("/bin/sh", "-c", f'{{ ulimit -u {number} || ulimit -p {number}; }} 2>/dev/null; exec "$@"', "sh")


def _at_most(wanted: int, which: int) -> int:
    hard = resource.getrlimit(which)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


@cache
def _counts_by_namespace() -> bool:
    """From Linux 5.14 on the limit on processes counts those in the user namespace, not all that the user has."""
    numbers = os.uname().release.split("-")[0].split(".")
    return tuple(int(number) for number in numbers[:2] if number.isdigit()) >= (5, 14)


@cache
def _dying_with_us() -> tuple[str, ...]:
    found = shutil.which("setpriv")
    return (found, "--pdeathsig", "KILL", "--") if found else ()


def _bwrap() -> str | None:
    return shutil.which("bwrap")


@cache
def _disables_namespaces(bwrap: str) -> bool:
    said = subprocess.run([bwrap, "--help"], env=_bare(), capture_output=True, text=True, check=False).stdout
    return "--disable-userns" in said


def _bare() -> dict[str, str]:
    """For bubblewrap itself: its environment can be read inside as that of process 1."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **kept}


@contextmanager
def _handed(box: Box) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """bubblewrap's command up to the program, and the descriptors that it needs until it has started."""
    user = f"kernelwatch:x:{_UID}:{_UID}::/tmp:/bin/sh\n".encode()
    passwd, group = seccomp.file_of(user), seccomp.file_of(f"kernelwatch:x:{_UID}:\n".encode())
    rules = seccomp.filter_fd()
    fds = tuple(fd for fd in (passwd, group, rules) if fd is not None)
    try:
        arguments = _walls(box)
        arguments += ["--ro-bind-data", str(passwd), "/etc/passwd", "--ro-bind-data", str(group), "/etc/group"]
        # The root and /dev are in memory that is not accounted.
        arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(box.inside or box.folder)]
        arguments += ["--seccomp", str(rules)] if rules is not None else []
        yield arguments, fds
    finally:
        for fd in fds:
            os.close(fd)


def _walls(box: Box) -> list[str]:
    bwrap = _bwrap() or "bwrap"
    walls = [bwrap, "--unshare-all", "--unshare-user", "--uid", str(_UID), "--gid", str(_UID)]
    walls += ["--disable-userns"] if _disables_namespaces(bwrap) else []
    walls += ["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--hostname", "kernelwatch", "--clearenv"]
    plain = {
        "PATH": "/usr/bin:/bin",
        "HOME": _MEMORY[0],
        "TMPDIR": _MEMORY[0],
        "USER": "kernelwatch",
        "LANG": "C.UTF-8",
    }
    for name, value in {**plain, **box.environment}.items():
        walls += ["--setenv", name, value]
    walls += ["--ro-bind", "/usr", "/usr", *_merged_folders(), "--proc", "/proc", *_switches(), "--dev", "/dev"]
    for path in [*(Path("/etc", name) for name in _ETC), *Path("/etc").glob("python3*")]:
        walls += ["--ro-bind-try", str(path), str(path)]
    for folder in _MEMORY:
        walls += ["--perms", "1777", "--size", str(min(_MAX_MEMORY, box.limits.disk)), "--tmpfs", folder]
    walls += _machine(box.devices)
    # Outer folders first: a mount hides what was mounted below it before.
    mounts = {path: ("--ro-bind-try", path) for path in _each_way(box.read_only)}
    mounts |= {path: ("--bind", path) for path in box.writable}
    mounts[box.inside or box.folder] = ("--bind", box.folder)
    mounted = {Path("/usr"): "--ro-bind-try"}
    for path, (how, source) in sorted(mounts.items(), key=lambda mount: len(mount[0].parts)):
        around = next((mounted[parent] for parent in path.parents if parent in mounted), None)
        if path not in mounted and around == how == "--ro-bind-try":
            continue  # it is there already, and a link in a folder cannot be mounted upon
        walls += [how, str(source), str(path)]
        mounted[path] = how
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


@cache
def _switches() -> tuple[str, ...]:
    """Arguments that mount machine-wide parts of /proc read-only.

    Host root may write core_pattern and its like even when it has no capability left.  Not /proc as a whole: CUDA must
    write to its own process's files in there, or fails with error 304 (H200, driver 580).
    """
    arguments: list[str] = []
    for entry in sorted(os.scandir("/proc"), key=lambda entry: entry.name):
        if entry.name.isdigit() or entry.is_symlink():
            continue
        if entry.is_dir() or entry.stat().st_mode & 0o222:
            arguments += ["--ro-bind-try", entry.path, entry.path]
    return tuple(arguments)


def _machine(devices: Sequence[Path]) -> list[str]:
    """Mounts that describe the machine: processors always, and the leased GPU with its driver's files."""
    if not devices:
        return ["--ro-bind-try", "/sys/devices/system", "/sys/devices/system"]
    arguments = ["--ro-bind", "/sys", "/sys"]
    for hidden in _SECRET_SYS:
        if Path(hidden).is_dir():
            arguments += ["--tmpfs", hidden]
    for node in devices:
        arguments += ["--dev-bind", str(node), str(node)]
    driver = Path("/usr/local/nvidia")  # where some clusters mount the driver; perhaps a link out of /usr
    if driver.is_dir() and not driver.resolve().is_relative_to("/usr"):
        arguments += ["--ro-bind", str(driver.resolve()), str(driver.resolve())]
    return arguments


def _ended(code: int, limits: Limits) -> str | None:
    number = -code if code < 0 else code - 128
    if number == signal.SIGXFSZ:
        return f"it wrote a file of more than {limits.disk / MIB:.0f} MiB"
    if number in _DEADLY:
        return f"it was killed by {signal.Signals(number).name}"
    return None
