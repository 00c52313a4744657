"""A flood of one repository, and what another waits for it: webhooks, API, control, git and database are real."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select

from service.app import create_app
from service.db.engine import reading, transaction
from service.db.models import Delivery, Revision, Run, Target
from service.domain.states import RunState
from service.ledger import targets
from service.ledger.intake import deliveries
from service.ledger.runs import queue
from service.settings import settings
from tests import world
from tests.fakes.contracts import webhooks
from tests.fakes.github import FakeGitHub
from tests.fakes.processes import served
from tests.fakes.repository import Repository
from tests.stories.test_story import RECIPE
from tests.workers.periodic import happens, running_control

LARGE, SMALL = "acme/large", "acme/small"
QUICK = RECIPE.replace('[base]\nstack = "scripted"\n', "")


@dataclass
class Town:
    """Two repositories on GitHub, and kernelwatch that watches both."""

    address: str
    repositories: dict[str, Repository]

    def heads(self, name: str, count: int) -> list[str]:
        """Heads of so many pull requests from branches of the repository itself, each of one commit."""
        repository = self.repositories[name]
        stream = list[str]()
        for number in range(1, count + 1):
            stream += [f"commit refs/heads/p{number}", f"mark :{number}", "committer Ada <ada@example.org> 1 +0000"]
            stream += ["data 4", "work", "from refs/heads/main", "M 644 inline norms.py", "data 8", f"#{number:7}"]
            stream += [f"reset refs/pull/{number}/head", f"from :{number}", ""]
        repository.git("fast-import", "--quiet", given="\n".join(stream))
        listed = repository.git("for-each-ref", "--format=%(refname) %(objectname)", "refs/pull")
        shas = dict(line.split() for line in listed.splitlines())
        return [shas[f"refs/pull/{number}/head"] for number in range(1, count + 1)]

    def line(self, name: str, count: int) -> tuple[str, str]:
        """So many further commits of the mainline; the commit before them, and the last."""
        repository = self.repositories[name]
        before = repository.git("rev-parse", "main")
        stream = list[str]()
        for number in range(1, count + 1):
            stream += ["commit refs/heads/main", "committer Ada <ada@example.org> 1 +0000", "data 4", "work"]
            stream += [f"from {before}"] * (number == 1) + ["M 644 inline norms.py", "data 8", f"#{number:7}", ""]
        repository.git("fast-import", "--quiet", given="\n".join(stream))
        return before, repository.git("rev-parse", "main")

    def open_pulls(self, name: str, heads: list[str]) -> None:
        """GitHub posts a webhook for each of these pull requests."""
        base = self.repositories[name].git("rev-parse", "main")
        with httpx.Client(base_url=self.address) as forge:
            for number, head in enumerate(heads, 1):
                body = webhooks.pull_request(number, "opened", head, base, whose=name)
                body["repository"] = body["pull_request"]["base"]["repo"] = {"full_name": name}
                sent = webhooks.from_github("pull_request", body, guid=f"{name}-{number}", secret="s3cret")
                assert forge.post("/webhooks/github", **sent).status_code == 202


@pytest.fixture
def town(either: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    with served(FakeGitHub().app) as forge:
        for name, value in {
            "ALLOWED_ROOTS": json.dumps([str(tmp_path)]),
            "WEBHOOK_SECRET": "s3cret",
            "GITHUB_API": forge,
            "GITHUB_TOKEN": "a-token",
            "WRITE_PAUSE_S": "0",
        }.items():
            monkeypatch.setenv(f"KERNELWATCH_{name}", value)
        settings.cache_clear()
        repositories = dict[str, Repository]()
        for name in (LARGE, SMALL):
            repository = repositories[name] = Repository(tmp_path / name.partition("/")[2])
            repository.commit("first", {"norms.py": name})
            with transaction() as session:
                where = {"location": str(repository.folder), "branch": "main", "forge": name}
                target = targets.register(session, name.partition("/")[2], recipe_text=QUICK, **where)
            deliveries.poll(target.id)
            measured(world.leased())
        with served(create_app()) as address:
            yield Town(address, repositories)


def runs(name: str, state: RunState = RunState.QUEUED) -> int:
    """The number of runs of a repository's target that are in a state."""
    of_target = Run.target_id.in_(select(Target.id).where(Target.forge == name))
    with reading() as session:
        return session.scalar(select(func.count()).where(of_target, Run.state == state)) or 0


def unprocessed() -> int:
    with reading() as session:
        return session.scalar(select(func.count()).where(Delivery.processed_at.is_(None))) or 0


def measured(lease: queue.Lease) -> None:
    with transaction() as session:
        queue.end(session, lease, RunState.DONE)


def commit_of(lease: queue.Lease) -> str:
    with reading() as session:
        return session.get_one(Revision, session.get_one(Run, lease.run_id).revision_id).sha


@pytest.mark.parametrize("either", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("flood", [60, pytest.param(2000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_a_flood_of_deliveries_delays_another_pull_request_by_at_most_one_run(town: Town, flood: int) -> None:
    heads, [small] = town.heads(LARGE, flood), town.heads(SMALL, 1)
    town.open_pulls(LARGE, heads)
    with running_control():
        assert happens(lambda: runs(LARGE) > 0, 300.0)
        begun = world.leased()
        assert commit_of(begun) in heads
        town.open_pulls(SMALL, [small])
        assert happens(lambda: runs(SMALL) == 1)
        waited_for = unprocessed() + runs(LARGE)
    assert waited_for > 20, "the flood is not over"
    measured(begun)
    assert commit_of(world.leased()) == small


@pytest.mark.parametrize("either", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_a_backfill_delays_a_pull_request_and_a_push_of_another_by_at_most_one_run(town: Town, count: int) -> None:
    before, tip = town.line(LARGE, count)
    assert deliveries.backfill("large", before, tip) == count
    begun = world.leased()
    [small] = town.heads(SMALL, 1)
    town.open_pulls(SMALL, [small])
    deliveries.process_due()
    _, pushed = town.line(SMALL, 1)
    with reading() as session:
        assert deliveries.poll(session.scalars(select(Target.id).where(Target.forge == SMALL)).one())
    measured(begun)
    for commit in (small, pushed):
        lease = world.leased()
        assert commit_of(lease) == commit
        measured(lease)
    assert runs(LARGE) == count - 1
