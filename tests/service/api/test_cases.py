"""Revisions, cases, histories and code of a target."""

from typing import Any

import pytest

from service.db.engine import transaction
from service.db.models import Stack
from service.domain.codefacts.findings import Finding, Findings
from service.domain.states import FactsState, RunState
from tests import world
from tests.dashboards.asking import Get, asking
from tests.dashboards.seed import CASES, Seeded

NORMS = "/api/v1/targets/norms"
ROWS = "rmsnorm.fwd.4096x1024.bf16"


def sha_of(get: Get, seeded: Seeded, name: str) -> str:
    sha: str = get(f"/api/v1/runs/{seeded.runs[name]}").json()["revision"]
    return sha


def test_a_revision_has_its_runs(get: Get, seeded: Seeded) -> None:
    sha = sha_of(get, seeded, "fast")
    answer = get(f"{NORMS}/revisions/{sha[:7].upper()}")
    found = answer.json()
    assert (found["sha"], found["author"], found["checks"]) == (sha, "Ada Example", [])
    assert [run["id"] for run in found["runs"]] == [seeded.runs["cpu"], seeded.runs["fast"]]
    assert found["runs"][1]["counts"]["improvement"] == 3
    assert get(f"{NORMS}/revisions/{sha}", headers={"If-None-Match": answer.headers["etag"]}).status_code == 304


def test_revisions_come_with_their_runs_on_request(get: Get, seeded: Seeded) -> None:
    assert {one["runs"] is None for one in get(f"{NORMS}/revisions").json()["items"]} == {True}
    expanded = get(f"{NORMS}/revisions", params={"expand": "runs"}).json()["items"]
    assert sum(len(one["runs"]) for one in expanded) == len(seeded.runs)
    assert all(run["revision"] == one["sha"] for one in expanded for run in one["runs"])


@pytest.mark.parametrize("name", ["ffff", "f", "f" * 40, "%25%25%25%25"])
def test_an_unknown_revision_is_not_found(get: Get, seeded: Seeded, name: str) -> None:
    assert get(f"{NORMS}/revisions/{name}").status_code == 404


def test_targets_come_with_counts_on_request(get: Get, seeded: Seeded) -> None:
    assert [one["open_regressions"] for one in get("/api/v1/targets").json()["items"]] == [None, None]
    liger, norms = get("/api/v1/targets", params={"expand": "counts"}).json()["items"]
    whole = get(NORMS).json()
    assert (norms["open_regressions"], norms["behind_sota"]) == (whole["open_regressions"], whole["behind_sota"])
    assert (norms["open_regressions"], liger["open_regressions"]) == (1, 0)


def test_regressions_come_with_their_history_on_request(get: Get, decided: Seeded) -> None:
    for path in ("/api/v1/regressions", f"{NORMS}/regressions"):
        assert {one["events"] is None for one in get(path).json()["items"]} == {True}
        for one in get(path, params={"expand": "events"}).json()["items"]:
            assert one["events"] == get(f"/api/v1/regressions/{one['id']}").json()["events"]


def test_single_documents_are_not_sent_again(get: Get, decided: Seeded) -> None:
    [search] = get("/api/v1/bisections").json()["items"]
    [first, *_] = get("/api/v1/regressions").json()["items"]
    series = f"/series?case={CASES[1]}&provider=norms&device=h200"
    for path in (
        f"/bisections/{search['id']}",
        f"/regressions/{first['id']}",
        "/targets/norms",
        f"/targets/norms{series}",
    ):
        answer = get(f"/api/v1{path}")
        again = get(f"/api/v1{path}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_cases_and_series_that_are_measured(get: Get, seeded: Seeded) -> None:
    cases = get(f"{NORMS}/cases").json()["items"]
    assert [one["case"] for one in cases] == sorted(CASES)
    first = next(one for one in cases if one["case"] == CASES[0])
    assert first == {
        "case": CASES[0],
        "op": "rmsnorm",
        "direction": "fwd",
        "rows": 4096,
        "columns": 1024,
        "dtype": "bf16",
        "weight_dtype": "fp32",
        "devices": ["cpu", "h200"],
        "providers": ["norms"],
        "metrics": ["kernel"],
    }
    keys = get(f"{NORMS}/series/keys", params={"device": "h200"}).json()["items"]
    assert [one["case"] for one in keys] == sorted(CASES)
    assert {one["last_run_id"] for one in keys} == {seeded.runs["wrong"]}
    assert [one["case"] for one in get(f"{NORMS}/cases", params={"op": "layernorm"}).json()["items"]] == list(CASES[4:])
    later = get(f"/api/v1/runs/{seeded.runs['wrong']}").json()["created_at"]
    assert {one["device"] for one in get(f"{NORMS}/series/keys", params={"since": later}).json()["items"]} == {
        "h200",
        "cpu",
    }


def test_a_history_may_be_limited(get: Get, seeded: Seeded) -> None:
    asked = {"case": CASES[1], "provider": "norms", "device": "h200"}
    points = get(f"{NORMS}/series", params=asked).json()["points"]
    assert get(f"{NORMS}/series", params={**asked, "limit": 2}).json()["points"] == points[-2:]
    since = {**asked, "since": points[3]["committed_at"]}
    assert get(f"{NORMS}/series", params=since).json()["points"] == points[3:]
    assert get(f"{NORMS}/series", params={**asked, "limit": 0}).status_code == 422


# -- code


def facts(code: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "kernels": 1, "registers": 40, "repeatable": True} | more


@pytest.fixture
def compiled(either_nightly: str) -> Get:
    """c0, c1 and c2: c1 changes one of two cases, c2 is measured on another stack and never with c0."""
    target = world.target()
    stacks = [Stack(digest=str(n) * 64, versions={"torch": f"2.1{n}.0"}) for n in range(2)]
    found = Findings(
        "the same machine code at 1 of 2 cases", "c0", changes=(Finding("registers 40 → 64", ROWS, 1, True),)
    )
    with transaction() as session:
        session.add_all(stacks)
        session.flush()
        commits = [world.commit(session, target.id, n) for n in range(3)]
        for commit, code, stack in zip(commits, ("a", "b", "c"), (0, 0, 1), strict=True):
            run = world.run(session, commit, state=RunState.DONE, stack_id=stacks[stack].id)
            world.measured(session, run, ROWS, 1.0, facts=facts(code, registers=64 if code != "a" else 40))
            world.measured(session, run, f"{ROWS}.call", 1.0, facts=facts("same", repeatable=code != "b"))
            if commit.parent == "c0":
                world.measured(session, run, ROWS, 1.0, role="parent", facts=facts("a", tables=[{"kernel": "k"}]))
                world.judged(session, run, ROWS, baseline="c0")
        world.facts_check(session, commits[1], "c0", state=FactsState.DONE, findings=found.as_json())
        world.facts_check(session, commits[2])
    return asking()


def test_checks_of_code_are_listed(compiled: Get) -> None:
    queued, done = compiled(f"{NORMS}/facts").json()["items"]
    assert (queued["revision"], queued["base"], queued["findings"]) == ("c2", None, None)
    assert (done["revision"], done["base"], done["state"]) == ("c1", "c0", "done")
    assert done["findings"]["changes"] == [{"text": "registers 40 → 64", "where": ROWS, "cases": 1, "worse": True}]
    assert compiled(f"{NORMS}/facts", params={"state": "queued"}).json()["items"] == [queued]
    assert compiled(f"{NORMS}/facts", params={"revision": "c1"}).json()["items"] == [done]
    assert compiled(f"{NORMS}/revisions/c1").json()["checks"] == [done]


def test_a_diff_compares_the_compiled_code_alone(compiled: Get) -> None:
    answer = compiled(f"{NORMS}/facts/diff?base=c0&head=c1")
    diff = answer.json()
    assert diff["check"]["findings"]["headline"] == "the same machine code at 1 of 2 cases"
    assert (diff["counts"], diff["stack_changes"]) == ({"changed": 1, "same": 1}, {})
    kernel, call = diff["cases"]
    assert kernel["differences"] == ["code changed", "registers 40 → 64"]
    assert kernel["base"]["run_id"] == kernel["head"]["run_id"], "the head's session measured its parent too"
    assert "tables" not in kernel["base"]["facts"]
    assert (call["same_code"], call["repeatability"]) == (True, "lost")
    assert call["base"]["run_id"] != call["head"]["run_id"]
    tables = compiled(f"{NORMS}/facts/diff?base=c0&head=c1&tables=true").json()["cases"]
    assert tables[0]["base"]["facts"]["tables"] == [{"kernel": "k"}]
    again = compiled(f"{NORMS}/facts/diff?base=c0&head=c1", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


def test_code_of_other_stacks_is_labelled(compiled: Get) -> None:
    diff = compiled(f"{NORMS}/facts/diff?base=c0&head=c2").json()
    assert diff["check"] is None
    assert diff["stack_changes"] == {"cpu": ["torch 2.10.0 → 2.11.0"]}
    only = compiled(f"{NORMS}/facts/diff?base=c0&head=c2&changed=true").json()["cases"]
    assert [one["case"] for one in only] == [ROWS]
    assert compiled(f"{NORMS}/facts/diff?base=c0&head=c2&metric=call").json()["counts"] == {"same": 1}
    assert compiled(f"{NORMS}/facts/diff?base=c0&head=c9").status_code == 404
