"""How long a pull request waits for its comment, from the push on.

    make bench-comment                                      # timings are scripted: what neither builds nor measures
    make bench-comment ARGS=--measure                       # 12 cases in torch: on the first GPU, else the processor
    make bench-comment ARGS="--fleet postgresql://…"        # Celery, RabbitMQ on 127.0.0.1, an empty database

The service runs as an operator starts it, `kernelwatch up` with SQLite or a fleet, against a GitHub on 127.0.0.1 that
keeps the time of each comment.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import select
from sqlalchemy.orm import undefer

from benchmarks.api.watched import Watched, in_torch, scripted
from service.db import migrate
from service.db.engine import reading, transaction
from service.db.models import Revision, Run
from service.domain.states import OPEN_STATES, RunState
from service.ledger import targets
from service.settings import settings
from tests.fakes.contracts import webhooks
from tests.fakes.github import Answer, FakeGitHub
from tests.fakes.processes import free_port, running, served, until
from tests.fakes.repository import MEASURED_ANYWHERE, Repository
from workers.machine import environments

GOALS_S = {"one machine": 1.0, "fleet": 0.5}
MEASURED_GOAL_S = 45.0
STAGES = ("push to queued", "queued to leased", "leased to trials", "trials to verdicts", "ended to comment")
NOT_MEASURING = (STAGES[0], STAGES[1], STAGES[4])
KERNELWATCH = ["-m", "service.cli"]
CELERY = ["-m", "celery", "--app", "workers.app"]


@dataclass(frozen=True)
class Wait:
    """Seconds of a pull request by the names of STAGES, those of its trials by phase, and what the service used.

    `timed` is part of the rounds; `other` are the seconds to the verdicts that no phase has.  Several GPUs work at
    once, so that their phases add up to more.  Processes that live for less than a tenth of a second are not counted.
    """

    stages: Mapping[str, float]
    phases: Mapping[str, float]
    processes: int
    cpu_s: float
    repeated: bool  # its first session, in which controls were off, counts as before the trials

    def __str__(self) -> str:
        stages, phases = (
            ", ".join(f"{name} {spent:.2f} s" for name, spent in part.items()) for part in (self.stages, self.phases)
        )
        used = f"{self.processes} processes, {self.cpu_s:.0f} s of CPU time"
        again = "; measured twice, because its controls were off" if self.repeated else ""
        return f"{sum(self.stages.values()):.1f} s: {stages}; in the trials {phases}; {used}{again}"


class TimedGitHub(FakeGitHub):
    """Keeps when comments were written or edited, by pull request."""

    def __init__(self) -> None:
        super().__init__()
        self.written = defaultdict[int, list[float]](list)

    def answer(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], said: dict[str, Any]
    ) -> Answer:
        found = super().answer(method, path, query, headers, said)
        if method == "POST" and path.endswith("/comments"):
            self.written[int(path.split("/")[-2])].append(time.time())
        elif method == "PATCH" and "/comments/" in path:
            self.written[self.comments[int(path.split("/")[-1])].number].append(time.time())
        return found

    def answered(self, number: int, run: Run | None) -> float | None:
        """When a comment first had the result of this run: findings about its code may come before."""
        ended = run.finished_at if run is not None else None
        return next((when for when in self.written[number] if ended is not None and when >= ended), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="build and measure, and count the time that it takes")
    parser.add_argument("--pulls", type=int, help="how many, one after the other; by default 50, with --measure 2")
    parser.add_argument("--fleet", metavar="URL", help="the URL of an empty PostgreSQL database")
    chosen = parser.parse_args()
    way = "fleet" if chosen.fleet else "one machine"
    counted, goal_s = (STAGES, MEASURED_GOAL_S) if chosen.measure else (NOT_MEASURING, GOALS_S[way])
    waits = list[Wait]()
    with tempfile.TemporaryDirectory() as folder:
        watched = in_torch() if chosen.measure else scripted(Path(folder, "stack"))
        for wait in measured(watched, Path(folder), chosen.pulls or (2 if chosen.measure else 50), chosen.fleet):
            waits.append(wait)
            if chosen.measure:
                _say(f"pull request {len(waits)} on {watched.device}, {wait}")
    for name in counted:
        part = [wait.stages[name] for wait in waits]
        _say(f"{name}: median {statistics.median(part):.2f} s, {min(part):.2f} to {max(part):.2f} s")
    found = sorted(sum(wait.stages[name] for name in counted) for wait in waits)
    median = statistics.median(found)
    ninth = found[len(found) * 9 // 10]
    _say(
        f"{way}, {len(found)} pull requests: median {median:.2f} s, nine of ten within {ninth:.2f} s, "
        f"{found[0]:.2f} to {found[-1]:.2f} s; the goal is a median of {goal_s} s"
    )
    return int(median > goal_s)


def measured(watched: Watched, folder: Path, pulls: int, database: str | None) -> Iterator[Wait]:
    """For so many pull requests, one after the other, how each waited."""
    github, port = TimedGitHub(), free_port()
    with served(github.app) as forge:
        environment = {
            "STATE": str(folder / "state"),
            "PORT": str(port),
            "ALLOWED_ROOTS": json.dumps([str(folder)]),
            "WEBHOOK_SECRET": "s3cret",
            "GITHUB_API": forge,
            "GITHUB_TOKEN": "a-token",
            "DEVICE": watched.device,
            "REMOTE_POLL_S": "3600",
        }
        if database:
            environment |= {"DATABASE_URL": database, "BROKER_URL": "amqp://guest:guest@127.0.0.1:5672//"}
        environment = {f"KERNELWATCH_{name}": value for name, value in environment.items()}
        os.environ.update(environment)
        settings.cache_clear()
        (folder / "state").mkdir(mode=0o700)
        migrate.upgrade(settings().database)
        environments.adopt_stack("host", watched.python, [])
        repository = Repository(folder / "norms")
        base = repository.commit("first", dict(watched.base))
        with transaction() as session:
            where = {"location": str(repository.folder), "branch": "main", "forge": "acme/norms"}
            targets.register(session, "norms", recipe_text=watched.recipe, **where, **MEASURED_ANYWHERE)
        address = f"http://127.0.0.1:{port}"
        with running(commands(watched.device, folder if database else None), environment, folder / "logs"):
            until(lambda: ready(address), 120)
            until(lambda: run_of(base), 600)  # the mainline was measured before; else its run would hold up the first
            for number in range(1, pulls + 1):
                repository.git("checkout", "--quiet", "--detach", base)
                head = repository.commit(f"pull {number}", dict(watched.head(number)))
                time.sleep(random.uniform(1, 4))  # no pull request comes in step with a timer
                used, before = dict[psutil.Process, float](), _cpu_s()
                sent = time.time()
                for name in (f"heads/p{number}", f"pull/{number}/head"):
                    repository.git("update-ref", f"refs/{name}", head)
                github.pull_is("acme/norms", number, head, base, "acme/norms")
                deliver(address, number, head, base)

                def answered(number: int = number, head: str = head, used: dict[psutil.Process, float] = used) -> bool:
                    used.update(_cpu_s())
                    return github.answered(number, run_of(head)) is not None

                until(answered, 600, 0.1)
                cpu_s = sum(used.values()) - sum(before[process] for process in used.keys() & before.keys())
                run = run_of(head)
                arrived = github.answered(number, run)
                assert run is not None, "it was waited for"
                assert arrived is not None, "it was waited for"
                yield _wait(run, sent, arrived, len(used.keys() - before.keys()), cpu_s)


def commands(on: str, fleet: Path | None) -> Mapping[str, Sequence[str]]:
    """What serves the device `on`: one machine, or a fleet whose timetable lies in the folder `fleet`."""
    if fleet is None:
        return {"up": [*KERNELWATCH, "up"]}
    worker = [*CELERY, "worker", "--concurrency", "1"]
    return {
        "api": [*KERNELWATCH, "api"],
        "worker": [*worker, "--queues", on, "--hostname", f"w{os.getpid()}@%h"],
        "control": [*worker, "--queues", "control", "--hostname", f"c{os.getpid()}@%h"],
        "beat": [*CELERY, "beat", "--schedule", str(fleet / "beat"), "--pidfile", ""],
    }


def _wait(run: Run, sent: float, arrived: float, processes: int, cpu_s: float) -> Wait:
    told = run.telemetry or {}
    phases = Counter[str]()
    for trial in told["trials"]:
        phases.update(trial["seconds"])
    times = (sent, run.created_at, run.started_at, told["began"], run.finished_at, arrived)
    stages = {name: after - before for name, (before, after) in zip(STAGES, pairwise(times), strict=True)}
    phases["other"] = stages[STAGES[3]] - (phases.total() - phases["timed"])
    return Wait(stages, dict(phases), processes, cpu_s, run.repeated)


def _cpu_s() -> dict[psutil.Process, float]:
    """The CPU time that each process of the service has used, in seconds."""
    spent = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            own = process.cpu_times()  # without that of children: nobody waits for those of a sandbox
            spent[process] = own.user + own.system
    return spent


def ready(address: str) -> bool:
    """Whether the API answers and a worker is there."""
    try:
        return bool(httpx.get(f"{address}/api/v1/workers", timeout=5).json()["items"])
    except httpx.HTTPError:
        return False


def deliver(address: str, number: int, head: str, base: str) -> None:
    """Deliver the webhook of a new pull request, as GitHub does."""
    body = webhooks.pull_request(number, "opened", head, base)
    delivery = webhooks.from_github("pull_request", body, guid=f"delivery-{number}", secret="s3cret")
    httpx.post(f"{address}/webhooks/github", **delivery, timeout=30).raise_for_status()


def run_of(sha: str) -> Run | None:
    """The run of a commit once it is done, with its telemetry.  Raises SystemExit where it ended in another way."""
    found = select(Run).join(Revision).where(Revision.sha == sha).options(undefer(Run.telemetry))
    with reading() as session:
        run = session.scalars(found).one_or_none()
    if run is None or run.state in OPEN_STATES:
        return None
    if run.state is not RunState.DONE:
        raise SystemExit(f"The run of {sha} is {run.state}: {run.reason}")
    return run


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
