"""The fleet as plain processes (PostgreSQL, RabbitMQ, Celery, beat, API) measures a commit of the demo."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.norms import build as example
from service.db import migrate
from service.db.engine import disconnect, transaction
from service.ledger import targets
from service.settings import settings
from tests import needs
from tests.fakes import demo
from tests.fakes.contracts import webhooks
from tests.fakes.processes import free_port, running, until
from tests.fakes.repository import MEASURED_ANYWHERE
from workers.machine import environments

WIDE, LAYER = "rmsnorm.fwd.128x2048.fp32", "layernorm.fwd.512x1024.fp32"
# Two cases of the demo, of which its commit `wide-rows` makes one slower.
RECIPE = f"""
devices = ["cpu"]
suite = "two"
sota = "eager"
[paths]
matter = ["norms/**"]
[providers.norms]
rmsnorm.fwd = "norms.rmsnorm:rms_norm"
layernorm.fwd = "norms.layernorm:layer_norm"
[suites]
two = ["{WIDE}", "{LAYER}"]
[policy]
smallest_change = 0.25
screening = [3, 4, 6, 9, 13]
control_limit = 0.8
rounds = 10
"""
BROKER = "amqp://guest:guest@127.0.0.1:5672//"
CELERY = ["-m", "celery", "--app", "workers.app"]
KERNELWATCH = ["-m", "service.cli"]


def reachable(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def fleet(state: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a fleet, once it is ready and each of its timers has looked once."""
    port = free_port()
    address, control = f"http://127.0.0.1:{port}", state / "control"  # on a machine of its own
    api, worker = {"api": [*KERNELWATCH, "api"]}, [*CELERY, "worker", "--concurrency", "1"]
    common = {**environment, "KERNELWATCH_PORT": str(port)}
    with (
        running(
            {**api, "cpu": [*worker, "--queues", "cpu", "--hostname", f"w{port}@%h"]},
            {**common, "KERNELWATCH_STATE": str(state)},
            state / "test-logs",
        ),
        running(
            {
                "control": [*worker, "--queues", "control", "--hostname", f"c{port}@%h"],
                "beat": [*CELERY, "beat", "--schedule", str(control / "beat"), "--pidfile", ""],
            },
            {**common, "KERNELWATCH_STATE": str(control)},
            control,
        ),
    ):
        until(lambda: ready(address) and (state / "polled").exists() and (control / "polled").exists(), 120)
        yield address


@pytest.mark.demo
@pytest.mark.alone
@pytest.mark.parametrize("way", ["wake-ups", pytest.param("timers", marks=pytest.mark.long)])
def test_a_fleet_brings_a_commit_to_its_verdicts(state, postgres, monkeypatch, way):
    """Where timers wait for an hour, wake-ups bring a push to its verdicts; where no broker answers, timers do."""
    if way == "wake-ups" and not reachable(5672):
        needs.skip("rabbitmq")
    environments.adopt_stack("host", Path(sys.executable), [])
    monkeypatch.setenv("KERNELWATCH_DATABASE_URL", postgres)
    monkeypatch.setenv("KERNELWATCH_WEBHOOK_SECRET", "s3cret")
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", json.dumps([str(state)]))
    monkeypatch.setenv("KERNELWATCH_DEVICE", "cpu")
    settings.cache_clear()
    disconnect()
    migrate.upgrade(postgres)
    repository = example.build(state / "demo")
    shas = example.shas(repository)

    def mainline_is_at(name: str) -> None:
        subprocess.run(["git", "update-ref", "refs/heads/main", shas[name]], cwd=repository, check=True)

    mainline_is_at("docs")  # which the recipe skips
    with transaction() as session:
        at = {"location": str(repository), "branch": "main", "forge": "acme/norms"}
        targets.register(session, "norms", recipe_text=RECIPE, **at, **MEASURED_ANYWHERE)

    environment = {
        "wake-ups": {
            "KERNELWATCH_BROKER_URL": BROKER,
            "KERNELWATCH_QUEUE_POLL_S": "3600",
            "KERNELWATCH_REMOTE_POLL_S": "3600",
        },
        "timers": {
            "KERNELWATCH_BROKER_URL": f"amqp://127.0.0.1:{free_port()}//",
            "KERNELWATCH_REMOTE_POLL_S": "1",
        },
    }
    with fleet(state, environment[way]) as address:
        mainline_is_at("wide-rows")
        if way == "wake-ups":
            push(address, before=shas["docs"], after=shas["wide-rows"])
        until(lambda: ended(address), 400)
        run = ended(address)
        [worker] = httpx.get(f"{address}/api/v1/workers", timeout=60).json()["items"]
    assert run["state"] == "done", run["reason"]
    outcomes = {one["case"]: one["outcome"] for one in run["verdicts"] if one["baseline_kind"] == "parent"}
    assert outcomes == {WIDE: "regression", LAYER: "steady"}
    assert worker["device"] == "cpu"


def ended(address: str) -> dict[str, Any]:
    """The run of the commit, with verdicts, once it has ended; {} before."""
    listed = httpx.get(f"{address}/api/v1/targets/norms/runs", timeout=60).json()["items"]
    subject = demo.subjects()["wide-rows"]
    for run in listed:
        if run["subject"] == subject and run["state"] in demo.ENDED:
            return dict(httpx.get(f"{address}/api/v1/runs/{run['id']}", timeout=60).json())
    return {}


def push(address: str, before: str, after: str) -> None:
    """The webhook of a push to the mainline, as GitHub sends it."""
    delivery = webhooks.from_github("push", webhooks.push(before, after), guid="delivery-1", secret="s3cret")
    httpx.post(f"{address}/webhooks/github", **delivery, timeout=20).raise_for_status()


def ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
