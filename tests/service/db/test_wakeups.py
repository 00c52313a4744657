"""Wake-ups between the processes of one machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.db import wakeups
from service.db.engine import transaction, wake
from tests.fakes.processes import ROOT, until

WAITS = """
import sys
from service.db.wakeups import LocalWaiter
waiter = LocalWaiter("control")
print("ready", flush=True)
while True:
    print(waiter.wait(30), flush=True)
"""
STOPS = """
from workers.loop import until_stopped
print("ready", flush=True)
until_stopped(lambda: None, 60.0, "cpu")
"""


@contextmanager
def started(program: str) -> Iterator["subprocess.Popen[str]"]:
    """A process of this state folder that is ready."""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def give_up() -> None:
    with transaction() as session:
        wake(session, wakeups.CONTROL)
        raise RuntimeError


def test_another_process_is_woken_once_the_transaction_is_committed(state: Path) -> None:
    with started(WAITS) as process:
        with pytest.raises(RuntimeError):
            give_up()
        with transaction() as session:
            wake(session, "another queue")
        with transaction() as session:
            wake(session, wakeups.CONTROL)
        assert process.stdout
        assert process.stdout.readline() == "True\n", "False by its timer"


def test_many_wake_ups_are_one_look(state: Path) -> None:
    waiter = wakeups.LocalWaiter("control")
    for _ in range(100_000):  # more than a pipe holds
        wakeups.send("control")
    assert waiter.wait(5.0)
    while waiter.wait(0.0):
        pass
    assert not waiter.wait(0.01)


def test_where_nobody_waits_nothing_happens(state: Path) -> None:
    wakeups.send("control")
    waiter = wakeups.LocalWaiter("control")
    assert not waiter.wait(0.0)


def test_a_file_in_place_of_the_pipe_is_left_alone(state: Path) -> None:
    (state / "wake").mkdir()
    file = state / "wake" / "control"
    file.write_text("mine")
    waiter = wakeups.LocalWaiter("control")
    wakeups.send("control")
    began = time.monotonic()
    assert not waiter.wait(0.2)
    assert time.monotonic() - began > 0.1, "it waits, and does not spin"
    assert file.read_text() == "mine"


def test_a_process_that_waits_stops_at_once(state: Path) -> None:
    with started(STOPS) as process:
        until(lambda: (state / "wake" / "cpu").exists(), 10, 0.05)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(15) == 0
