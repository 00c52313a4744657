"""Targets are added, changed, paused and removed from elsewhere, and recipes are checked before they are used."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.db.engine import reading, transaction
from service.ledger import audit
from service.ledger.acting import as_actor
from service.ledger.intake import registry
from service.settings import settings
from tests import world
from tests.fakes.api import Api
from tests.fakes.repository import Repository

RECIPE = """
adapters = ["wrap.py"]
devices = ["cpu", "h200"]
suite = { default = "smoke" }
sota = { default = "eager" }
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[policy]
smallest_change = 0.05
"""
FILES = {"recipe": RECIPE, "adapters": {"wrap.py": "def rmsnorm(x, w): ..."}}


@pytest.fixture
def norms(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository with two commits."""
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", json.dumps([str(tmp_path)]))
    settings.cache_clear()
    repository = Repository(tmp_path / "norms")
    repository.commit("first", {"norms.py": ""})
    repository.commit("second", {"norms.py": "# quicker"})
    return repository


@pytest.fixture
def admin(norms: Repository) -> Api:
    return Api().with_key("admin", name="ada")


def audited(action: str) -> list[tuple[str, str | None, dict[str, Any]]]:
    """Who did it, to what, with what details; the newest first."""
    with reading() as session:
        return [(row.actor, row.target, row.details) for row in audit.listed(session, action=action).items]


def test_a_target_is_added_with_its_recipe_and_measured(admin: Api, norms: Repository) -> None:
    wanted = {"name": "norms", "location": str(norms.folder), **FILES, "backfill": 2}
    added = admin.post("/targets", wanted)
    assert added.status_code == 201
    assert added.json()["devices"] == ["cpu", "h200"]
    assert added.json()["queued"] == 4  # two revisions on two devices
    assert len(admin.get("/queue").json()["items"]) == 4
    [(who, target, details)] = audited("target.add")
    assert (who, target, details["location"]) == ("ada", "norms", str(norms.folder))

    again = admin.post("/targets", wanted)
    assert (again.status_code, again.json()["queued"]) == (200, 0)
    other = admin.post("/targets", {"name": "norms", "location": "/elsewhere", **FILES})
    assert other.status_code == 409
    assert "choose another name" in other.json()["detail"]


@pytest.mark.parametrize(
    ("wanted", "status", "why"),
    [
        ({"name": "Norms"}, 422, "cannot be a target's name"),
        ({"recipe": "devices = []"}, 422, "The recipe has mistakes"),
        ({"adapters": {}}, 422, "wrap.py"),
        ({"location": "/nowhere/norms"}, 403, "KERNELWATCH_ALLOWED_ROOTS"),
        ({"branch": "nothing"}, 404, "nothing"),
        ({"watch": True}, 422, "watch"),
        ({"name": "nul\0"}, 422, "name"),
    ],
)
def test_what_cannot_be_watched_is_refused(
    admin: Api, norms: Repository, wanted: dict[str, Any], status: int, why: str
) -> None:
    refused = admin.post("/targets", {"name": "norms", "location": str(norms.folder), **FILES, **wanted})
    assert (refused.status_code, refused.headers["content-type"]) == (status, "application/problem+json")
    assert why in refused.json()["detail"]
    assert admin.get("/targets").json()["items"] == []
    assert audited("target") == []


def test_a_target_added_as_private_is_never_public(admin: Api, norms: Repository) -> None:
    wanted = {"name": "secret", "location": str(norms.folder), **FILES}
    assert admin.post("/targets", {**wanted, "private": True}).json()["private"]
    assert admin.post("/targets", wanted).json()["private"]
    everybody = Api(app=admin.app)
    assert everybody.get("/targets/secret").status_code == 404
    assert not admin.request("PATCH", "/targets/secret", json={"private": False}).json()["private"]
    assert everybody.get("/targets/secret").status_code == 200
    assert audited("target.edit")[0] == ("ada", "secret", {"private": False})


def test_a_change_says_what_it_changes(admin: Api, norms: Repository) -> None:
    admin.post("/targets", {"name": "norms", "location": str(norms.folder), **FILES})
    changed = admin.request("PATCH", "/targets/norms", json={"forge": "quack/norms", "trusted": True})
    assert (changed.json()["forge"], changed.json()["trusted"]) == ("quack/norms", True)
    assert audited("target.edit")[0][2] == {"forge": "quack/norms", "trusted": True}

    allowed = admin.request("PATCH", "/targets/norms", json={"allow_unsandboxed": True})
    assert allowed.json()["allow_unsandboxed"]
    renamed = admin.request("PATCH", "/targets/norms", json={"name": "kernels", "forge": ""})
    assert (renamed.json()["name"], renamed.json()["forge"]) == ("kernels", None)
    assert admin.get("/targets/norms").status_code == 404
    assert audited("target.rename") == [("ada", "norms", {"name": "kernels"})]


@pytest.mark.parametrize(
    ("change", "status", "why"),
    [
        ({}, 422, "Nothing to change"),
        ({"recipe": RECIPE, "adapters": {}}, 422, "wrap.py"),
        ({"adapters": {"wrap.py": ""}}, 422, "Adapters need a recipe"),
        ({"allow_unsandboxed": True}, 422, "not trusted"),
        ({"name": "Not this"}, 422, "cannot be a target's name"),
        ({"name": "taken"}, 409, "There is a target taken already"),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    admin: Api, norms: Repository, change: dict[str, Any], status: int, why: str
) -> None:
    world.target(name="taken")
    admin.post("/targets", {"name": "norms", "location": str(norms.folder), **FILES})
    refused = admin.request("PATCH", "/targets/norms", json=change)
    assert refused.status_code == status
    assert why in refused.json()["detail"]
    assert audited("target.edit") == []


def test_a_target_is_paused_and_resumed(admin: Api) -> None:
    world.target(name="norms")
    assert admin.post("/targets/norms/pause").json()["paused_at"] is not None
    assert admin.post("/targets/norms/pause").status_code == 409
    assert admin.post("/targets/norms/resume").json()["paused_at"] is None
    assert [one[:2] for one in audited("target")] == [("ada", "norms")] * 2


def test_a_target_is_counted_and_then_removed(admin: Api) -> None:
    norms = world.target(name="norms")
    with transaction() as session:
        world.measured(session, world.run(session, world.commit(session, norms.id, 1)), "rmsnorm.fwd.4x4.fp32", 1.0)
    numbers = {"revisions": 1, "runs": 1, "measurements": 1, "regressions": 0}
    assert admin.request("DELETE", "/targets/norms", params={"dry_run": True}).json() == numbers
    assert admin.request("DELETE", "/targets/norms").json() == numbers
    assert admin.request("DELETE", "/targets/norms").status_code == 404
    assert audited("target.remove") == [("ada", "norms", {})]


def test_a_recipe_is_checked_without_being_used(admin: Api) -> None:
    plan = admin.post("/recipes/check", FILES).json()
    assert [one["device"] for one in plan["devices"]] == ["cpu", "h200"]
    on_cpu = plan["devices"][0]
    assert (on_cpu["suite"], on_cpu["sota"], on_cpu["policy"]["smallest_change"]) == ("smoke", "eager", 0.05)
    [provider] = on_cpu["providers"]
    assert provider["calls"] == {"rmsnorm.fwd": "norms:rmsnorm"}
    assert 0 < provider["cases"] == len(on_cpu["cases"]) - len(on_cpu["uncalled"])
    assert admin.get("/targets").json()["items"] == []


def test_each_mistake_of_a_recipe_is_named_with_its_line(admin: Api) -> None:
    wrong = RECIPE.replace("smallest_change", "smalest_change")
    refused = admin.post("/recipes/check", {"recipe": wrong})
    assert refused.status_code == 422
    assert "line 9" in refused.json()["detail"]
    assert "smalest_change" in refused.json()["detail"]


def test_a_command_is_recorded_as_the_person_who_gives_it(norms: Repository) -> None:
    from service.domain.access import local

    with as_actor(local("bob")):
        registry.add("norms", location=str(norms.folder), recipe=(RECIPE, FILES["adapters"]), private=True)  # type: ignore[arg-type]
        registry.pause("norms")
    assert [who for who, *_ in audited("target")] == ["bob", "bob"]
    assert Api().get("/targets").json()["items"] == []
