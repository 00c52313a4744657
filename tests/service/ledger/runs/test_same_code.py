"""A case whose code is the same ends after one trial: what the parent's session saw of the other baselines holds."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from kernels.cases import Role
from service.db.engine import reading, transaction
from service.db.models import Run, RunTotals, VerdictRow
from service.domain.states import BaselineKind, CellState, Outcome
from service.domain.verdicts.reasons import ReasonCode
from service.domain.verdicts.session_result import ContenderResult
from service.ledger.runs.baselines import earlier
from tests import world

CASE = "rmsnorm.fwd.512x512.fp32"
RECIPE = """
devices = ["cpu"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
"""
STACK = {"torch": "2.13.0"}
SAME = {"kind": "triton", "code": "3f"}
TIMES = {Role.HEAD: 100.0, Role.PARENT: 100.0, Role.CONTROL: 100.0, Role.SOTA: 50.0}


pytestmark = pytest.mark.usefixtures("either_nightly")


def seen(trials: int, *, unsupported: bool = False) -> list[ContenderResult]:
    """All contenders with so many trials: twice as slow as SOTA, which may not support the case."""
    providers = {Role.SOTA: "quack"}
    states = {Role.SOTA: CellState.UNSUPPORTED} if unsupported else {}
    taken = [
        world.took(role, CASE, us, providers.get(role, "norms"), states.get(role, CellState.MEASURED), SAME)
        for role, us in TIMES.items()
    ]
    return [replace(one, screened=one.screened[:trials], confirmed=()) for one in taken]


@pytest.fixture
def target_id() -> int:
    return world.target(RECIPE).id


def measured(target_id: int, place: int, trials: int, torch: str = "2.13.0", **seldom: bool) -> Run:
    with transaction() as session:
        world.run(session, world.commit(session, target_id, place))
    return world.recorded(
        world.leased(), world.session_of(seen(trials, **seldom), f"c{place - 1}", stack={"torch": torch})
    )


def verdicts(run: Run) -> dict[BaselineKind, VerdictRow]:
    with reading() as session:
        rows = session.scalars(select(VerdictRow).where(VerdictRow.run_id == run.id)).all()
    return {row.baseline_kind: row for row in rows}


def test_the_comparison_with_sota_is_that_of_the_session_that_measured_this_code(target_id):
    whole = measured(target_id, 1, trials=3)
    was = verdicts(whole)[BaselineKind.SOTA]
    assert (was.behind_sota, was.trials) == (True, 3)

    for place in (2, 3):
        run = measured(target_id, place, trials=1)
        rows = verdicts(run)
        assert rows[BaselineKind.PARENT].outcome == Outcome.STEADY
        assert rows[BaselineKind.PARENT].reason_code == ReasonCode.EQUAL_CODE
        now = rows[BaselineKind.SOTA]
        assert (now.ratio, now.low, now.high) == (was.ratio, was.low, was.high)
        assert (now.outcome, now.behind_sota, now.trials) == (was.outcome, True, 3)
        assert (now.reason_code, now.reason_args) == (ReasonCode.AS_BEFORE, {"run": whole.id, "baseline": "quack"})
        with reading() as session:
            assert session.get_one(RunTotals, run.id).behind == 1


def test_a_comparison_on_another_stack_does_not_hold(target_id):
    measured(target_id, 1, trials=3)
    row = verdicts(measured(target_id, 2, trials=1, torch="2.14.0"))[BaselineKind.SOTA]
    assert (row.ratio, row.reason_code) == (None, ReasonCode.NO_TIMES)


@pytest.mark.parametrize("unsupported", [False, True])
def test_a_session_knows_what_was_compared_before(target_id, unsupported):
    """Where SOTA has no times, no comparison is missing."""
    measured(target_id, 1, trials=3, unsupported=unsupported)
    with transaction() as session:
        world.run(session, world.commit(session, target_id, 2))
    lease = world.leased()
    with reading() as session:
        run = session.get_one(Run, lease.run_id)
        before = earlier(session, run, "c1", STACK, None)
        assert before is not None
        assert before.names == {("norms", CASE)}
        assert earlier(session, run, "c1", {"torch": "2.14.0"}, None) is None, "on another stack"
        assert earlier(session, run, "c1", STACK, "c0") is None, "beside another pinned revision"
        assert earlier(session, run, "c0", STACK, None) is None, "nobody measured it"
    with transaction() as session:
        run = session.get_one(Run, lease.run_id)
        run.repeated = True
        assert earlier(session, run, "c1", STACK, None) is None, "a second session sees for itself"
