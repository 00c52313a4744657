"""The fleet's door: wake-ups are nudges, the timers do without them, and one process does one thing at a time."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection
from sqlalchemy import select

from service.db.engine import reading
from service.db.models import Run
from service.domain.states import RunState
from service.ledger.intake import deliveries
from service.settings import settings
from tests import needs
from tests.fakes.processes import running, until
from tests.workers.conftest import CASE
from workers import app as fleet

ROOT = Path(__file__).parent.parent.parent
RABBIT = "amqp://guest:guest@127.0.0.1:5672//"


def door(broker: str, code: str, *arguments: str) -> str:
    """Run `code` in a fresh process whose settings name this broker; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, time\nfrom workers import app as fleet\n{code}", *arguments],
        cwd=ROOT,
        env={**os.environ, "KERNELWATCH_BROKER_URL": broker},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def queue() -> Iterator[str]:
    """The name of a queue of this test's own on the machine's RabbitMQ."""
    try:
        socket.create_connection(("127.0.0.1", 5672), timeout=1).close()
    except OSError:
        needs.skip("rabbitmq")
    name = f"test-{time.monotonic_ns()}"
    yield name
    with Connection(RABBIT) as connection:
        connection.default_channel.queue_delete(name)


def test_a_wake_up_carries_the_device_and_nothing_else(queue: str) -> None:
    door(RABBIT, "fleet.send_wakeup(sys.argv[1])", queue)

    with Connection(RABBIT) as connection:
        inbox = connection.SimpleQueue(queue, queue_args=fleet.QUORUM)
        message = inbox.get(timeout=10)
        message.ack()
        inbox.close()
    assert message.headers["task"] == "work"
    assert message.payload[:2] == [[queue], {}]
    assert message.properties["expiration"] == "60000"


def test_a_broker_that_is_away_costs_one_short_try() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = """
import socket
tries, connect = [], socket.socket.connect
socket.socket.connect = lambda self, address: (tries.append(address), connect(self, address))[1]
waits = []
time.sleep = waits.append
try:
    fleet.send_wakeup("h200")
except Exception as error:
    print(error)
first = len(tries)
for _ in range(100):
    fleet.send_wakeup("h200")  # nothing is tried for a while: the timers look anyway
assert 1 <= first == len(tries) <= 2, (first, len(tries))
assert sum(waits) < 1, waits
"""
    assert "refused" in door(f"amqp://guest:guest@127.0.0.1:{port}//", code)


@pytest.mark.parametrize(
    ("taken_by", "told"), [("the timer", "the worker"), ("a task", "the worker"), ("a task", "each of its processes")]
)
def test_a_worker_that_is_told_to_end_gives_its_run_back_without_blame(watched, queue, tmp_path, taken_by, told):
    sha = watched.commit({"speed.json": json.dumps({CASE: "hang"})})
    environment = {"KERNELWATCH_BROKER_URL": RABBIT, "KERNELWATCH_DEVICE": "cpu"}
    if taken_by == "the timer":
        deliveries.run_revision("norms", sha)
    else:
        environment["KERNELWATCH_QUEUE_POLL_S"] = "3600"
    command = ["-m", "celery", "--app", "workers.app", "worker", "--queues", "cpu", "--concurrency", "1"]
    pidfile = tmp_path / "pid"
    command += ["--hostname", f"{queue}@%h", "--pidfile", str(pidfile)]

    with running({"worker": command}, environment, tmp_path / "logs"):
        if taken_by == "a task":
            until((settings().state / "polled").exists, 60)
            deliveries.run_revision("norms", sha)
            door(RABBIT, "fleet.send_wakeup('cpu')")
        until(lambda: "1/1" in (the_run().stage or ""), 60)
        began, pid = time.monotonic(), int(pidfile.read_text())
        if told == "the worker":
            os.kill(pid, signal.SIGTERM)
        else:
            os.killpg(pid, signal.SIGTERM)
        until(lambda: not pidfile.exists(), 60)  # it is the last thing that goes

    assert time.monotonic() - began < 30
    run = the_run()
    assert (run.state, run.reason) == (RunState.QUEUED, "the worker was stopped")
    assert run.max_attempts == 4, "the attempt does not count"


def the_run() -> Run:
    with reading() as database:
        return database.execute(select(Run)).scalar_one()


def test_a_process_that_ends_lets_control_finish_what_it_has_begun(state: Path) -> None:
    """Else a comment that was sent, and not yet recorded as such, would be sent again."""
    code = """
import os, threading
from workers import control

begun = threading.Event()

def send():
    begun.set()
    time.sleep(0.2)
    print("recorded")

control.LANES = (control.Lane("reports", control.Duty(send, 60.0)),)
fleet._ending[:] = os.pipe()
fleet._queues[:] = ["control"]
fleet._begin()
begun.wait()
fleet._wait_for_the_threads()
"""
    assert "recorded" in door("memory://", code).splitlines()


def test_who_is_at_work_is_not_disturbed_and_does_next_what_was_asked_for_meanwhile() -> None:
    done = []

    def outer() -> None:
        for number in range(3):  # wake-ups of one queue are one look
            fleet._once("cpu", lambda number=number: done.append(f"inner {number}"))
        done.append("outer")

    fleet._once("control", outer)
    fleet._once("control", lambda: done.append("later"))
    assert done == ["outer", "inner 2", "later"]


def test_a_duty_that_breaks_leaves_the_door_open() -> None:
    with pytest.raises(ZeroDivisionError):
        fleet._once("cpu", lambda: 1 / 0)
    done = []
    fleet._once("cpu", lambda: done.append("next"))
    assert done == ["next"]
