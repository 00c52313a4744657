"""The whole OpenAPI against the app: what it describes is what it does, with every kind of key.

Schemathesis generates the requests and checks the responses: status, media type, schema, refusal of invalid data,
acceptance of valid data, methods and keys.  The quick form has a fixed seed; the long one is marked `attack`.
"""

from pathlib import Path

import pytest

from service.app import create_app
from tests.attacks.conftest import Outcome
from tests.attacks.contracts.generated import Findings, send
from tests.attacks.contracts.populated import SCOPES, Populated, counts, populated
from tests.fakes.processes import served

EXAMPLES = 120  # of each operation, in the long form


def faults_of(found: Findings) -> str:
    """Every fault with the request that shows it."""
    texts = [f"{check}, {operation}, {title}\n{text}" for (check, operation, title), text in found.faults.items()]
    return "\n\n".join([*texts, *found.errors])


def check(found: Findings, world: Populated) -> None:
    assert faults_of(found) == ""
    assert found.server_errors == 0
    assert found.statuses[200] > 20, "requests reach what exists"
    assert counts()["targets"] >= 4, "and did not delete what later ones need"


@pytest.mark.parametrize(
    "key", [one if one == "admin" else pytest.param(one, marks=pytest.mark.long) for one in SCOPES]
)
def test_responses_are_what_the_description_promises(tmp_path: Path, key: str) -> None:
    with populated(tmp_path) as world:
        found = send(create_app(), world, world.keys[key], examples=2, phases=["examples", "fuzzing"])
        check(found, world)


@pytest.mark.attack
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("key", SCOPES)
def test_tens_of_thousands_of_generated_requests_find_no_fault(tmp_path: Path, outcome: Outcome, key: str) -> None:
    with populated(tmp_path) as world:
        found = send(create_app(), world, world.keys[key], examples=EXAMPLES)
        record(outcome, f"generated requests, key: {key}", found)


@pytest.mark.attack
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("key", ["admin", "one target"])
def test_generated_requests_find_no_fault_with_postgresql(
    tmp_path: Path, outcome: Outcome, postgres: str, key: str
) -> None:
    """It refuses numbers and characters that SQLite takes."""
    with populated(tmp_path, postgres) as world:
        found = send(create_app(), world, world.keys[key], examples=12)
        record(outcome, f"generated requests with PostgreSQL, key: {key}", found)


@pytest.mark.attack
@pytest.mark.timeout(1800)
def test_generated_requests_over_http_find_no_fault(tmp_path: Path, outcome: Outcome) -> None:
    with populated(tmp_path) as world, served(create_app()) as address:
        found = send(address, world, world.keys["admin"], examples=2, phases=["coverage"])
        record(outcome, "generated requests over HTTP, key: admin", found)


def record(outcome: Outcome, attack: str, found: Findings) -> None:
    faults = faults_of(found)
    seen = f"{found.requests:,} requests, {found.classes}, {len(found.faults)} faults\n{faults[:4000]}".strip()
    outcome("API", attack, held=not faults and not found.server_errors, seen=seen, goal="no fault")
