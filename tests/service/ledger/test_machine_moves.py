"""What other targets did on a machine lately: that many of their cases moved alike says something of the machine."""

from typing import Any

import pytest

from service.db.engine import clock, reading, transaction
from service.db.models import RecipeRow, Revision, Run, Target, VerdictRow
from service.domain.states import Purpose, RunState, TargetKind
from service.ledger.runs.machine_moves import AT_THAT_TIME_S, moved_elsewhere

pytestmark = pytest.mark.usefixtures("either")
SLOWER, FASTER, STEADY = 1.1, 0.9, 1.0


def target(name: str) -> tuple[int, int, int]:
    """A target with a recipe and a revision: their ids."""
    with transaction() as session:
        row = Target(name=name, kind=TargetKind.GIT, location="/nowhere", created_at=0.0)
        session.add(row)
        session.flush()
        recipe = RecipeRow(target_id=row.id, digest="1" * 64, text="", adapters={}, created_at=0.0)
        revision = Revision(target_id=row.id, sha="c0", ordinal=0, subject="", author="", committed_at=0.0, paths=[])
        session.add_all([recipe, revision])
        session.flush()
        return row.id, recipe.id, revision.id


def measured(
    of: tuple[int, int, int], *ratios: float, ago_s: float = 60.0, cause: str | None = None, **columns: Any
) -> Run:
    """A run on the worker "here", with one case for each ratio of head over parent."""
    target_id, recipe_id, revision_id = of
    known = {"worker": "here", "trusted": True, "purpose": Purpose.WATCH, "state": RunState.DONE, **columns}
    with transaction() as session:
        run = Run(target_id=target_id, recipe_id=recipe_id, revision_id=revision_id, device="cpu", suite="all", **known)
        run.dedupe, run.priority, run.created_at = f"{target_id}:{ratios}:{columns}", 20, 0.0
        run.finished_at = clock(session) - ago_s
        session.add(run)
        session.flush()
        for number, ratio in enumerate(ratios):
            row = VerdictRow(
                run_id=run.id, provider="norms", case=f"rmsnorm.fwd.{number + 1}x64.fp32", baseline_kind="parent"
            )
            row.ratio, row.outcome, row.reason, row.suspected = ratio, "steady", "", ratio != STEADY
            row.cause_kind, row.confirmed = cause, cause is not None
            session.add(row)
        return run


def told(run: Run) -> dict[bool, tuple[str, ...]]:
    with reading() as session:
        return moved_elsewhere(session, run)


def test_other_targets_of_which_most_cases_moved_one_way_are_named():
    ours, slower, faster, both = (target(name) for name in ("ours", "slower", "faster", "both"))
    run = measured(ours, *[SLOWER] * 6)
    measured(slower, SLOWER, SLOWER, SLOWER, STEADY, cause="machine")
    measured(faster, FASTER, FASTER, STEADY, STEADY)
    measured(both, SLOWER, FASTER, STEADY, STEADY, STEADY)
    assert told(run) == {True: ("slower",), False: ("faster",)}


@pytest.mark.parametrize(
    "columns",
    [
        {"worker": "there"},
        {"ago_s": AT_THAT_TIME_S + 60},
        {"state": RunState.FAILED},
        {"purpose": Purpose.BISECTION},  # its steps compare what is slower
        {"cause": "code"},  # a commit of theirs did it
        {"trusted": False},  # a stranger would choose what is blamed on the machine
    ],
    ids=lambda columns: next(iter(columns)),
)
def test_what_says_nothing_of_the_machine_now_is_not_counted(columns):
    run = measured(target("ours"), SLOWER)
    measured(target("other"), *[SLOWER] * 6, **columns)
    assert told(run) == {True: (), False: ()}


def test_a_few_cases_may_move_alike_by_chance():
    run = measured(target("ours"), SLOWER)
    measured(target("other"), SLOWER, SLOWER, SLOWER)
    assert told(run) == {True: (), False: ()}
