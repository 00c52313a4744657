"""What a program in the sandbox finds out and reaches: each probe with the answer that is expected."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from ctypes import CDLL
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.settings import settings
from tests import needs
from tests.attacks.conftest import Outcome
from workers.sandbox import sandbox, seccomp, walls
from workers.sandbox.sandbox import Box, Limits

pytestmark = needs.skip_unless(sandbox.self_test() is None and seccomp.filtered(), "bubblewrap")
HERE = Path(__file__).parent
SECRET = "ghp_an_attacked_secret"
NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
DENIED = r"denied\b.*"
# What is no secret and takes nothing from others, by probe.  All other probes are denied.
EXPECTED = {
    "what is next to its folder": r"cache tree",
    "files in /etc": r"(?!.*shadow).*nsswitch.conf passwd.*",
    "/root": r"denied.*|\.\w+",  # the way to the interpreter of these tests
    "memory of process 1": r"POSSIBLE",  # it is in the sandbox, with the same rights as the program
    "rights of process 1": r"CapEff 0{16} Seccomp 2",
    "devices": r"fd full null random shm stderr stdin stdout tty urandom zero",
    "names of host folders in mountinfo": r".*",  # docs/security.md says so
    "interfaces": r"lo",
    "a FIFO": r"None",
    "odd names": r"None",
    "a daemon that outlives": r"left running",
    "all descriptors": r"1\d{4}",
    "processors": r"\d+",
    "load of the machine": r"POSSIBLE .*",
}


@dataclass(frozen=True)
class Host:
    """What the probes look for, and what must be as it was afterwards."""

    box: Box
    known: Mapping[str, Any]
    victim: "subprocess.Popen[bytes]"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("KERNELWATCH_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("GITHUB_TOKEN", SECRET)
    settings.cache_clear()
    sibling = tmp_path / "state" / "environments" / "sibling"
    sibling.mkdir(parents=True)
    tree, cache = tmp_path / "work" / "tree", tmp_path / "work" / "cache"
    for folder in (tree, cache):
        folder.mkdir(parents=True)
    shutil.copy(HERE / "inside_sandbox.py", tree)
    leak = open(tmp_path / "secret", "w+")  # noqa: SIM115  closed below
    leak.write(SECRET)
    leak.flush()
    os.set_inheritable(leak.fileno(), True)
    abstract, file = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    abstract.bind("\0kernelwatch-attack")
    file.bind(str(tmp_path / "kernelwatch-attack"))
    listening = socket.create_server(("127.0.0.1", 0))
    for one in (abstract, file):
        one.listen()
    key = 0x4B570000 + os.getpid() % 0xFFFF
    libc = CDLL(None)
    shared = libc.shmget(key, 4096, 0o1666)
    victim = subprocess.Popen(["sleep", "300"])
    known = {
        "secret": SECRET[::-1],
        "state": str(tmp_path / "state"),
        "sibling": str(sibling),
        "pids": [victim.pid, os.getpid()],
        "port": listening.getsockname()[1],
        "abstract": "\0kernelwatch-attack",
        "unix": str(tmp_path / "kernelwatch-attack"),
        "key": key,
        "writable": str(cache),
        "site": os.path.dirname(pytest.__file__),
        "prefix": sys.base_prefix,
        "kernels": str(HERE.parents[1] / "kernels"),
    }
    box = Box(
        tree,
        read_only=(Path(sys.base_prefix), Path(sys.prefix), HERE.parents[1] / "kernels"),
        writable=(cache,),
        limits=Limits(wall_s=60),
    )
    yield Host(box, known, victim)
    victim.kill()
    victim.wait()
    libc.shmctl(shared, 0, None)
    for each in (leak, abstract, file, listening):
        each.close()
    settings.cache_clear()


def answers(log: str) -> dict[str, str]:
    found = re.search(r"^PROBES (.*)$", log, re.MULTILINE)
    assert found, log[-2000:]
    return dict(json.loads(found[1]))


def judge(found: Mapping[str, str], who: str, outcome: Outcome) -> None:
    wrong = {
        name: answer
        for name, answer in found.items()
        if not re.fullmatch(EXPECTED.get(name, DENIED), answer, re.DOTALL)
    }
    denied = sum(name not in EXPECTED for name in found)
    seen = f"{len(found) - len(wrong)} of {len(found)} as expected{''.join(f'; {k}: {v}' for k, v in wrong.items())}"
    goal = f"{denied} denied, {len(found) - denied} harmless facts"
    outcome("sandbox", f"{len(found)} probes, {who}", held=not wrong, seen=seen, goal=goal)


def test_every_probe_is_denied(host: Host, outcome: Outcome) -> None:
    done = sandbox.run([sys.executable, "-S", "inside_sandbox.py", json.dumps(host.known)], host.box)
    judge(answers(done.log), "as the worker's user", outcome)

    assert host.victim.poll() is None
    alive = host.box.folder / "daemon-alive"
    size = alive.stat().st_size if alive.exists() else 0
    time.sleep(0.3)
    assert (alive.stat().st_size if alive.exists() else 0) == size, "the daemon has ended"
    left = [path for folder in (host.box.folder, *host.box.writable) for path in folder.rglob("*")]
    assert [path for path in left if not path.is_symlink() and path.stat().st_mode & 0o6000] == []


@needs.skip_unless(os.getuid() == 0, "root")
def test_every_probe_is_denied_to_a_worker_that_is_not_root(host: Host, outcome: Outcome) -> None:
    tree = host.box.folder
    for folder in (tree, *host.box.writable, *tree.parents):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o777 if folder == tree or folder in host.box.writable else 0o755)
    box = Box(tree, writable=host.box.writable, limits=host.box.limits)
    with walls.command(box) as (arguments, fds):
        program = [SYSTEM_PYTHON, "-S", "inside_sandbox.py", json.dumps(host.known)]
        done = subprocess.run(
            [*sandbox._limited(box.limits), *arguments, "--", *program],
            env={},
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            check=False,
            timeout=60,
        )
    judge(answers(done.stdout + done.stderr), f"as user {NOBODY}", outcome)
