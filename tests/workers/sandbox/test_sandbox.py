"""The sandbox: what a program inside cannot do, and how one that breaks its limits ends."""

import fcntl
import gc
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from service.settings import settings
from tests import needs
from workers.machine.device import exclusive
from workers.machine.environments import _alone
from workers.sandbox import cgroups, sandbox, seccomp, walls
from workers.sandbox.sandbox import Box, Limits
from workers.sandbox.walls import make_read_only, remove, tool

HERE = Path(__file__).parent
MIB = 1 << 20
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable

works = needs.skip_unless(sandbox.self_test() is None, "bubblewrap")
both = pytest.mark.parametrize("sandboxed", [pytest.param(True, marks=works), False])


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KERNELWATCH_STATE", str(tmp_path / "state"))
    settings.cache_clear()
    (tmp_path / "box").mkdir()
    return tmp_path / "box"


def box(folder: Path, *, sandboxed: bool = True, **limits) -> Box:
    return Box(folder, read_only=interpreter(), sandboxed=sandboxed, limits=Limits(**{"wall_s": 120, **limits}))


def interpreter() -> tuple[Path, ...]:
    """The folders of the Python that runs these tests."""
    return Path(sys.base_prefix), Path(sys.prefix)


def script(folder: Path, text: str, name: str = "script.py") -> list[str]:
    (folder / name).write_text(text)
    return [sys.executable, "-S", str(folder / name)]


@works
def test_what_a_hostile_program_cannot_do(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_secret")
    (tmp_path / "host-secret").write_text("of the service")
    listening = socket.create_server(("127.0.0.1", 0))
    database = tmp_path / "s"
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(database))
    unix.listen()
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0kernelwatch-test")
    abstract.listen()
    shared = Path("/dev/shm") / f"kernelwatch-{os.getpid()}"
    shared.write_text("x")
    shutil.copy(HERE / "attacks.py", folder)
    here = f"{database}:{listening.getsockname()[1]}"
    try:
        command = [sys.executable, "-S", "attacks.py", "ghp_secret", str(tmp_path), here]
        done = sandbox.run(command, box(folder, disk=64 * MIB))
    finally:
        shared.unlink()
        for one in (listening, unix, abstract):
            one.close()
    came = json.loads(done.log.partition("ATTACKS ")[2])

    facts = {
        name: came.pop(name)
        for name in ("capabilities", "processes in sight", "name of the host", "descriptors left open")
    }
    seen = came.pop("list the folder of the host's user")
    assert {name: answer for name, answer in came.items() if not answer.startswith(("denied", "nothing"))} == {}
    assert seen == "box"  # the way to its own folder, and nothing beside it
    assert int(facts["capabilities"], 16) == 0
    assert int(facts["processes in sight"]) <= 3
    assert facts["name of the host"] == "kernelwatch"
    assert "kernelwatch" not in facts["descriptors left open"]


@works
def test_the_environment_is_what_was_given_and_nothing_else(folder, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_WEBHOOK_SECRET", "s3cret")
    given = Box(folder, environment={"WORD": "given"})
    done = sandbox.run(["sh", "-c", "env; cat /proc/*/environ"], given)
    assert "WORD=given" in done.log
    assert "s3cret" not in done.log
    assert {line.partition("=")[0] for line in done.log.split("\n\0")[0].splitlines()[:20] if "=" in line} >= {
        "HOME",
        "PATH",
    }


@both
def test_a_program_without_a_sandbox_gets_a_bare_environment_as_well(folder, monkeypatch, sandboxed):
    monkeypatch.setenv("KERNELWATCH_WEBHOOK_SECRET", "s3cret")
    done = sandbox.run(["sh", "-c", "env; echo made > here; exit 3"], box(folder, sandboxed=sandboxed))
    assert "s3cret" not in done.log
    assert (done.returncode, done.reason, done.timed_out) == (3, None, False)
    assert (folder / "here").read_text() == "made\n"


@both
def test_no_program_leaves_a_core_dump(folder, sandboxed):
    """A dump has the memory of the program, is as large as it, and lands where the machine says."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        code = "import resource; print('core', resource.getrlimit(resource.RLIMIT_CORE))"
        done = sandbox.run(script(folder, code), box(folder, sandboxed=sandboxed))
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    assert "core (0, 0)" in done.log


@works
def test_bound_folders_are_read_only_or_writable_as_asked(folder, tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "x").write_text("base")
    (tmp_path / "cache").mkdir()
    walls = Box(folder, read_only=(tmp_path / "base",), writable=(tmp_path / "cache",), inside=Path("/somewhere/else"))
    done = sandbox.run(
        ["sh", "-c", f"cat {tmp_path}/base/x; echo 1 > {tmp_path}/base/x; echo 2 > {tmp_path}/cache/y; pwd; touch z"],
        walls,
    )
    assert "Read-only file system" in done.log
    assert (tmp_path / "base/x").read_text() == "base"
    assert (tmp_path / "cache/y").exists()
    assert "/somewhere/else" in done.log
    assert (folder / "z").exists()


@works
def test_starting_costs_little(folder):
    sandbox.run(["true"], Box(folder))
    took = []
    for _ in range(5):
        began = cpu_s()
        sandbox.run(["true"], Box(folder))
        took.append(cpu_s() - began)
    assert min(took) < 0.2  # about 15 ms


@both
def test_a_program_that_hangs_is_ended_with_all_that_it_started(folder, sandboxed):
    mark = f"7{os.getpid()}"
    began = time.monotonic()
    leave = f"(setsid sh -c 'sleep {mark}.5 & sleep {mark}.6' &) ; setsid sleep {mark}.7 & sleep {mark}.8"
    done = sandbox.run(["sh", "-c", f"echo begun; {leave}"], box(folder, sandboxed=sandboxed, wall_s=1))
    assert done.timed_out
    assert done.reason == "it took longer than 1 s"
    assert done.log.splitlines()[0] == "begun"
    assert time.monotonic() - began < 120  # and not the 7,000 s of what it started
    assert alive(mark) == []


@both
def test_a_program_that_ends_leaves_no_daemon_behind(folder, sandboxed):
    mark = f"8{os.getpid()}"
    done = sandbox.run(
        ["sh", "-c", f"(setsid sleep {mark}.5 >/dev/null 2>&1 &); exit 0"], box(folder, sandboxed=sandboxed)
    )
    assert done.returncode == 0
    assert alive(mark) == []


@both
def test_a_gigabyte_of_output_is_read_and_its_beginning_and_end_are_kept(folder, sandboxed, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_LOG_LIMIT", "10000")
    settings.cache_clear()
    before = peak()
    done = sandbox.run(
        ["sh", "-c", "echo the start; head -c 1000000000 /dev/zero; echo; echo the end"],
        box(folder, sandboxed=sandboxed),
    )
    assert done.log.startswith("the start\n")
    assert "[kernelwatch] here 953.7 MiB were left out" in done.log
    assert done.log.endswith("the end\n")
    assert len(done.log) < 11000
    assert peak() - before < 64 * MIB


@both
def test_a_full_disk_is_the_programs_own_fault(folder, sandboxed):
    one_file = sandbox.run(["sh", "-c", "head -c 1G /dev/zero > big"], box(folder, sandboxed=sandboxed, disk=8 * MIB))
    assert one_file.returncode != 0
    assert "File size limit exceeded" in one_file.log or "8 MiB" in (one_file.reason or "")
    assert (folder / "big").stat().st_size <= 8 * MIB
    (folder / "big").unlink()

    many = "i=0; while :; do head -c 1M /dev/zero > f$i; i=$((i+1)); done"
    done = sandbox.run(["sh", "-c", many], box(folder, sandboxed=sandboxed, disk=8 * MIB))
    assert done.reason == "it wrote more than 8 MiB to disk"


@works
def test_many_empty_files_fill_a_disk_as_well(folder):
    done = sandbox.run(script(folder, "for i in range(10**9): open(f'f{i}', 'w').close()"), box(folder, disk=4 * MIB))
    assert done.reason == "it wrote more than 4 MiB to disk"


@both
def test_a_program_that_takes_all_memory_is_ended(folder, sandboxed):
    greedy = "x = []\nwhile True: x.append(bytearray(b'1') * (1 << 24))\n"
    done = sandbox.run(script(folder, greedy), box(folder, sandboxed=sandboxed, memory=400 * MIB))
    assert "GiB of memory" in (done.reason or "")


@works
def test_a_fork_bomb_ends_and_takes_nothing_with_it(folder):
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    began = time.monotonic()
    done = sandbox.run(script(folder, bomb, "bomb_of_tests.py"), box(folder, processes=100))
    assert done.reason == "it had 100 processes and threads at once, which is the limit"
    assert time.monotonic() - began < 120
    assert alive("bomb_of_tests") == []


@both
def test_how_a_program_died_is_said(folder, sandboxed):
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    done = sandbox.run(script(folder, crash), box(folder, sandboxed=sandboxed))
    assert done.reason == "it was killed by SIGSEGV"


@both
def test_who_waits_may_call_it_off(folder, sandboxed):
    class LeaseLost(Exception): ...

    def keep_going() -> None:
        raise LeaseLost

    mark = f"9{os.getpid()}"
    with pytest.raises(LeaseLost):
        sandbox.run(["sleep", f"{mark}.5"], box(folder, sandboxed=sandboxed), keep_going)
    assert alive(mark) == []


@both
def test_a_started_program_is_talked_to_over_pipes(folder, tmp_path, sandboxed):
    echo = (
        "import sys\nsys.stderr.write('trouble\\n')\nfor line in sys.stdin: print(line.upper(), end='', flush=True)\n"
    )
    process = sandbox.start(script(folder, echo), box(folder, sandboxed=sandboxed), tmp_path / "log")
    assert process.stdin
    assert process.stdout
    process.stdin.write("ready?\n")
    assert process.stdout.readline() == "READY?\n"
    assert os.getpgid(process.pid) == process.pid
    sandbox.kill(process)
    assert process.returncode is not None
    assert (tmp_path / "log").read_text() == "trouble\n"
    process.stdin.close()
    process.stdout.close()


@both
def test_a_started_program_that_breaks_a_limit_says_so_in_its_log(folder, tmp_path, sandboxed):
    process = sandbox.start(["sleep", "60"], box(folder, sandboxed=sandboxed, wall_s=0.5), tmp_path / "log")
    process.wait(timeout=60)
    assert "[kernelwatch] ended: it took longer than 0.5 s" in (tmp_path / "log").read_text()
    for pipe in (process.stdin, process.stdout):
        assert pipe
        pipe.close()


@both
def test_a_full_disk_under_its_log_does_not_save_a_program_that_breaks_a_limit(folder, sandboxed):
    talker = ["sh", "-c", "while :; do echo talking >&2; sleep 0.1; done"]
    process = sandbox.start(talker, box(folder, sandboxed=sandboxed, wall_s=1), Path("/dev/full"))
    assert process.wait(timeout=60) != 0
    watch = sandbox._watchdogs[process]
    watch.join(timeout=60)
    assert watch.reason == "it took longer than 1 s"
    for pipe in (process.stdin, process.stdout):
        assert pipe
        pipe.close()


@both
def test_folders_nested_too_deep_for_recursion_are_no_trouble(folder, sandboxed):
    deep = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\n"
    done = sandbox.run([*script(folder, deep)], box(folder, sandboxed=sandboxed, disk=64 * MIB))
    assert (done.returncode, done.reason) == (0, None)
    make_read_only(folder)
    remove(folder)
    assert not folder.exists()


def test_a_tool_that_takes_too_long_is_ended():
    with pytest.raises(subprocess.TimeoutExpired):
        tool("sleep", "600", limit_s=0)


@works
def test_a_program_outlives_the_thread_that_started_it_but_not_the_process(folder, tmp_path):
    started = []
    thread = threading.Thread(
        target=lambda: started.append(sandbox.start(["sleep", "60"], box(folder), tmp_path / "log"))
    )
    thread.start()
    thread.join()
    time.sleep(0.2)
    [process] = started
    assert process.poll() is None
    sandbox.kill(process)
    for pipe in (process.stdin, process.stdout):
        pipe.close()

    mark = f"6{os.getpid()}"
    worker = (
        "import sys, time\nfrom pathlib import Path\nfrom workers.sandbox import sandbox\n"
        f"sandbox.start(['sleep', '{mark}.5'], sandbox.Box(Path({str(folder)!r})), Path({str(tmp_path / 'log2')!r}))\n"
        "print('up', flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", worker], cwd=HERE.parents[2], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    assert parent.stdout.readline() == "up\n"
    assert wait_for(lambda: any(command.startswith("sleep") for command in alive(mark)))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert wait_for(lambda: not alive(mark))


def test_programs_started_at_once_outlive_the_threads_that_started_them(folder, monkeypatch):
    """Also the first of a process: a program ends with the thread below it, which all of them must share."""
    create = sandbox.ThreadPoolExecutor

    def late(*args, **kwargs):
        time.sleep(0.05)  # the other threads ask meanwhile
        return create(*args, **kwargs)

    monkeypatch.setattr(sandbox, "ThreadPoolExecutor", late)
    sandbox._spawner.cache_clear()
    with ThreadPoolExecutor(4) as threads:
        started = [threads.submit(sandbox.run, ["sleep", "0.5"], box(folder, sandboxed=False)) for _ in range(4)]
    assert [(one.result().returncode, one.result().reason) for one in started] == [(0, None)] * 4


@pytest.fixture
def traces(tmp_path, monkeypatch) -> Callable[[], list[str]]:
    """Lists what a failed start has left: folders, control groups, open files, and warnings about unclosed ones."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    groups: list[Path] = []
    make = cgroups.make

    def noted(limits: Limits) -> cgroups.Group | None:
        group = make(limits)
        groups.extend(group.folders.values() if group else ())
        return group

    monkeypatch.setattr(cgroups, "make", noted)
    sandbox.run(["true"], Box(tmp_path, sandboxed=False))  # starts the thread that all programs share
    gc.collect()
    before = descriptors()

    def left() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gc.collect()
        return [
            *(str(warning.message) for warning in caught),
            *map(str, temporary.iterdir()),
            *(str(group) for group in groups if group.exists()),
            *(descriptors() - before),
        ]

    return left


def start_by(how: str, argv: list[str], box: Box, log: Path) -> None:
    if how == "run":
        sandbox.run(argv, box)
    else:
        sandbox.start(argv, box, log)


@both
@pytest.mark.parametrize("how", ["run", "start"])
def test_a_program_whose_folders_cannot_be_measured_is_not_started(folder, tmp_path, traces, how, sandboxed):
    (tmp_path / "file").touch()
    unmeasurable = replace(box(folder, sandboxed=sandboxed), writable=(tmp_path / "file",))
    with pytest.raises(NotADirectoryError):
        start_by(how, ["touch", "started"], unmeasurable, tmp_path / "log")
    assert not (folder / "started").exists()
    assert wait_for(lambda: not traces()), traces()


@both
@pytest.mark.parametrize("how", ["run", "start"])
@pytest.mark.parametrize("thread", ["pump", "watchdog"])
def test_no_program_runs_without_its_threads(folder, tmp_path, traces, monkeypatch, thread, how, sandboxed):
    no_more_threads(monkeypatch, thread)
    mark = f"4{os.getpid()}"
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start_by(how, ["sleep", f"{mark}.5"], box(folder, sandboxed=sandboxed), tmp_path / "log")
    assert alive(mark) == []
    assert wait_for(lambda: not traces()), traces()


def test_a_program_that_could_not_be_started_does_not_start_later(folder, monkeypatch):
    mark = f"3{os.getpid()}"
    sandbox._spawner.cache_clear()
    with monkeypatch.context() as patch:
        no_more_threads(patch, "spawner")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            sandbox.run(["sh", "-c", f"touch started; sleep {mark}.5"], box(folder, sandboxed=False))
    assert sandbox.run(["sleep", "0.5"], box(folder, sandboxed=False)).returncode == 0
    assert alive(mark) == []
    assert not (folder / "started").exists()


@pytest.mark.parametrize("how", ["run", "start"])
def test_a_program_that_cannot_be_started_leaves_nothing(folder, tmp_path, traces, how):
    with pytest.raises(FileNotFoundError):
        start_by(how, ["true"], box(folder / "missing", sandboxed=False), tmp_path / "log")
    assert wait_for(lambda: not traces()), traces()


@works
def test_walls_that_cannot_be_made_leave_nothing(folder, tmp_path, traces, monkeypatch):
    def fails() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(seccomp, "filter_fd", fails)
    with pytest.raises(OSError, match="Too many open files"):
        sandbox.start(["true"], box(folder), tmp_path / "log")
    assert wait_for(lambda: not traces()), traces()


def test_where_bubblewrap_is_missing_it_says_what_mends_it(monkeypatch, folder):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "install it with `sudo apt-get install -y bubblewrap`" in (sandbox._tested() or "")


def test_where_bubblewrap_is_too_old_it_says_which_is_needed(monkeypatch, tmp_path):
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho 'bwrap: Unknown option --size' >&2\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "too old; version 0.7 or later is needed" in (sandbox._tested() or "")


@works
def test_where_there_is_no_filter_of_system_calls_it_works_and_says_so(monkeypatch):
    monkeypatch.setattr(seccomp, "_program", lambda: None)  # as without libseccomp
    with capture_logs() as logged:
        assert sandbox._tested() is None
    assert "apt install libseccomp2" in logged[-1]["fix"]


@works
@needs.skip_unless(os.getuid() == 0, "root")
def test_it_works_for_a_normal_user(tmp_path):
    folder = tmp_path / "box"
    folder.mkdir()
    for parent in (folder, *folder.parents):
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o777 if parent == folder else 0o755)
    with walls.command(Box(folder)) as (arguments, fds):
        command = [
            *sandbox._limited(Limits()),
            *arguments,
            "--",
            *sandbox._counted(Limits()),
            "sh",
            "-c",
            "id -u; touch made",
        ]
        done = subprocess.run(
            command,
            env={},
            pass_fds=fds,
            capture_output=True,
            text=True,
            user=65534,
            group=65534,
            extra_groups=[],
            check=False,
        )
    assert done.stdout == "1000\n", done.stderr
    assert (folder / "made").stat().st_uid == 65534


def alive(mark: str) -> list[str]:
    """Command lines of processes that carry the mark and are not only waiting to be collected."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark in command and state not in "ZX" and int(name) != os.getpid():
            found.append(command)
    return found


def descriptors() -> set[str]:
    """The open files of this process, with their numbers."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found


def no_more_threads(monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    """Let threads whose names begin with `of` fail to start, as if the system had reached its limit."""
    start = threading.Thread.start

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name.startswith(of):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)


def peak() -> int:
    """The most memory that this process ever had."""
    return next(
        int(line.split()[1]) << 10
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )


def cpu_s() -> float:
    """The CPU time of this process and of its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def wait_for(what) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.05)
    return False


@works
def test_a_program_holds_up_nobody_on_the_host_by_a_lock(folder, tmp_path, monkeypatch):
    """To lock a file it need not write to it.  The host locks devices and stacks, and uv the environment it changes."""
    monkeypatch.setenv("KERNELWATCH_LOCKS", str(tmp_path))
    settings.cache_clear()
    stack = tmp_path / "stack"
    stack.mkdir()
    locks = [tmp_path / "kernelwatch-cpu.lock", tmp_path / "state" / "stacks" / ".name.lock", stack / ".lock"]
    with exclusive("cpu"), _alone("name"):
        pass
    (stack / ".lock").touch()
    locking = """
        import fcntl, sys
        held = []
        for path in sys.argv[1:]:
            try:
                held.append(open(path))
                fcntl.flock(held[-1], fcntl.LOCK_EX)
            except (FileNotFoundError, PermissionError):
                pass
        print("holds", len(held), flush=True)
        sys.stdin.read()
    """
    command = [*script(folder, textwrap.dedent(locking)), *map(str, [*locks, sys.executable])]
    program = sandbox.start(command, replace(box(folder), read_only=(*interpreter(), stack)), tmp_path / "log")
    with program:
        assert program.stdout.readline() == "holds 1\n", "the interpreter"
        for lock in locks:
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(sys.executable) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
