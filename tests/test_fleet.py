"""The fleet as plain processes (PostgreSQL, RabbitMQ, Celery, beat, API) runs the demo to the same verdicts."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests import needs
from tests.fakes import demo
from tests.fakes.processes import ROOT, free_port, running, until
from workers import environments

BROKER = "amqp://guest:guest@127.0.0.1:5672//"
CELERY = ["-m", "celery", "--app", "workers.app"]


def reachable(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.demo
@pytest.mark.alone
@pytest.mark.timeout(900)
@pytest.mark.parametrize("broker", ["alive", "dead"])
def test_a_fleet_comes_to_the_same_verdicts(state, postgres, broker):
    """With a broker the wake-ups arrive; with none that answers, the timers alone bring every run to its end."""
    if broker == "alive" and not reachable(5672):
        needs.skip("rabbitmq")
    environments.adopt_stack("host", Path(sys.executable), [])
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    environment = {
        "KERNELWATCH_STATE": str(state),
        "KERNELWATCH_DEVICE": "cpu",
        "KERNELWATCH_DATABASE_URL": postgres,
        "KERNELWATCH_BROKER_URL": BROKER if broker == "alive" else f"amqp://127.0.0.1:{free_port()}//",
        "KERNELWATCH_PORT": str(port),
    }
    run = [sys.executable, "-m", "service.cli"]
    subprocess.run([*run, "db", "upgrade"], cwd=ROOT, env={**environment, "PATH": "/usr/bin"}, check=True)
    processes = {
        "api": ["-m", "service.cli", "api"],
        "control": [*CELERY, "worker", "--queues", "control,notify", "--concurrency", "1", "--hostname", f"c{port}@%h"],
        "cpu": [*CELERY, "worker", "--queues", "cpu", "--concurrency", "1", "--hostname", f"w{port}@%h"],
        "beat": [*CELERY, "beat", "--schedule", str(state / "beat"), "--pidfile", ""],
    }
    began = time.monotonic()
    with running(processes, environment, state / "test-logs"):
        until(lambda: _ready(address), 60)
        subprocess.run([*run, "demo"], cwd=ROOT, env={**environment, "PATH": "/usr/bin:/bin"}, check=True)
        if broker == "dead":
            until(lambda: _some_run_ended(address), 300)
            return
        until(lambda: demo.runs(address), 800)
        print(f"the fleet's demo took {time.monotonic() - began:.0f} s")
        assert demo.differences(demo.runs(address)) == []
        [worker] = httpx.get(f"{address}/api/v1/workers", timeout=10).json()["items"]
        assert worker["device"] == "cpu"


def _ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _some_run_ended(address: str) -> bool:
    listed = httpx.get(f"{address}/api/v1/targets/demo/runs", params={"limit": 100}, timeout=10).json()["items"]
    return any(one["state"] == "done" for one in listed)
