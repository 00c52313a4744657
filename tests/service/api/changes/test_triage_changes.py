"""Regressions, bisections, quarantines, workers and policies are handled from elsewhere."""

from pathlib import Path

import pytest

from service.db.engine import reading, transaction
from service.ledger import audit
from service.ledger.runs import queue
from service.ledger.targets import target_named
from tests import world
from tests.dashboards import seed_deciding
from tests.fakes.api import Api


@pytest.fixture
def house(state: Path) -> Api:
    """A few days of watching; the sender may do everything there."""
    with transaction() as session:
        seed_deciding.seed(session)
    return Api().with_key("admin", name="ada")


def actions() -> list[str]:
    with reading() as session:
        return [row.action for row in audit.listed(session).items if row.action != "key.create"]


def test_a_regression_is_accepted_and_opened_again(house: Api) -> None:
    [number] = [one["id"] for one in house.get("/regressions?state=blamed").json()["items"]]
    accepted = house.post(
        f"/regressions/{number}/acknowledge", {"reason": "exact sums", "until": "2199-01-01T00:00:00Z"}
    )
    assert (accepted.json()["state"], accepted.json()["reason"]) == ("acknowledged", "exact sums")
    assert accepted.json()["acknowledged_until"] == "2199-01-01T00:00:00Z"
    house.post(f"/regressions/{number}/assign", {"assignee": "bob"})
    house.post(f"/regressions/{number}/due", {"due_at": "2198-01-01T00:00:00Z"})
    house.post(f"/regressions/{number}/note", {"text": "seen"})
    opened = house.post(f"/regressions/{number}/reopen").json()
    assert (opened["state"], opened["assignee"]) == ("open", "bob")
    assert [(one["actor"], one["action"]) for one in opened["events"][-2:]] == [("ada", "note"), ("ada", "reopened")]
    assert actions() == [f"regression.{verb}" for verb in ("reopen", "note", "due", "assign", "acknowledge")]


def test_what_the_state_does_not_allow_is_refused(house: Api) -> None:
    [number] = [one["id"] for one in house.get("/regressions?state=blamed").json()["items"]]
    assert house.post(f"/regressions/{number}/reopen").status_code == 409
    assert house.post(f"/regressions/{number}/dismiss", {"reason": ""}).status_code == 422
    past = house.post(f"/regressions/{number}/acknowledge", {"reason": "ok", "until": "2001-01-01T00:00:00Z"})
    assert "cannot end in the past" in past.json()["detail"]
    assert actions() == []


def test_a_calibration_is_of_a_mainline_revision_and_for_a_known_worker(house: Api) -> None:
    started = house.post("/targets/norms/calibrate", {"device": "h200"})
    assert (started.status_code, started.json()["purpose"]) == (201, "calibration")
    assert actions() == ["calibration.start"]
    revisions = house.get("/targets/norms/revisions").json()["items"]
    mainline = next(one["sha"] for one in revisions if one["ordinal"] is not None)
    named = house.post("/targets/norms/calibrate", {"device": "h200", "revision": mainline[:12]})
    assert named.json()["revision"] == mainline
    with transaction() as session:
        target = target_named(session, "norms")
        world.commit(session, target.id, "f0" * 20)
    for wrong, why in {
        "revision": ("f0" * 20, "f0f0f0f0f0 is not on the mainline of norms."),
        "worker": ("box", "There is no worker box for h200; known: "),
        "suite": ("large", "There is no suite 'large'; known: "),
        "device": ("mi300", "has no device mi300; it has "),
    }.items():
        refused = house.post("/targets/norms/calibrate", {"device": "h200", wrong: why[0]})
        assert (refused.status_code, why[1] in refused.json()["detail"]) == (422, True), refused.text


def test_an_incident_is_dismissed_as_a_whole(house: Api) -> None:
    [incident] = house.get("/targets/norms/incidents").json()["items"]
    done = house.post(f"/incidents/{incident['id']}/dismiss", {"reason": "intended"}).json()
    assert "dismissed" in {one["state"] for one in done["regressions"]}
    assert done["closed_at"] is not None
    assert house.get(f"/incidents/{incident['id']}").json() == done
    assert actions() == ["incident.dismiss"]


def test_a_case_is_quarantined_and_released(house: Api) -> None:
    [known] = house.get("/quarantines").json()["items"]
    wanted = {"case": known["case"], "device": known["device"], "reason": "the fan was replaced"}
    assert house.post("/targets/norms/release", wanted).json()["items"] == []
    assert house.post("/targets/norms/release", wanted).status_code == 404
    [again] = house.post("/targets/norms/quarantine", {**wanted, "provider": known["provider"]}).json()["items"]
    assert again["quarantined_by"] == "ada"
    assert actions() == ["quarantine.add", "quarantine.release"]


def test_a_paused_worker_takes_no_run_until_it_resumes(house: Api) -> None:
    target = world.target(name="other")
    with transaction() as session:
        world.run(session, world.commit(session, target.id, 1))
        queue.register(session, "gpu-box/cpu-0", "cpu", "", None, None)
    for verb in ("pause", "drain"):
        paused = house.post(f"/workers/gpu-box/cpu-0/{verb}").json()
        assert (paused["paused_by"], paused["paused_at"] is None) == ("ada", False)
    with transaction() as session:
        queue.register(session, "gpu-box/cpu-0", "cpu", "", None, None)
        assert queue.next_run(session, "cpu", "gpu-box/cpu-0", 60.0) is None
    assert house.post("/workers/gpu-box/cpu-0/resume").json()["paused_at"] is None
    with transaction() as session:
        assert queue.next_run(session, "cpu", "gpu-box/cpu-0", 60.0) is not None
    assert actions() == ["worker.resume", "worker.pause"]
    assert house.post("/workers/nobody/pause").status_code == 404


def test_a_bisection_that_has_ended_is_not_stopped(house: Api) -> None:
    [found] = house.get("/bisections").json()["items"]
    refused = house.post(f"/bisections/{found['id']}/stop")
    assert (refused.status_code, "has ended already" in refused.json()["detail"]) == (409, True)


def test_a_policy_is_replayed_and_read(house: Api) -> None:
    replayed = house.post("/targets/norms/replay", {"policy": "smallest_change = 0.5"})
    assert replayed.status_code == 200
    assert replayed.json()["total"]["new"] == 0
    wrong = house.post("/targets/norms/replay", {"policy": "smalest_change = 0.5"})
    assert (wrong.status_code, "smalest_change" in wrong.json()["detail"]) == (422, True)
    [version, *_] = house.get("/policies").json()["items"]
    assert Api(app=house.app).get("/policies").status_code == 401
    assert house.get(f"/policies/{'0' * 64}").status_code == 404
    assert len(version["digest"]) > 0
