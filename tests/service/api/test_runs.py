"""Lists of runs, and a run in parts: measurements, verdicts and samples."""

from datetime import datetime
from typing import Any

import pytest

from kernelwatch.documents.runs import MeasurementItem, RunDocument, VerdictItem
from tests.dashboards.asking import Get
from tests.dashboards.seed import CASES, Seeded

RUNS = "/api/v1/runs"


def ids(get: Get, **params: Any) -> list[int]:
    answer = get(RUNS, params=params | {"limit": 200})
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["items"]]


def test_runs_of_all_targets_are_filtered(get: Get, seeded: Seeded) -> None:
    runs = seeded.runs
    assert ids(get) == sorted(runs.values(), reverse=True)
    assert ids(get, target="norms") == ids(get)
    assert ids(get, target="liger") == []
    assert ids(get, device="cpu") == [runs["queued"], runs["cpu"]]
    assert ids(get, state=["failed", "skipped"]) == [runs["broken"], runs["docs"]]
    assert ids(get, purpose="bisection") == []
    assert ids(get, pull=7) == [runs["pull"]]
    sha = get(f"{RUNS}/{runs['slow']}").json()["revision"]
    for named in (sha, sha[:8], sha[:8].upper()):
        assert ids(get, revision=named) == ids(get, revision=named, target="norms") == [runs["slow"]]
    since = get(f"{RUNS}/{runs['cpu']}").json()["created_at"]
    assert ids(get, since=since) == sorted((runs[name] for name in ("cpu", "running", "queued")), reverse=True)
    moved = datetime.fromisoformat(since).astimezone().isoformat()
    assert ids(get, since=moved) == ids(get, since=since)


@pytest.mark.parametrize(
    "since", ["yesterday", "2026-11-21", "1790000000", "2026-11-21T03:02:00", "2026-13-21T03:02:00Z"]
)
def test_a_time_without_its_zone_is_refused(get: Get, seeded: Seeded, since: str) -> None:
    answer = get(RUNS, params={"since": since})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("since:")


def test_a_leap_second_is_a_time(get: Get, seeded: Seeded) -> None:
    assert get(RUNS, params={"since": "2016-12-31T23:59:60Z"}).status_code == 200


def test_counts_come_with_a_list_only_on_request(get: Get, seeded: Seeded) -> None:
    compact = get(RUNS, params={"limit": 200}).json()["items"]
    assert {one["counts"] for one in compact} == {None}
    for path in (RUNS, "/api/v1/targets/norms/runs"):
        counted = {one["id"]: one for one in get(path, params={"limit": 200, "expand": "counts"}).json()["items"]}
        slow = counted[seeded.runs["slow"]]
        assert slow["counts"] == get(f"{RUNS}/{slow['id']}").json()["counts"]
        assert slow["behind_sota"] == 2
    assert get(RUNS, params={"expand": "everything"}).status_code == 422


def test_the_parts_of_a_run_are_those_of_its_document(get: Get, decided: Seeded) -> None:
    run = f"{RUNS}/{decided.runs['slow']}"
    whole = get(run).json()
    assert whole.keys() == RunDocument.model_fields.keys()
    for part, kind in (("measurements", MeasurementItem), ("verdicts", VerdictItem)):
        assert all(one.keys() == kind.model_fields.keys() for one in whole[part])
        assert get(f"{run}/{part}", params={"limit": 200}).json() == {"items": whole[part], "next": None}
        pages = get(f"{run}/{part}", params={"limit": 5}).json()
        following = get(f"{run}/{part}", params={"limit": 5, "cursor": pages["next"]}).json()
        assert [*pages["items"], *following["items"]] == whole[part][:10]


@pytest.mark.parametrize(
    ("asked", "cases"),
    [
        ({"op": "layernorm"}, CASES[4:]),
        ({"case": "*.bwd.*"}, CASES[2:4]),
        ({"case": "rmsnorm.?wd.4096x*"}, (CASES[0], CASES[2])),
        ({"case": CASES[3]}, CASES[3:4]),
        ({"case": "rmsnorm%"}, ()),
        ({"provider": "quack"}, ()),
        ({"metric": "kernel"}, CASES),
        ({"metric": "call"}, ()),
        ({"op": "rms"}, ()),
    ],
)
def test_parts_are_filtered_by_case(get: Get, seeded: Seeded, asked: dict[str, str], cases: tuple[str, ...]) -> None:
    run = f"{RUNS}/{seeded.runs['slow']}"
    verdicts = get(f"{run}/verdicts", params=asked | {"baseline_kind": "parent"}).json()["items"]
    assert tuple(one["case"] for one in verdicts) == cases
    heads = get(f"{run}/measurements", params=asked | {"role": "head"}).json()["items"]
    assert tuple(one["case"] for one in heads) == cases


def test_verdicts_are_filtered_by_outcome(get: Get, seeded: Seeded) -> None:
    run = f"{RUNS}/{seeded.runs['slow']}/verdicts"
    assert {one["case"] for one in get(run, params={"outcome": "regression"}).json()["items"]} == {CASES[1], CASES[3]}
    both = get(run, params={"outcome": ["regression", "inconclusive"]}).json()["items"]
    assert len(both) == 3
    wrong = get(f"{RUNS}/{seeded.runs['wrong']}/measurements", params={"state": "invalid"}).json()["items"]
    assert [one["case"] for one in wrong] == list(CASES[:2])


def test_the_samples_of_a_contender(get: Get, seeded: Seeded) -> None:
    asked = {"contender": "head:norms", "case": CASES[1]}
    path = f"{RUNS}/{seeded.runs['slow']}/samples"
    answer = get(path, params=asked)
    found = answer.json()
    assert [len(trial) for trial in found["screening"]] == [20, 20, 20]
    assert (found["confirmation"], found["unit"], found["metric"], found["role"]) == ([], "us", "kernel", "head")
    assert all(abs(us / found["median"] - 1) < 0.011 for trial in found["screening"] for us in trial)
    assert get(path, params=asked, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    wrong = get(f"{RUNS}/{seeded.runs['wrong']}/samples", params={"contender": "head:norms", "case": CASES[0]}).json()
    assert (wrong["state"], wrong["screening"], wrong["median"]) == ("invalid", [], None)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/999/measurements", 404, "No run 999."),
        ("/999/verdicts", 404, "No run 999."),
        ("/999/samples?contender=a&case=b", 404, "No run 999."),
        ("/{slow}/samples?contender=a&case=b", 404, "Its contenders are control:norms, head:norms, parent:norms and"),
        ("/{queued}/samples?contender=a&case=b", 404, "It measured nothing."),
        ("/{slow}/samples?contender=a", 422, "case"),
        ("/{slow}/verdicts?outcome=slow", 422, "outcome"),
        ("/{slow}/measurements?role=foe", 422, "role"),
        ("?revision=a%00b", 422, "NUL"),
    ],
)
def test_mistakes_are_explained(get: Get, seeded: Seeded, path: str, status: int, said: str) -> None:
    answer = get(RUNS + path.format(**seeded.runs))
    assert answer.status_code == status
    assert said in answer.json()["detail"]
