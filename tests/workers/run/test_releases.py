"""Releases of torch as the revisions of a target: each contender in its own, side by side in one session."""

import json
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from kernels.cases import Role
from service.db.engine import reading, transaction
from service.db.models import Measurement, Run, Stack, VerdictRow
from service.domain.states import BaselineKind, RunState, TargetKind
from service.ledger import targets
from service.ledger.intake import deliveries
from service.ledger.runs import queue
from service.reports.words import cause_of
from service.settings import settings
from tests.fakes.repository import MEASURED_ANYWHERE
from tests.fakes.wheels import files_of_torch, write_wheel
from workers.machine import environments
from workers.machine.device import DeviceHere
from workers.run import session

CASE = "rmsnorm.fwd.256x1024.fp32"
RECIPE = f"""
devices = ["cpu"]
suite = "one"
sota = "eager"
[providers.eager]
builtin = "eager"
[suites]
one = ["{CASE}"]
[policy]
screening = [3, 6]
confirmation = [2, 4]
rounds = 4
smallest_change = 0.9
smallest_change_short = 0.9
control_limit = 1
"""


@pytest.fixture
def releases(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two releases of torch in a folder of wheels; the newer one computes each RMSNorm thirty times."""
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", json.dumps([str(tmp_path)]))
    settings.cache_clear()
    environments.adopt_stack("host", Path(sys.executable), [])
    for version, extra in (("2.90.0", 0), ("2.91.0", 29)):
        write_wheel(tmp_path / "wheels", "torch", version, files_of_torch(version, extra))
    where = {"location": str(tmp_path / "wheels"), "kind": TargetKind.PACKAGE, "package": "torch"}
    with transaction() as database:
        targets.register(database, "torch", recipe_text=RECIPE, **where, **MEASURED_ANYWHERE)


@pytest.mark.torch
@pytest.mark.alone
def test_a_slower_release_is_a_regression_that_is_named(releases: None) -> None:
    deliveries.run_revision("torch", "2.91.0")
    with transaction() as database:
        lease = queue.next_run(database, "cpu", "test/cpu-0", settings().lease_s)
    assert lease
    session.measure(lease, DeviceHere("cpu", "the processor"))

    with reading() as database:
        run = database.get_one(Run, lease.run_id)
        assert (run.state, run.baseline) == (RunState.DONE, "2.90.0"), run.reason
        rows = database.scalars(select(Measurement).where(Measurement.run_id == run.id))
        replaced = {row.contender: row.facts.get("replaced") for row in rows}
        [verdict] = database.scalars(
            select(VerdictRow).where(VerdictRow.run_id == run.id, VerdictRow.baseline_kind == BaselineKind.PARENT)
        )
        versions = database.scalars(select(Stack.versions)).one()
    assert replaced[f"{Role.HEAD}:eager"] == {"torch": "2.91.0"}
    assert replaced[f"{Role.PARENT}:eager"] == replaced[f"{Role.CONTROL}:eager"] == {"torch": "2.90.0"}
    assert replaced[f"{Role.SOTA}:eager"] is None, "SOTA ran with the torch of the stack"
    assert versions["torch"] not in ("2.90.0", "2.91.0"), "so the stack is the same before and after the release"
    assert verdict.outcome == "regression", (verdict.reason_code, verdict.reason_args, verdict.ratio)
    cause = cause_of(verdict)
    assert cause is not None
    assert cause.kind == "code"
    assert cause.words.startswith(
        "slower with torch 2.91.0 instead of 2.90.0, probably because each call now also runs"
    )
