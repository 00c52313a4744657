"""Runs are started, cancelled, retried and approved from elsewhere."""

import json
from pathlib import Path

import pytest

from service.db.engine import reading, transaction
from service.db.models import Run
from service.domain.states import Purpose, RunState
from service.ledger import audit
from service.ledger.intake import registry
from service.ledger.runs import queue
from service.settings import settings
from tests import world
from tests.fakes.api import Api
from tests.fakes.repository import Repository

RECIPE = """
devices = ["cpu", "h200"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
"""


@pytest.fixture
def norms(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A watched repository with three commits, of which none is queued, and one that is on no branch."""
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", json.dumps([str(tmp_path)]))
    settings.cache_clear()
    repository = Repository(tmp_path / "norms")
    for subject in ("first", "second", "third"):
        repository.commit(subject, {"norms.py": f"# {subject}"})
    registry.add("norms", location=str(repository.folder), recipe=(RECIPE, {}), backfill=0)
    return repository


@pytest.fixture
def ci(norms: Repository) -> Api:
    return Api().with_key("run:norms")


def run_in(state: RunState, **columns: object) -> int:
    """A run of a target that is no repository."""
    target = world.target(RECIPE)
    with transaction() as session:
        return world.run(session, world.commit(session, target.id, 1), state=state, **columns).id


def test_a_revision_is_queued_once_for_each_device(ci: Api, norms: Repository) -> None:
    started = ci.post("/runs", {"target": "norms", "revision": "main"})
    assert started.status_code == 201
    runs = started.json()["items"]
    assert [one["device"] for one in runs] == ["cpu", "h200"]
    assert {one["revision"] for one in runs} == {norms.git("rev-parse", "main")}
    assert started.json()["created"] == [one["id"] for one in runs]

    same = ci.post("/runs", {"target": "norms", "revision": "main", "device": "cpu"})
    assert (same.status_code, same.json()["created"]) == (200, [])
    assert [one["id"] for one in same.json()["items"]] == [runs[0]["id"]]

    again = ci.post("/runs", {"target": "norms", "revision": "main", "device": "cpu", "again": True})
    assert again.status_code == 201
    assert again.json()["items"][0]["id"] not in {one["id"] for one in runs}


def test_a_lost_answer_costs_no_second_run(ci: Api) -> None:
    wanted = {"target": "norms", "revision": "main", "device": "cpu", "again": True}
    first = ci.post("/runs", wanted, headers={"Idempotency-Key": "build-7"})
    second = ci.post("/runs", wanted, headers={"Idempotency-Key": "build-7"})
    assert (second.status_code, second.content) == (201, first.content)
    assert second.headers["idempotency-replayed"] == "true"
    assert len(ci.get("/queue").json()["items"]) == 1

    other = ci.post("/runs", {**wanted, "revision": "main~1"}, headers={"Idempotency-Key": "build-7"})
    assert other.status_code == 422
    assert "was used for another request" in other.json()["detail"]


@pytest.mark.parametrize(
    ("wanted", "status", "why"),
    [
        ({"target": "nothing"}, 404, "No target nothing."),
        ({"revision": "nothing"}, 404, "nothing"),
        ({"device": "b200"}, 422, "is not measured on b200; its recipe says cpu, h200"),
        ({"suite": "everything"}, 422, "There is no suite 'everything'"),
    ],
)
def test_what_cannot_be_measured_is_refused(ci: Api, wanted: dict[str, str], status: int, why: str) -> None:
    refused = ci.post("/runs", {"target": "norms", "revision": "main", **wanted})
    assert refused.status_code == status
    assert why in refused.json()["detail"]


def test_a_range_is_queued_behind_everything_else(ci: Api) -> None:
    for queued in (4, 0):
        answer = ci.post("/targets/norms/backfill", {"base": "main~2", "head": "main"})
        assert answer.json() == {"queued": queued, "estimate_s": None}
    assert {one["priority"] for one in ci.get("/queue").json()["items"]} == {30}
    refused = ci.post("/targets/norms/backfill", {"base": "main", "head": "main~2"})
    assert refused.status_code == 422
    assert "put the older revision first" in refused.json()["detail"]


def test_a_commit_on_no_branch_waits_for_approval_of_exactly_this_commit(ci: Api, norms: Repository) -> None:
    norms.git("checkout", "--quiet", "--detach")
    stranger = norms.commit("faster, I promise", {"norms.py": "# !"})
    norms.git("update-ref", "refs/pull/7/head", stranger)
    norms.git("checkout", "--quiet", "main")
    held = ci.post("/runs", {"target": "norms", "revision": stranger}).json()["items"]
    assert [one["state"] for one in held] == ["held", "held"]
    assert ci.post(f"/runs/{held[0]['id']}/retry").status_code == 409

    approved = ci.post(f"/runs/{held[0]['id']}/approve").json()["items"]
    assert [(one["id"], one["state"]) for one in approved] == [(one["id"], "queued") for one in held]
    refused = ci.post(f"/runs/{held[0]['id']}/approve")
    assert (refused.status_code, "only a held run can be approved" in refused.json()["detail"]) == (409, True)


def test_a_cancelled_run_can_be_retried(state: Path) -> None:
    run_id = run_in(RunState.QUEUED)
    ci = Api().with_key("run", name="CI")
    cancelled = ci.post(f"/runs/{run_id}/cancel").json()
    assert (cancelled["state"], cancelled["reason"]) == ("cancelled", "cancelled by CI")
    assert ci.post(f"/runs/{run_id}/cancel").status_code == 200
    retried = ci.post(f"/runs/{run_id}/retry").json()
    assert (retried["state"], retried["reason"], retried["finished_at"]) == ("queued", None, None)
    with transaction() as session:
        assert queue.next_run(session, "cpu", "box", 60.0) is not None
    with reading() as session:
        actions = [(row.action, row.object) for row in audit.listed(session, action="run").items]
    assert actions == [("run.retry", f"run {run_id}"), ("run.cancel", f"run {run_id}")]


@pytest.mark.parametrize(
    ("was", "purpose", "why"),
    [
        (RunState.DONE, Purpose.WATCH, "was measured: start another run of its revision, with `again`"),
        (RunState.QUEUED, Purpose.WATCH, "only a run that ended without a result can be retried"),
        (RunState.FAILED, Purpose.BISECTION, "start another bisection"),
    ],
)
def test_a_run_that_cannot_be_retried_says_why(state: Path, was: RunState, purpose: Purpose, why: str) -> None:
    run_id = run_in(was, purpose=purpose)
    refused = Api().with_key("run").post(f"/runs/{run_id}/retry")
    assert refused.status_code == 409
    assert why in refused.json()["detail"]


@pytest.mark.parametrize(("attempt", "then"), [(0, RunState.HELD), (1, RunState.QUEUED)])
def test_a_retry_is_no_approval(state: Path, attempt: int, then: RunState) -> None:
    """A stranger's run that has begun was approved before."""
    run_id = run_in(RunState.CANCELLED, trusted=False, attempt=attempt)
    Api().with_key("run").post(f"/runs/{run_id}/retry")
    with reading() as session:
        assert session.get_one(Run, run_id).state is then


def test_a_run_that_has_ended_is_not_cancelled(state: Path) -> None:
    run_id = run_in(RunState.DONE)
    refused = Api().with_key("run").post(f"/runs/{run_id}/cancel")
    assert (refused.status_code, refused.json()["detail"]) == (409, f"Run {run_id} has ended already: it is done.")


def test_the_scope_must_be_of_the_runs_target(state: Path) -> None:
    run_id = run_in(RunState.QUEUED)
    world.target(name="other")
    for verb in ("cancel", "retry", "approve"):
        refused = Api().with_key("run:other").post(f"/runs/{run_id}/{verb}")
        assert refused.status_code == 403
        assert "does not have the scope run:norms" in refused.json()["detail"]
