"""Freezing a sandboxed program with everything that it started, and counting its CPU time."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import needs
from workers.sandbox import freezing, sandbox
from workers.sandbox.sandbox import Box

BUSY = """
import os, sys, threading, time

def burn():
    while True:
        pass

what = sys.argv[1]
if what == "thread":
    threading.Thread(target=burn, daemon=True).start()
elif what == "child" and os.fork() == 0:
    burn()
elif what == "daemon" and os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    burn()
elif what == "generations" and os.fork() == 0:
    while True:  # each lives for a moment, and its parent does not wait for it
        if os.fork():
            os._exit(0)
        time.sleep(0.001)
elif what == "ended":
    import signal
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if os.fork() == 0:
        began = time.process_time()
        while time.process_time() - began < 0.3:
            pass
        os._exit(0)
print("ready", flush=True)
for line in sys.stdin:
    print("heard", flush=True)
"""


@pytest.fixture(params=["by group", "by signals"])
def started(request, state, tmp_path: Path, monkeypatch) -> Iterator[Callable[..., tuple]]:
    if sandbox.self_test() is not None:
        needs.skip("bubblewrap")
    by_group = request.param == "by group"
    if not by_group:
        monkeypatch.setattr(freezing, "group_for", lambda *_: None)
    opened = []

    def start(what: str):
        box = Box(tmp_path, read_only=(Path(sys.prefix), Path(sys.base_prefix)))
        process = sandbox.start([sys.executable, "-c", BUSY, what], box, tmp_path / "log")
        opened.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", (tmp_path / "log").read_text()
        freezer = sandbox.freezer(process)
        if by_group and not freezer.by_group:
            needs.skip("root")
        return process, freezer

    yield start
    for process in opened:
        sandbox.kill(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.mark.parametrize("what", ["thread", "child", "daemon", "generations"])
def test_nothing_runs_while_it_is_frozen(started, what):
    process, freezer = started(what)
    time.sleep(0.05)

    for _ in range(5):
        freezer.freeze()
        before = freezer.cpu_s()
        time.sleep(0.05)
        assert freezer.cpu_s() - before < 5e-3  # one that runs takes ten times as much
        freezer.thaw()
        time.sleep(0.02)

    print("a request", file=process.stdin, flush=True)
    assert process.stdout.readline() == "heard\n"


def test_the_cpu_time_of_children_counts(started):
    _, freezer = started("child")
    before = freezer.cpu_s()
    deadline = time.monotonic() + 30
    while freezer.cpu_s() - before < 0.1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert freezer.cpu_s() - before >= 0.1


@pytest.mark.parametrize("started", ["by group"], indirect=True)
def test_a_group_counts_children_that_ended_unnoticed(started):
    _, freezer = started("ended")
    deadline = time.monotonic() + 30
    while freezer.cpu_s() < 0.3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert freezer.cpu_s() >= 0.3


def test_a_frozen_program_can_be_killed(started):
    process, freezer = started("child")
    freezer.freeze()

    began = time.monotonic()
    sandbox.kill(process)

    assert process.poll() is not None
    assert time.monotonic() - began < 60
    freezer.freeze()  # nothing is left, which is no error
    freezer.thaw()


@pytest.mark.parametrize("started", ["by group"], indirect=True)
def test_the_group_is_removed(started):
    process, freezer = started("thread")
    group = freezer._group
    assert group is not None
    sandbox.kill(process)
    deadline = time.monotonic() + 60
    while group.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not group.exists()
