"""Programs in the sandbox that take all they can: disk, memory, processes, output, time.

Each is bounded to 1.5 GiB.  A bomb prints DONE where it came to its end, and then keeps what it has for two seconds.
"""

import contextlib
import os
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.settings import MIB, settings
from tests import needs
from tests.attacks.conftest import Outcome
from workers.sandbox import cgroups, sandbox, usage
from workers.sandbox.sandbox import Box, Finished, Limits
from workers.sandbox.walls import make_read_only, remove

pytestmark = needs.skip_unless(sandbox.self_test() is None, "bubblewrap")
DISK, MEMORY = 64 * MIB, 300 * MIB
NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
WRITE = (
    "def write(name):\n  with open(name, 'wb') as f:\n    for i in range(60): f.write(b'x' * (1 << 20))\n  took(60)\n"
)
HOLD = "\nprint('DONE', flush=True); time.sleep(2)"

DISK_BOMBS = {
    "one file": "f = open('a', 'wb')\nfor i in range(1000): f.write(b'x' * (1 << 20)); took(1)",
    "many files": "for n in range(20): write(f'f{n}')",
    "deleted files": (
        "keep = []\nfor n in range(20):\n  f = open(f'u{n}', 'wb'); os.unlink(f'u{n}'); keep.append(f)\n"
        "  for i in range(60): f.write(b'x' * (1 << 20))\n  took(60)"
    ),
    "deleted files, mapped and closed": (
        "keep = []\nfor n in range(20):\n  write('m')\n  f = open('m', 'r+b'); os.unlink('m')\n"
        "  keep.append(mmap.mmap(f.fileno(), 60 << 20)); f.close()"
    ),
    "deleted files in the buffer of a socket": (
        "a, b = socket.socketpair()\nfor n in range(20):\n  write('s')\n"
        "  f = open('s', 'rb'); os.unlink('s'); socket.send_fds(a, [b'x'], [f.fileno()]); f.close()"
    ),
    "below a path longer than PATH_MAX": (
        "for n in range(20): os.mkdir('d' * 240); os.chdir('d' * 240)\nfor n in range(20): write(f'f{n}')"
    ),
    "in a folder that may not be read": "os.mkdir('h'); os.chmod('h', 0o300)\nfor n in range(20): write(f'h/{n}')",
    "fallocate": (
        "for n in range(20):\n  f = os.open(f'a{n}', os.O_CREAT | os.O_WRONLY)\n"
        "  os.posix_fallocate(f, 0, 60 << 20); took(60)"
    ),
    "empty files": "for n in range(200000): os.mknod(f'i{n}')",
    "attributes of files": (
        "for n in range(40000):\n  open(f'x{n}', 'w').close(); os.setxattr(f'x{n}', 'user.a', b'x' * 3900)"
    ),
}
MEMORY_BOMBS = {
    "private memory": "keep = []\nfor i in range(40): keep.append(bytearray(b'x') * (25 << 20)); took(25)",
    "shared memory": (
        "keep = []\nfor i in range(40):\n  m = mmap.mmap(-1, 25 << 20); keep.append(m)\n"
        "  for o in range(0, 25 << 20, 4096): m[o] = 1\n  took(25)"
    ),
    "shared memory, out of its page tables": (
        "keep = []\nfor i in range(40):\n  m = mmap.mmap(-1, 25 << 20); keep.append(m)\n"
        "  for o in range(0, 25 << 20, 4096): m[o] = 1\n  m.madvise(mmap.MADV_DONTNEED); took(25)"
    ),
    "memfd": (
        "for i in range(16):\n  f = os.memfd_create('x')\n  for n in range(60): os.write(f, b'x' * (1 << 20)); took(1)"
    ),
    "files in memory": (
        "for name in ('/tmp/a', '/dev/shm/a'):\n  with open(name, 'wb') as f:\n"
        "    for n in range(500): f.write(b'x' * (1 << 20)); took(1)"
    ),
    "empty files in memory": "for n in range(600000): os.mknod(f'/tmp/{n}')",
    "memory of a process whose first thread has ended": (
        "import threading\ndef grow():\n  keep = [bytearray(b'x') * (25 << 20) for i in range(40)]\n"
        "  print('DONE', flush=True); time.sleep(2); os._exit(0)\n"
        "threading.Thread(target=grow).start(); ctypes.CDLL(None).pthread_exit(None)"
    ),
    "many processes": (
        "for i in range(20):\n  if os.fork() == 0:\n   keep = bytearray(b'x') * (50 << 20); time.sleep(3); os._exit(0)"
    ),
    "buffers of sockets": (
        "keep = []\nfor i in range(1900):\n  a, b = socket.socketpair(); a.setblocking(False); keep.append((a, b))\n"
        "  with contextlib.suppress(OSError):\n    while True: a.send(b'x' * 65536)"
    ),
}
QUICK = {"deleted files", "below a path longer than PATH_MAX", "memfd", "shared memory", "files in memory"}
IMPORTS = (
    "import contextlib, ctypes, mmap, os, socket, time\ntotal = 0\n"
    "def took(mib):\n  global total\n  total += mib; print(total, 'MiB', flush=True)\n"
)


def cases(bombs: dict[str, str]) -> list[object]:
    return [pytest.param(name, marks=[] if name in QUICK else pytest.mark.attack) for name in bombs]


def script(text: str) -> list[str]:
    return [SYSTEM_PYTHON, "-S", "-c", IMPORTS + WRITE + text + HOLD]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KERNELWATCH_STATE", str(tmp_path / "state"))
    settings.cache_clear()
    made = tmp_path / "box"
    made.mkdir()
    yield made
    remove(made)
    assert not made.exists(), "whatever was left can be removed"
    settings.cache_clear()


@contextlib.contextmanager
def most(now: Callable[[], int]) -> Iterator[list[int]]:
    """The most that `now`, of which something is taken, fell meanwhile; others on this machine take as well."""
    start, lowest, over = now(), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            lowest[0] = max(lowest[0], start - now())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lowest
    finally:
        over.set()
        thread.join()


def as_nobody(run: Callable[[], Finished]) -> Finished:
    """Run in a child process that is not root."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(into, pickle.dumps(run()))
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        done = pipe.read()
    os.waitpid(child, 0)
    assert done, "the child failed"
    finished = pickle.loads(done)
    assert isinstance(finished, Finished)
    return finished


def amount(done: Finished, taken: list[int]) -> str:
    """How much a bomb says that it took; what the machine lost, where it does not say."""
    said = re.findall(r"^(\d+) MiB$", done.log, re.MULTILINE)
    return f"{said[-1]} MiB" if said else f"the machine lost {taken[0] / MIB:.0f} MiB"


def held(done: Finished) -> bool:
    return done.returncode != 0 and (done.reason is not None or "DONE" not in done.log)


@pytest.mark.parametrize("bomb", cases(DISK_BOMBS))
def test_a_build_cannot_fill_the_disk(folder: Path, outcome: Outcome, bomb: str) -> None:
    box = Box(folder, limits=Limits(wall_s=60, disk=DISK, memory=2048 * MIB))
    with sandbox.disk_in_memory(folder, DISK) as disk:
        if disk is None:
            needs.skip("bubblewrap", "nsenter is missing")
        done = sandbox.run(script(DISK_BOMBS[bomb]), replace(box, disk=disk))
        inside = os.statvfs(disk.content)
        took = (inside.f_blocks - inside.f_bfree) * inside.f_frsize / MIB
    beyond = usage.used([folder], 1 << 40)
    outcome(
        "disk",
        f"{bomb}, in a build",
        held=took <= DISK / MIB and beyond == 0 and (held(done) or "files" in bomb),
        seen=f"{took:.0f} MiB in its own file system, {beyond} bytes on the machine's; {done.reason}",
        goal="64 MiB, 0 bytes",
    )


@pytest.mark.parametrize("bomb", cases(DISK_BOMBS))
def test_a_contender_cannot_fill_the_disk(folder: Path, outcome: Outcome, bomb: str) -> None:
    with most(lambda: os.statvfs(folder).f_bfree * os.statvfs(folder).f_frsize) as taken:
        done = sandbox.run(script(DISK_BOMBS[bomb]), Box(folder, limits=Limits(wall_s=60, disk=DISK)))
    seen = f"{amount(done, taken)}; {done.reason or done.log.strip().splitlines()[-1]}"
    outcome("disk", f"{bomb}, in a cache", held=held(done), seen=seen, goal="ended near 64 MiB")
    make_read_only(folder)


def memory_bomb(folder: Path, bomb: str, run: Callable[[Callable[[], Finished]], Finished]) -> tuple[Finished, str]:
    box = Box(folder, limits=Limits(wall_s=60, memory=MEMORY, disk=1024 * MIB))
    with most(lambda: usage.available()[0]) as taken:
        done = run(lambda: sandbox.run(script(MEMORY_BOMBS[bomb]), box))
    return done, f"{amount(done, taken)}; {done.reason}"


@pytest.mark.parametrize("bomb", cases(MEMORY_BOMBS))
def test_a_program_cannot_take_all_memory(folder: Path, outcome: Outcome, bomb: str) -> None:
    if not cgroups._bases():
        needs.skip("root", "control groups can be made by root, or where they were delegated")
    done, seen = memory_bomb(folder, bomb, lambda run: run())
    outcome("memory", f"{bomb}, control groups", held=held(done), seen=seen, goal="ended at 300 MiB")


@pytest.mark.parametrize("bomb", cases(MEMORY_BOMBS))
def test_a_program_cannot_take_all_memory_without_control_groups(
    folder: Path, outcome: Outcome, bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "make", lambda _limits: None)
    for each in (folder, *folder.parents):
        if os.getuid() == 0 and each.is_relative_to("/tmp") and each != Path("/tmp"):
            each.chmod(0o777 if each == folder else 0o755)
    done, seen = memory_bomb(folder, bomb, as_nobody if os.getuid() == 0 else lambda run: run())
    goal = "ended at 300 MiB and what a tenth of a second brings"
    outcome("memory", f"{bomb}, no control groups", held=held(done), seen=seen, goal=goal)


def test_memory_that_processes_share_counts_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "make", lambda _limits: None)
    share = "keep = bytearray(b'x') * (150 << 20)\nfor i in range(3):\n  if os.fork() == 0: time.sleep(2); os._exit(0)"
    done = sandbox.run(script(share), Box(folder, limits=Limits(wall_s=60, memory=MEMORY)))
    assert (done.returncode, done.reason) == (0, None)


OTHER_BOMBS = {
    "fork": ("while True:\n  try: os.fork()\n  except OSError: time.sleep(0.01)", "256 processes and threads"),
    "threads": (
        "import threading\nwhile True:\n  with contextlib.suppress(RuntimeError):\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()",
        "256 processes and threads",
    ),
    "it stops itself": ("os.kill(os.getpid(), 19)", "longer than 3 s"),
    "it stops its parent": ("os.kill(os.getppid(), 19)\nwhile True: pass", "longer than 3 s"),
    "it kills all that it sees": ("os.kill(-1, 9)", None),
    "a gigabyte of output": ("for i in range(1000): os.write(1, b'x' * (1 << 20))\nos._exit(3)", None),
}


@pytest.mark.parametrize("bomb", cases(dict.fromkeys(OTHER_BOMBS, "")))
@pytest.mark.attack
def test_a_program_cannot_outgrow_its_limits(folder: Path, outcome: Outcome, bomb: str) -> None:
    text, reason = OTHER_BOMBS[bomb]
    began = time.monotonic()
    wall_s = 3 if reason and "longer" in reason else 60
    done = sandbox.run(script(text), Box(folder, limits=Limits(wall_s=wall_s, processes=256)))
    took = time.monotonic() - began
    fine = held(done) and (reason is None or reason in (done.reason or "")) and len(done.log) < 2 * settings().log_limit
    seen = f"{done.reason or f'exit code {done.returncode}'} after {took:.1f} s, {len(done.log)} bytes of log"
    outcome("limits", bomb, held=fine, seen=seen, goal=reason or "ended")


def test_what_a_program_prints_is_kept_as_text(folder: Path) -> None:
    text = "printf 'a\\000b \\355\\240\\200 \\033]0;pwned\\007 <script>alert(1)</script>\\n'; exit 3"
    done = sandbox.run(["/bin/sh", "-c", text], Box(folder))
    assert done.log.encode().decode() == done.log
    assert (done.returncode, "<script>" in done.log) == (3, True), "pages escape it"
