"""Where the OpenAPI and the service differed: one test for each cause that generated requests found."""

from pathlib import Path
from typing import Any

import pytest

from service.db.engine import transaction
from service.domain.states import FoundBy
from service.ledger.regressions import transitions
from service.ledger.regressions.transitions import Slower
from tests import world
from tests.fakes.api import Api, app_openapi
from tests.fakes.repository import Repository

CASE = "rmsnorm.fwd.4x4.fp32"
RECIPE = f"""
devices = ["cpu"]
suite = "one"
[base]
stack = "host"
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[suites]
one = ["{CASE}"]
"""


@pytest.fixture
def api(state: Path) -> Api:
    """An administrator, and regression 1 of target norms."""
    target = world.target(name="norms")
    with transaction() as session:
        run = world.run(session, world.commit(session, target.id, 1))
        transitions.open_one(session, run, Slower("norms", CASE, 1.2), found_by=FoundBy.PAIR, good="c0")
    return Api().with_key("admin")


def described(method: str, path: str) -> dict[str, Any]:
    operation: dict[str, Any] = app_openapi()["paths"][path][method]
    return operation


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/keys/1/rotate", {"overlap_s": False}, "overlap_s"),
        ("/keys/1/rotate", {"overlap_s": "60"}, "overlap_s"),
        ("/bisections", {"target": "norms", "good": "a", "bad": "b", "max_runs": "9"}, "max_runs"),
        ("/runs", {"target": "norms", "revision": "main", "again": "yes"}, "again"),
        ("/regressions/1/due", {"due_at": 0}, "due_at"),
        ("/regressions/1/due", {"due_at": "9999-12-31T23:59:59-12:00"}, "due_at"),
        ("/regressions/1/due", {"due_at": "2030-01-01"}, "due_at"),
        ("/regressions/1/due", {"due_at": "2030-01-01T00:00:00"}, "due_at"),
        ("/regressions/1/note", {"text": "  "}, "text"),
        ("/regressions/1/assign", {"assignee": " "}, "assignee"),
        ("/keys", {"name": "CI\x00", "scopes": ["read"]}, "name"),
        ("/keys", {"name": "CI", "scopes": [" read"]}, "' read' is no scope"),
    ],
)
def test_what_the_schema_refuses_is_refused(api: Api, path: str, body: dict[str, Any], field: str) -> None:
    refused = api.post(path, body)
    assert refused.status_code == 422, refused.text
    assert refused.json()["detail"].startswith(field)


def test_a_name_with_any_letters_may_be_assigned(api: Api) -> None:
    """`str.isprintable` refuses characters that are newer than the Unicode tables of this Python."""
    assigned = api.post("/regressions/1/assign", {"assignee": "Ð\U00059e36"})
    assert (assigned.status_code, assigned.json()["assignee"]) == (200, "Ð\U00059e36")


def test_names_of_adapters_are_described_without_a_way_round_them() -> None:
    adapters = app_openapi()["components"]["schemas"]["TargetRequest"]["properties"]["adapters"]
    assert adapters.keys() >= {"propertyNames", "additionalProperties", "maxProperties"}
    assert "patternProperties" not in adapters


def test_errors_have_the_media_type_that_is_described(api: Api) -> None:
    unsigned = api.request("POST", "/webhooks/github", below="")
    assert [*described("post", "/webhooks/github")["responses"]["401"]["content"]] == [unsigned.headers["content-type"]]


def test_a_body_that_is_no_json_lines_is_answered_as_described(api: Api) -> None:
    refused = api.post("/targets/norms/ingested")
    assert str(refused.status_code) in described("post", "/api/v1/targets/{name}/ingested")["responses"]
    assert refused.status_code == 415


def test_an_open_bisection_of_the_same_is_not_answered_as_new(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path / "norms")
    good, bad = (repository.commit(f"work {number}") for number in range(2))
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", f'["{tmp_path}"]')
    world.target(RECIPE, name="norms", location=str(repository.folder), branch="main")
    api = Api().with_key("run:norms")
    wanted = {"target": "norms", "good": good, "bad": bad}
    first, second = (api.post("/bisections", wanted) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200), first.text + second.text
    assert first.json()["id"] == second.json()["id"]
    assert {"200", "201"} <= described("post", "/api/v1/bisections")["responses"].keys()


def test_a_parameter_with_one_value_is_refused_when_it_has_two(api: Api) -> None:
    refused = api.get("/runs?revision=c1&revision=c2")
    assert (refused.status_code, refused.json()["detail"]) == (
        422,
        "The parameter revision is given more than once; give one value.",
    )
    assert api.get("/runs?state=queued&state=done").status_code == 200


def test_a_number_that_no_pull_request_has_is_refused(either: str) -> None:
    """PostgreSQL reports an error, which was answered with 503."""
    assert Api().get(f"/runs?pull={2**31}").status_code == 422
    assert Api().get(f"/runs?pull={2**31 - 1}").json()["items"] == []


def test_parameters_are_described_without_nul_characters(api: Api) -> None:
    assert api.get("/runs?device=%00").status_code == 422
    [device] = [one for one in described("get", "/api/v1/runs")["parameters"] if one["name"] == "device"]
    assert device["schema"]["anyOf"][0]["pattern"] == r"^[^\x00]*$"


@pytest.mark.parametrize("key", ["a\tb", "x" * 201, "\u00e9"])
def test_an_idempotency_key_is_what_the_description_allows(api: Api, key: str) -> None:
    noted = api.post("/regressions/1/note", {"text": "seen"}, headers={"Idempotency-Key": key.encode("latin-1")})
    assert (noted.status_code, "An Idempotency-Key has 1 to 200" in noted.json()["detail"]) == (422, True)
