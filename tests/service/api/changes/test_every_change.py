"""Every endpoint that changes something asks who is there, what they may do, and hides what they may not know of."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from service.api.access import WritingRoute
from service.app import create_app
from service.db.engine import transaction
from service.db.models import Subscription
from service.domain.access import Scope
from service.domain.states import ActorKind, FoundBy, GateAction, RunState
from service.ledger.regressions import transitions
from service.ledger.regressions.transitions import Slower
from tests import world
from tests.fakes.api import Api, app_openapi

CASE = "rmsnorm.fwd.4x4.fp32"
# A body with which the sender would succeed, but for the target that they may not know of.
BODIES: Mapping[str, dict[str, Any]] = {
    "POST /targets/{name}/backfill": {"base": "c0", "head": "c1"},
    "POST /runs": {"target": "secret", "revision": "c1"},
    "POST /bisections": {"target": "secret", "good": "c0", "bad": "c1"},
    "POST /targets/{name}/calibrate": {"device": "cpu"},
    "POST /targets/{name}/quarantine": {"case": CASE, "device": "cpu", "reason": "noisy"},
    "POST /targets/{name}/release": {"case": CASE, "device": "cpu", "reason": "quiet"},
    "POST /targets/{name}/replay": {"policy": ""},
    "POST /subscriptions": {"channel": "hook", "target": "secret"},
    **{
        f"POST /{noun}s/{{{noun}_id}}/{verb}": body
        for noun in ("regression", "incident")
        for verb, body in {
            "acknowledge": {"reason": "exact sums"},
            "dismiss": {"reason": "noise"},
            "reopen": {},
            "assign": {"assignee": "bob"},
            "note": {"text": "seen"},
            "due": {"due_at": None},
        }.items()
    },
}
OF_NO_TARGET = (Scope.ADMIN, Scope.WORKER, Scope.READ)  # the last is for what belongs to the sender


def routes(router: Any) -> Iterator[tuple[str, Any]]:
    """Every route of an app, by method and path below /api/v1."""
    for one in router.routes:
        inner = getattr(one, "original_router", None)
        if inner is not None:
            yield from routes(inner)
        else:
            path = one.path.replace(":path}", "}")
            yield from ((f"{method} {path}", one) for method in one.methods)


def changes() -> dict[str, Any]:
    """The operations of the API that change something, and their descriptions."""
    return {
        f"{method.upper()} {path.removeprefix('/api/v1')}": operation
        for path, found in app_openapi()["paths"].items()
        if path.startswith("/api/v1/")
        for method, operation in found.items()
        if method != "get"
    }


CHANGES = changes()
SCOPES = {
    name: scope for name, route in routes(create_app()) if (scope := getattr(route.endpoint, "kernelwatch_scope", None))
}
OF_TARGETS = [name for name in CHANGES if SCOPES.get(name) not in OF_NO_TARGET]


@pytest.fixture
def secret(state: Path) -> dict[str, str]:
    """A private target with one of everything; returns what its addresses hold."""
    world.target(name="norms")
    target = world.target(name="secret", private=True)
    with transaction() as session:
        line = [world.commit(session, target.id, place) for place in (0, 1)]
        run = world.run(session, line[1], state=RunState.HELD, trusted=False)
        found = transitions.open_one(session, run, Slower("norms", CASE, 1.2), found_by=FoundBy.PAIR, good="c0")
        search = world.bisection(session, line, CASE)
        told = Subscription(
            channel="hook", target_id=target.id, severity=GateAction.WARN, created_at=0.0, created_by="ada"
        )
        told.owner_kind = ActorKind.LOCAL
        session.add(told)
        session.flush()
        ids = {
            "run": run.id,
            "subscription": told.id,
            "regression": found.id,
            "incident": found.incident_id,
            "bisection": search.id,
        }
        return {"name": "secret"} | {f"{noun}_id": str(one) for noun, one in ids.items()}


def path(operation: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], "1"), operation.partition(" ")[2])


def test_each_is_a_route_that_needs_a_scope() -> None:
    # A page may have the path of an operation; it is not in the description.
    found = {name: one for name, one in routes(create_app()) if name in CHANGES and one.include_in_schema}
    assert found.keys() == CHANGES.keys()
    assert {name for name, route in found.items() if not isinstance(route, WritingRoute)} == set()
    assert {name for name in found if SCOPES.get(name) is None} == set()


@pytest.mark.parametrize("operation", CHANGES)
def test_each_says_which_errors_it_has_and_that_it_needs_a_key(operation: str) -> None:
    described = CHANGES[operation]
    assert described["security"] == [{"key": []}]
    errors = {status for status in described["responses"] if status.startswith(("4", "5"))}
    assert {"400", "401", "403", "404", "408", "409", "413", "422", "502", "503"} <= errors
    for status in errors:
        assert [*described["responses"][status]["content"]] == ["application/problem+json"]
    named = {one["name"] for one in described.get("parameters", ()) if one["in"] == "header"}
    secret = operation in ("POST /keys", "POST /keys/{which}/rotate")
    assert named == ({"Idempotency-Key"} if operation.startswith("POST") and not secret else set())


def test_each_refuses_strangers_and_readers_before_it_looks_at_anything(secret: dict[str, str]) -> None:
    api = Api()
    reader = api.with_key("read")
    for operation in CHANGES:
        method, address = operation.partition(" ")[0], path(operation, secret)
        refused = api.request(method, address, content=b"{")
        assert (refused.status_code, refused.json()["title"]) == (401, "Unauthorized"), operation
        if SCOPES[operation] is Scope.READ:
            continue
        forbidden = reader.request(method, address, content=b"{")
        assert forbidden.status_code == 403, operation
        assert f"does not have the scope {SCOPES[operation]}" in forbidden.json()["detail"], operation


def test_there_is_a_body_for_each() -> None:
    bodies = {name: CHANGES[name]["requestBody"]["content"] for name in OF_TARGETS if "requestBody" in CHANGES[name]}
    needed = {name for name, content in bodies.items() if "application/json" in content}
    assert needed == BODIES.keys()


def test_to_who_may_change_another_target_a_private_one_does_not_exist(secret: dict[str, str]) -> None:
    other = Api().with_key("run:norms", "triage:norms", "ingest:norms")
    nowhere = {**secret, "name": "nothing", **{key: "999" for key in secret if key.endswith("_id")}}
    for operation in OF_TARGETS:
        method, body = operation.partition(" ")[0], BODIES.get(operation)
        hidden = other.request(method, path(operation, secret), json=body)
        assert hidden.status_code == 404, operation
        missing = body and {**body, **({"target": "nothing"} if "target" in body else {})}
        absent = other.request(method, path(operation, nowhere), json=missing)
        assert _without_names(hidden.json()) == _without_names(absent.json()), operation


def _without_names(problem: dict[str, Any]) -> str:
    return re.sub(r"secret|nothing|\d+", "…", str(problem["detail"]))
