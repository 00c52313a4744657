"""Run untrusted programs without network, secrets or host files, with only their folders and devices, within limits.

The protection is bubblewrap's namespaces, a filter of system calls, and limits that are checked from outside.  Where
bubblewrap does not work, `Box(sandboxed=False)` keeps the limits and the bare environment only.

User namespaces without bubblewrap are not used: they would be a second implementation of bubblewrap (order of mounts,
masked /proc, dropped capabilities, no nested namespaces, death with the parent), and one package installs the first.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import structlog

from service.errors import SandboxFailed
from service.settings import MIB, settings
from workers.sandbox import cgroups, freezing, seccomp, usage, walls
from workers.sandbox.cgroups import Limits
from workers.sandbox.usage import MemoryDisk
from workers.sandbox.walls import Box, remove
from workers.sandbox.watchdog import CHECK_EVERY_S, Disk, Tail, Watchdog, kill_group, pump

log = structlog.get_logger()

__all__ = ["Box", "Finished", "Limits", "disk_in_memory", "kill", "run", "self_test", "start"]

_RETEST_S = 60
_MIN_VERSION = "version 0.7"  # the first that knows --size
CHECK_CONTENDER_EVERY_S = 0.5  # a busier watchdog would disturb its times
_DEADLY = {signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTERM}


@dataclass(frozen=True)
class Finished:
    returncode: int
    log: str  # its output; of a long one the beginning and the end
    timed_out: bool = False
    reason: str | None = None  # why it was killed; None where it was not
    shortage: int = 0  # the error number of what the machine had run out of, if that is why it was killed


def run(argv: Sequence[str], box: Box, keep_going: Callable[[], None] = lambda: None) -> Finished:
    """Run a program to its end or to its limits.  `keep_going` is called every half second; an exception kills it.

    Raises SandboxFailed where the sandbox does not work, and OSError where it failed once.
    """
    log = Tail(settings().log_limit * 3 // 4, beginning=settings().log_limit // 4)
    with _pipe_into(log) as (write_end, pumping):
        process, watch = _open(
            argv, box, log, CHECK_EVERY_S, stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end
        )
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
                break
            keep_going()
    finally:
        watch.over()
        pumping.join(timeout=5)
    if not watch.started:
        raise _not_started(log.text())
    reason = watch.reason or watch.used_up() or _ended(process.returncode, box.limits)
    if reason is None and process.returncode and box.disk is not None and box.disk.full:
        reason = f"it filled its disk, which has room for {box.limits.disk / MIB:.0f} MiB more than the revision"
    return Finished(process.returncode, log.text(), watch.timed_out, reason, watch.shortage)


def start(argv: Sequence[str], box: Box, log: Path) -> subprocess.Popen[str]:
    """Start a program and return it with text pipes for stdin and stdout.  The end of its stderr is kept in `log`.

    Raises as `run` does.
    """
    tail = Tail(settings().log_limit, log)
    try:
        with _pipe_into(tail) as (write_end, pumping):
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": write_end, **_TEXT}
            process, _ = _open(argv, box, tail, CHECK_CONTENDER_EVERY_S, **pipes)
    except BaseException:
        tail.close()
        raise
    _pumps[process] = pumping
    return process


def freezer(process: subprocess.Popen[Any]) -> freezing.Freezer:
    """Freezes a program that `start` returned, with everything that it started."""
    return _freezers[process]


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a program and everything that it started, and wait until it is gone and its log is complete."""
    if watch := _watchdogs.get(process):
        watch.over()
    if pumping := _pumps.get(process):
        pumping.join(timeout=5)


def self_test() -> str | None:
    """None where the sandbox works; otherwise why not, and the fix.  Tested again every minute."""
    global _trouble
    if _trouble is None or time.monotonic() - _trouble[0] > _RETEST_S:
        _trouble = (time.monotonic(), _tested())
    return _trouble[1]


def doubt() -> None:
    """Have the sandbox tested again at the next question: a program was lost in it."""
    global _trouble
    _trouble = None


def take_shortage() -> int:
    """The error number of what this machine had run out of, if that ended a program since the last call; else 0."""
    global _shortage
    found, _shortage = _shortage, 0
    return found


@contextmanager
def disk_in_memory(folder: Path, size: int) -> Iterator[MemoryDisk | None]:
    """Mount an empty file system of `size` bytes at `folder` for sandboxes; None where that is not possible here."""

    def spawn(command: list[str]) -> "subprocess.Popen[bytes]":
        quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return _spawn(command, env=walls.bare_environment(), stdout=subprocess.PIPE, **quiet)

    with usage.mounted(folder, size, walls.bwrap(), spawn) as disk:
        yield disk


_trouble: tuple[float, str | None] | None = None
_shortage = 0
_TEXT: dict[str, Any] = {"text": True, "encoding": "utf-8", "errors": "replace", "bufsize": 1}
_pumps: "weakref.WeakKeyDictionary[subprocess.Popen[Any], threading.Thread]" = weakref.WeakKeyDictionary()
_freezers: "weakref.WeakKeyDictionary[subprocess.Popen[Any], freezing.Freezer]" = weakref.WeakKeyDictionary()
_watchdogs: "weakref.WeakKeyDictionary[subprocess.Popen[Any], Watchdog]" = weakref.WeakKeyDictionary()


def _tested() -> str | None:
    from service.ops import doctor  # it loads the migrations, which a worker with a sandbox does without

    if walls.bwrap() is None:
        return f"bubblewrap is not installed; install it with `{doctor.install('bubblewrap')}`"
    with (
        tempfile.TemporaryDirectory(prefix="kernelwatch-") as folder,
        walls.command(Box(Path(folder))) as (arguments, fds),
    ):
        command = [*arguments, "--", "/bin/sh", "-c", "echo works"]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        try:
            done = subprocess.run(command, env=walls.bare_environment(), pass_fds=fds, timeout=20, check=False, **pipes)
        except OSError as error:  # removed just now
            return f"bubblewrap cannot be started: {error.strerror}"
        except subprocess.TimeoutExpired:
            return "bubblewrap did not start a program within 20 s"
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


@contextmanager
def _pipe_into(log: Tail) -> Iterator[tuple[int, threading.Thread]]:
    """A pipe that a thread drains into `log`: its write end, open until the program has started, and the thread.

    The thread starts before the program, so that its failure leaves no program behind.
    """
    read_end, write_end = os.pipe()
    try:
        yield write_end, pump(read_end, log)
    finally:
        os.close(write_end)


def _open(
    argv: Sequence[str], box: Box, log: Tail, every_s: float, **pipes: Any
) -> tuple[subprocess.Popen[Any], Watchdog]:
    """Start a program and its watchdog.  If either fails, end the program and remove what was made for it."""
    with ExitStack() as undo:
        leaves = undo.enter_context(ExitStack())  # removed once everything has ended
        inner: int | None = None
        group = cgroups.make(box.limits)
        if group:
            leaves.callback(group.remove)
        freezable = freezing.group_for(group, leaves)
        if box.sandboxed:
            if walls.bwrap() is None:
                raise _not_started("")
            disk = Disk.measured(box.on_disk, box.limits)
            with walls.command(box) as (arguments, fds):
                status, tell = os.pipe()
                reports = leaves.enter_context(os.fdopen(status, "rb", buffering=0))
                limited = _limited(box.limits, group, freezable)
                command = [*limited, *arguments, "--json-status-fd", str(tell), "--", *_counted(box.limits), *argv]
                try:
                    process = _spawn(command, env=walls.bare_environment(), cwd="/", pass_fds=(*fds, tell), **pipes)
                finally:
                    os.close(tell)
                _undo_with(undo, process)
                inner = _first_process(reports)
            in_memory = [Path(f"/proc/{inner}/root{folder}") for folder in box.in_memory]
            watch = Watchdog(
                process,
                box.limits,
                disk,
                log,
                inner=inner,
                in_memory=[*in_memory, *([box.disk.content] if box.disk else [])],
                group=group,
                every_s=every_s,
                leaves=leaves,
            )
            leaves.callback(_note_start, watch, process, reports)
        else:
            cookie = f"KERNELWATCH_BOX={uuid.uuid4().hex}"
            temporary = tempfile.mkdtemp(prefix="kernelwatch-")
            leaves.callback(remove, Path(temporary))
            name, _, value = cookie.partition("=")
            plain = {"PATH": "/usr/bin:/bin", "HOME": temporary, "TMPDIR": temporary}
            environment = {**plain, **box.environment, name: value}
            command = [*_dying_with_us(), *_limited(box.limits, group, freezable), *argv]
            disk = Disk.measured((*box.on_disk, Path(temporary)), box.limits)
            process = _spawn(command, env=environment, cwd=box.folder, **pipes)
            _undo_with(undo, process)
            watch = Watchdog(process, box.limits, disk, log, cookie=cookie, group=group, every_s=every_s, leaves=leaves)
        leaves.callback(_note_shortage, watch)
        undo.callback(watch.end)
        watch.start()
        undo.pop_all()  # from here on the watchdog ends the program
    _watchdogs[process] = watch
    # In a sandbox, process 1 only waits for the others, which stay below it whatever they do.
    _freezers[process] = freezing.Freezer(freezable, inner or process.pid, itself=inner is None)
    return process, watch


def _undo_with(undo: ExitStack, process: "subprocess.Popen[Any]") -> None:
    """Have `undo` kill a process, wait for it, and close its pipes."""
    undo.enter_context(process)
    undo.callback(kill_group, process)


def _first_process(reports: IO[bytes]) -> int | None:
    """The first process of the namespaces, as bubblewrap reports it; None where it failed before that."""
    line = reports.readline()
    return int(json.loads(line)["child-pid"]) if line else None


def _note_start(watch: Watchdog, process: "subprocess.Popen[Any]", reports: IO[bytes]) -> None:
    """Note after the end whether the program had started: bubblewrap reports the exit code of no other.

    One that was killed had started.  One that had not lets us doubt the sandbox.
    """
    if process.poll() is not None and process.returncode >= 0 and b"exit-code" not in reports.read():
        watch.started = False
        doubt()


def _note_shortage(watch: Watchdog) -> None:
    global _shortage
    _shortage = watch.shortage or _shortage


def _not_started(said: str) -> Exception:
    """The error for a program that bubblewrap did not start: does it start any?"""
    doubt()
    if trouble := self_test():
        return SandboxFailed(f"The sandbox stopped working: {trouble}.")
    return OSError(f"bubblewrap did not start the program: {' '.join(said.split())[-300:]}")


def _spawn(command: Sequence[str], **arguments: Any) -> subprocess.Popen[Any]:
    """Start from a thread that lives as long as this process: --die-with-parent follows the thread."""

    def begin() -> subprocess.Popen[Any]:
        return subprocess.Popen(command, start_new_session=True, **arguments)

    with _choosing:
        spawner = _spawner(os.getpid())
    return spawner.submit(begin).result()


_choosing = threading.Lock()  # two threads must not make two: the one that is not kept ends, and so do its children


@cache
def _spawner(_process: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(1, thread_name_prefix="spawner")  # a forked process needs its own
    pool.submit(int)  # starts its thread: if that fails, a program in the queue would start later, without a watchdog
    return pool


def _limited(limits: Limits, group: cgroups.Group | None = None, freezable: Path | None = None) -> tuple[str, ...]:
    """The prefix of a command: resource limits that its children inherit and cannot raise."""
    script = [
        *(group.joins if group else []),
        *([f"echo $$ > {freezable}/cgroup.procs"] if freezable else []),
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


def _ended(code: int, limits: Limits) -> str | None:
    number = -code if code < 0 else code - 128
    if number == signal.SIGXFSZ:
        return f"it wrote a file of more than {limits.disk / MIB:.0f} MiB"
    if number in _DEADLY:
        return f"it was killed by {signal.Signals(number).name}"
    return None
