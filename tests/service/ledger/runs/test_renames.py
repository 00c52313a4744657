"""A provider with another name: its history goes on under the new one."""

from pathlib import Path

import pytest
from sqlalchemy import select

from kernels.cases import Role
from service.db.engine import clock, reading, transaction
from service.db.models import Measurement, RegressionRow, Run, Series, Target, VerdictRow
from service.domain.policy.policy import Policy
from service.domain.states import RegressionState, RunState
from service.errors import BadInput
from service.ledger import targets
from service.ledger.regressions import after_run
from tests import world

CASE = "rmsnorm.fwd.4096x1024.bf16"
RECIPE = f"""
devices = ["cpu"]
suite = "mine"
[suites]
mine = ["{CASE}"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
"""
RENAMED = RECIPE.replace("[providers.norms]", '[providers.fast-norms]\nformerly = "norms"')


def measured(target: Target, place: int, provider: str, ratio: float) -> int:
    """Record a run of the mainline that compared this provider with its parent, and Quack."""
    with transaction() as session:
        row = session.get_one(Target, target.id)
        commit = world.commit(session, row.id, place)
        run = world.run(session, commit, state=RunState.DONE, finished_at=clock(session))
        for role, name in (("head", provider), ("parent", provider), ("sota", "quack")):
            world.measured(session, run, CASE, 10.0, role=role, provider=name)
        outcome = "regression" if ratio > 1.01 else "improvement" if ratio < 0.99 else "steady"
        sizes = {"ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01, "smallest_change": 0.01}
        world.judged(session, run, CASE, provider=provider, outcome=outcome, baseline=run.baseline, **sizes)
        after_run.note_regressions(session, run, Policy())
        return run.id


def adopt(target: Target, text: str) -> None:
    with transaction() as session:
        targets.adopt_recipe(session, session.get_one(Target, target.id), text, {})


@pytest.fixture
def target(state: Path) -> Target:
    return world.target(RECIPE)


def contenders() -> list[tuple[str, str]]:
    with reading() as session:
        rows = session.execute(select(Measurement.provider, Measurement.contender).order_by(Measurement.id))
        return [tuple(row) for row in rows]


def providers() -> set[str]:
    with reading() as session:
        return {*session.scalars(select(Series.provider)), *session.scalars(select(VerdictRow.provider))}


def test_what_was_measured_and_what_is_open_goes_on_under_the_new_name(target: Target) -> None:
    measured(target, 1, "norms", 1.5)

    adopt(target, RENAMED)
    assert providers() == {"fast-norms"}
    own = [("fast-norms", "head:fast-norms"), ("fast-norms", "parent:fast-norms")]
    assert contenders() == [*own, ("quack", "sota:quack")]
    with reading() as session:
        assert session.scalars(select(RegressionRow.state)).all() == [RegressionState.OPEN]

    fixing = measured(target, 2, "fast-norms", 0.66)
    with reading() as session:
        [regression] = session.scalars(select(RegressionRow)).all()
        assert (regression.state, regression.fixed_by) == (RegressionState.FIXED, fixing)


def test_a_name_without_a_series_is_carried_on_too(target: Target) -> None:
    measured(target, 1, "norms", 1.0)
    assert contenders()[0] == ("norms", "head:norms")
    adopt(target, RENAMED)
    assert contenders()[0] == ("fast-norms", "head:fast-norms")


def test_what_a_run_by_the_older_recipe_finds_is_stored_under_the_name_of_now(target: Target) -> None:
    """Commits before the renaming one are usually queued still when the mainline brings the recipe."""
    measured(target, 1, "norms", 1.0)
    with transaction() as session:
        row = session.get_one(Target, target.id)
        run = world.run(session, world.commit(session, row.id, 2))
    adopt(target, RENAMED)

    sides = {Role.HEAD: "norms", Role.PARENT: "norms", Role.SOTA: "quack"}
    taken = [world.took(role, CASE, provider=name) for role, name in sides.items()]
    assert world.recorded(world.leased(), world.session_of(taken, "c1")).id == run.id
    assert providers() == {"fast-norms"}
    assert {name for name, _ in contenders()} == {"fast-norms", "quack"}
    with reading() as session:
        outcomes = session.scalars(select(VerdictRow.outcome).where(VerdictRow.run_id == run.id)).all()
    assert "removed" not in outcomes


def test_a_run_that_measured_both_keeps_both(target: Target) -> None:
    run = measured(target, 1, "norms", 1.0)
    with transaction() as session:
        world.measured(session, session.get_one(Run, run), CASE, 10.0, provider="fast-norms")
    adopt(target, RENAMED)
    assert {name for name, _ in contenders()} == {"norms", "fast-norms", "quack"}


def test_it_is_done_once_and_not_where_both_names_have_a_history(target: Target) -> None:
    measured(target, 1, "norms", 1.5)
    measured(target, 1, "fast-norms", 1.5)
    adopt(target, RENAMED)
    assert providers() == {"norms", "fast-norms"}


def test_other_targets_keep_theirs(target: Target) -> None:
    other = world.target(RECIPE, name="others")
    measured(other, 1, "norms", 1.5)
    adopt(target, RENAMED)
    assert providers() == {"norms"}
    with reading() as session:
        assert session.scalars(select(Run.target_id)).all() == [other.id]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('[providers.norms]\nrmsnorm.fwd = "norms:rmsnorm"\n', "'norms' is a provider still"),
        (
            '[providers.slow-norms]\nformerly = "norms"\nrmsnorm.fwd = "norms:rmsnorm"\n',
            "only one of them can carry on the history of 'norms'",
        ),
    ],
)
def test_a_name_that_cannot_be_carried_on_is_refused(target: Target, more: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        adopt(target, RENAMED + more)
