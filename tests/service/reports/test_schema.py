"""One wire format: the command line and the API give the same documents."""

import json
from math import inf
from typing import Any

import pytest

from service.db.engine import transaction
from service.db.models import VerdictRow
from service.domain.states import OPEN_REGRESSIONS
from service.ledger.intake import deliveries
from tests.dashboards.asking import Get
from tests.dashboards.seed import Seeded
from tests.shell import attempt

OPEN = "&".join(f"state={one}" for one in OPEN_REGRESSIONS)


def printed(command: str) -> Any:
    """What a command prints as JSON, whatever its exit code."""
    return json.loads(attempt(*command.split(), "--format", "json").stdout)


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("report {slow}", "runs/{slow}"),
        ("report {slow} --tables", "runs/{slow}?tables=true"),
        ("report {wrong}", "runs/{wrong}"),
        ("report {broken}", "runs/{broken}"),
        ("report {queued}", "runs/{queued}"),
        ("target list", "targets"),
        ("regression list --all", "regressions"),
        ("regression list norms", f"targets/norms/regressions?{OPEN}"),
        ("regression list --all --limit 2", "regressions?limit=2"),
        ("regression show 1", "regressions/1"),
        ("bisection list", "bisections"),
        ("bisection list norms --limit 1", "bisections?target=norms&limit=1"),
        ("bisection show 1", "bisections/1"),
        ("calibration show", "calibration"),
        ("calibration show norms --device h200", "calibration?target=norms&device=h200"),
    ],
)
def test_a_command_prints_the_document_of_the_api(decided: Seeded, get: Get, command: str, path: str) -> None:
    document = get(f"/api/v1/{path.format(**decided.runs)}").json()
    assert printed(command.format(**decided.runs)) == document
    assert document


def test_several_runs_are_a_list_of_the_same_documents(
    decided: Seeded, get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [decided.runs["steady"], decided.runs["slow"]]
    monkeypatch.setattr(deliveries, "request_runs", lambda *_, **__: deliveries.RequestedRuns(tuple(ids), ()))
    assert printed("run start norms main --wait") == [get(f"/api/v1/runs/{one}").json() for one in ids]


def test_a_quarantined_case_is_marked(decided: Seeded, get: Get) -> None:
    verdicts = get(f"/api/v1/runs/{decided.runs['fast']}").json()["verdicts"]
    assert [one["baseline_kind"] for one in verdicts if one["quarantined"]] == ["parent"]
    assert {one["baseline_kind"] for one in verdicts} == {"parent", "last_good", "pinned", "sota", "best"}


def test_a_number_that_is_not_finite_is_null(decided: Seeded, get: Get) -> None:
    run_id = decided.runs["fast"]
    with transaction() as session:
        verdict = session.query(VerdictRow).filter_by(run_id=run_id, baseline_kind="parent").first()
        assert verdict is not None
        name, verdict.high = (verdict.provider, verdict.case, "parent"), inf
    found = {
        (one["provider"], one["case"], one["baseline_kind"]): one
        for one in get(f"/api/v1/runs/{run_id}").json()["verdicts"]
    }
    assert found[name]["high"] is None
    assert found[name]["low"] is not None
