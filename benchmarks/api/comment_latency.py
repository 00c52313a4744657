"""How long a pull request waits for its comment, without the building and measuring of its run.

    make bench-comment                                      # one machine: API, control and worker, SQLite
    make bench-comment ARGS="--fleet postgresql://…"        # Celery, RabbitMQ on 127.0.0.1, an empty database

The service runs as an operator starts it, against a GitHub on 127.0.0.1 that keeps the time of each comment.  Timings
of contenders are scripted, so a run takes a few seconds.  A latency is the time from the delivery of the webhook to the
arrival of the comment, less the time from the start of the run to its end.
"""

import argparse
import hashlib
import hmac
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from service.db import migrate
from service.db.engine import reading, transaction
from service.db.models import Revision, Run
from service.domain.states import RunState
from service.ledger import targets
from service.settings import settings
from tests.fakes.github import Answer, FakeGitHub
from tests.fakes.processes import free_port, running, scripted_python, served, until
from tests.fakes.repository import MEASURED_ANYWHERE, Repository
from workers.machine import environments

GOALS_S = {"one machine": 2.0, "fleet": 1.5}
STAGES = "webhook to queued", "queued to started", "ended to comment"
CASE = "rmsnorm.fwd.64x4096.fp32"
RECIPE = f"""
devices = ["cpu"]
suite = "one"
[base]
stack = "scripted"
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[suites]
one = ["{CASE}"]
[policy]
smallest_change = 0.05
screening = [3]
rounds = 6
comment = "always"
"""
KERNELWATCH = ["-m", "service.cli"]
CELERY = ["-m", "celery", "--app", "workers.app"]


class TimedGitHub(FakeGitHub):
    """Keeps when a comment that has a result arrived, by pull request."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: dict[int, float] = {}

    def answer(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], said: dict[str, Any]
    ) -> Answer:
        found = super().answer(method, path, query, headers, said)
        if method == "POST" and path.endswith("/comments"):
            self.arrived.setdefault(int(path.split("/")[-2]), time.time())
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pulls", type=int, default=50)
    parser.add_argument("--fleet", metavar="URL", help="the URL of an empty PostgreSQL database")
    chosen = parser.parse_args()
    way = "fleet" if chosen.fleet else "one machine"
    with tempfile.TemporaryDirectory() as folder:
        waits = list(measured(Path(folder), chosen.pulls, chosen.fleet))
    found = sorted(sum(one) for one in waits)
    median = statistics.median(found)
    ninth = found[len(found) * 9 // 10]
    for name, part in zip(STAGES, zip(*waits, strict=True), strict=True):
        sys.stdout.write(f"{name}: median {statistics.median(part):.2f} s, {min(part):.2f} to {max(part):.2f} s\n")
    sys.stdout.write(
        f"{way}, {len(found)} pull requests: median {median:.2f} s, nine of ten within {ninth:.2f} s, "
        f"{found[0]:.2f} to {found[-1]:.2f} s; the goal is a median of {GOALS_S[way]} s\n"
    )
    return int(median > GOALS_S[way])


def measured(folder: Path, pulls: int, database: str | None) -> Iterator[tuple[float, ...]]:
    """For so many pull requests, one after the other, the seconds for which each waited: see `main`."""
    github, port = TimedGitHub(), free_port()
    python = scripted_python(folder / "stack")
    with served(github.app) as forge:
        environment = {
            "STATE": str(folder / "state"),
            "PORT": str(port),
            "ALLOWED_ROOTS": json.dumps([str(folder)]),
            "WEBHOOK_SECRET": "s3cret",
            "GITHUB_API": forge,
            "GITHUB_TOKEN": "a-token",
            "DEVICE": "cpu",
            "REMOTE_POLL_S": "3600",
        }
        if database:
            environment |= {"DATABASE_URL": database, "BROKER_URL": "amqp://guest:guest@127.0.0.1:5672//"}
        environment = {f"KERNELWATCH_{name}": value for name, value in environment.items()}
        os.environ.update(environment)
        settings.cache_clear()
        (folder / "state").mkdir(mode=0o700)
        migrate.upgrade(settings().database)
        environments.adopt_stack("scripted", python, [])
        repository = Repository(folder / "norms")
        base = repository.commit("first", {"speed.json": json.dumps({CASE: 200.0})})
        with transaction() as session:
            where = {"location": str(repository.folder), "branch": "main", "forge": "acme/norms"}
            targets.register(session, "norms", recipe_text=RECIPE, **where, **MEASURED_ANYWHERE)
        address = f"http://127.0.0.1:{port}"
        with running(commands(fleet=database is not None), environment, folder / "logs"):
            until(lambda: ready(address), 120)
            for number in range(1, pulls + 1):
                repository.git("checkout", "--quiet", "--detach", base)
                head = repository.commit(f"pull {number}", {"speed.json": json.dumps({CASE: 200.0 + number / 100})})
                for name in (f"heads/p{number}", f"pull/{number}/head"):
                    repository.git("update-ref", f"refs/{name}", head)
                github.pull_is("acme/norms", number, head, base, "acme/norms")
                time.sleep(random.uniform(1, 4))  # no pull request comes in step with a timer
                sent = time.time()
                deliver(address, number, head, base)
                until(lambda number=number: number in github.arrived, 120, 0.02)  # type: ignore[misc]
                queued, started, ended = times_of(head)
                yield queued - sent, started - queued, github.arrived[number] - ended


def commands(*, fleet: bool) -> Mapping[str, Sequence[str]]:
    api = {"api": [*KERNELWATCH, "api"]}
    if not fleet:
        return {**api, "control": [*KERNELWATCH, "control"], "worker": [*KERNELWATCH, "worker", "start"]}
    worker = [*CELERY, "worker", "--concurrency", "1"]
    return {
        **api,
        "cpu": [*worker, "--queues", "cpu", "--hostname", f"w{os.getpid()}@%h"],
        "control": [*worker, "--queues", "control,notify", "--hostname", f"c{os.getpid()}@%h"],
    }


def ready(address: str) -> bool:
    """Whether the API answers and a worker is there."""
    try:
        return bool(httpx.get(f"{address}/api/v1/workers", timeout=5).json()["items"])
    except httpx.HTTPError:
        return False


def deliver(address: str, number: int, head: str, base: str) -> None:
    """Deliver the webhook of a new pull request, as GitHub does."""
    whose = {"full_name": "acme/norms", "id": 1}
    pull = {
        "number": number,
        "head": {"sha": head, "ref": f"p{number}", "repo": whose},
        "base": {"ref": "main", "sha": base, "repo": whose},
        "user": {"login": "ada"},
    }
    event = {
        "action": "opened",
        "number": number,
        "pull_request": pull,
        "repository": whose,
        "sender": {"login": "ada"},
    }
    raw = json.dumps(event).encode()
    signature = hmac.new(b"s3cret", raw, hashlib.sha256).hexdigest()
    headers = {
        "x-github-event": "pull_request",
        "x-github-delivery": f"delivery-{number}",
        "x-hub-signature-256": f"sha256={signature}",
        "content-type": "application/json",
    }
    httpx.post(f"{address}/webhooks/github", content=raw, headers=headers, timeout=30).raise_for_status()


def times_of(head: str) -> tuple[float, float, float]:
    """When the run of a commit was queued, was started and ended."""
    with reading() as session:
        run = session.scalars(select(Run).join(Revision).where(Revision.sha == head)).one()
        if run.state is not RunState.DONE or run.started_at is None or run.finished_at is None:
            raise SystemExit(f"The run of {head} is {run.state}: {run.reason}")
        return run.created_at, run.started_at, run.finished_at


if __name__ == "__main__":
    sys.exit(main())
