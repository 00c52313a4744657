"""Configurations that changed, by a commit, the stack or neither: noted when a session of the mainline is recorded."""

from typing import Any

import pytest
from sqlalchemy import select

from kernels.cases import Role
from service.db.engine import reading, transaction
from service.db.models import ConfigurationDrift, Target
from service.domain.states import MovedBy
from service.domain.verdicts.session_result import ContenderResult
from service.ledger.health.overview import drifted_since
from service.ledger.intake import registry
from service.ledger.reading.histories import drift_page, drifts, drifts_of, facts_over
from tests import world

CASE = "rmsnorm.fwd.512x512.fp32"
RECIPE = """
devices = ["cpu"]

[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
"""
pytestmark = pytest.mark.usefixtures("either_nightly")


def took(role: Role, warps: int) -> ContenderResult:
    facts: dict[str, Any] = {"code": f"{warps:x}", "triton": [{"name": "_forward", "warps": warps, "stages": 1}]}
    return world.took(role, CASE, facts=facts)


def measure(
    target: Target, place: int, head: int, parent: int | None, torch: str = "2.13.0", pull: int | None = None
) -> int:
    """Record a session of a commit that ran its head and its parent with these numbers of warps."""
    taken = [took(Role.HEAD, head)] + ([took(Role.PARENT, parent)] if parent is not None else [])
    with transaction() as session:
        world.run(session, world.commit(session, target.id, place), pull=pull)
    baseline = f"c{place - 1}" if parent is not None else None
    return world.recorded(world.leased(), world.session_of(taken, baseline, stack={"torch": torch})).id


def noted(by: MovedBy = MovedBy.NOTHING) -> list[tuple[int, int, str, str]]:
    with reading() as session:
        rows = session.scalars(select(ConfigurationDrift).order_by(ConfigurationDrift.id))
        return [(one.run_id, one.earlier_run_id, one.before, one.now) for one in rows if one.moved_by is by]


def test_a_parent_that_runs_another_configuration_than_in_its_own_session_drifted(either_nightly: str) -> None:
    target = world.target(RECIPE)
    first = measure(target, 0, head=4, parent=None)
    second = measure(target, 1, head=8, parent=8)
    assert noted() == [(second, first, "_forward num_warps=4 num_stages=1", "_forward num_warps=8 num_stages=1")]
    with reading() as session:
        [shown] = drifts(session, target)
        assert (shown.case, shown.revision, shown.run_id) == (CASE, "c0", second)
        [news] = drifted_since(session, 0.0)
        assert (news.target_id, news.device, news.count) == (target.id, "cpu", 1)
        history = facts_over(session, target, "cpu", "norms", CASE)
        assert [at.sha for _, at in history] == ["c0", "c1"]
        assert history[1][1].parent == took(Role.PARENT, 8).facts


def test_a_revision_that_is_measured_again_is_compared_with_its_session_before(either_nightly: str) -> None:
    target = world.target(RECIPE)
    first = measure(target, 0, head=4, parent=None)
    assert noted() == []
    second = measure(target, 0, head=16, parent=None)
    assert noted() == [(second, first, "_forward num_warps=4 num_stages=1", "_forward num_warps=16 num_stages=1")]


@pytest.mark.parametrize(
    ("head", "parent", "torch", "pull"),
    [
        pytest.param(8, 4, "2.13.0", None, id="the commit changed it"),
        pytest.param(8, 8, "2.14.0", None, id="another stack"),
        pytest.param(8, 8, "2.13.0", 7, id="a pull request, which is not the mainline"),
    ],
)
def test_what_a_commit_or_a_stack_explains_is_no_drift(
    either_nightly: str, head: int, parent: int, torch: str, pull: int | None
) -> None:
    target = world.target(RECIPE)
    measure(target, 0, head=4, parent=None)
    measure(target, 1, head, parent, torch, pull)
    assert noted() == []


FOUR, EIGHT, SIXTEEN = (f"_forward num_warps={warps} num_stages=1" for warps in (4, 8, 16))


def test_what_a_commit_and_a_stack_changed_are_events_of_other_kinds(either_nightly: str) -> None:
    target = world.target(RECIPE)
    first = measure(target, 0, head=4, parent=None)
    second = measure(target, 1, head=16, parent=8, torch="2.14.0")
    third = measure(target, 2, head=16, parent=16, torch="2.14.0")

    assert noted(MovedBy.STACK) == [(second, first, FOUR, EIGHT)]
    assert noted(MovedBy.COMMIT) == [(second, second, EIGHT, SIXTEEN)]
    assert noted() == [], f"run {third} chose as the one before"
    with reading() as session:
        assert drifts(session, target) == [], "health, feeds and the weekly report have those without a commit"
        assert drifted_since(session, 0.0) == []
        shown = drift_page(session, drifts_of(target, "cpu", None), None, 10).items
        assert [(one.by, one.revision) for one in shown] == [(MovedBy.COMMIT, "c1"), (MovedBy.STACK, "c0")]
        of_stack = drift_page(session, drifts_of(target, None, MovedBy.STACK), None, 10).items
        assert [one.revision for one in of_stack] == ["c0"]


def test_a_target_is_removed_with_its_drifts(either: str) -> None:
    target = world.target(RECIPE)
    measure(target, 0, head=4, parent=None)
    measure(target, 1, head=8, parent=8)
    registry.remove(target.name)
    assert noted() == []
