"""What other targets did on a machine lately: that many of their cases moved alike says something of the machine."""

from typing import Any

import pytest

from service.db.engine import clock, reading, transaction
from service.db.models import Revision, Run
from service.domain.states import Purpose, RunState
from service.ledger.runs.recording import AT_THAT_TIME_S, moved_elsewhere
from tests import world

pytestmark = pytest.mark.usefixtures("either")
SLOWER, FASTER, STEADY = 1.1, 0.9, 1.0


def target(name: str) -> Revision:
    """The first revision of a target."""
    row = world.target(name=name)
    with transaction() as session:
        return world.commit(session, row.id, 0)


def measured(of: Revision, *ratios: float, ago_s: float = 60.0, cause: str | None = None, **columns: Any) -> Run:
    """A run on the worker "here", with one case for each ratio of head over parent."""
    known = {"worker": "here", "state": RunState.DONE, **columns}
    with transaction() as session:
        run = world.run(session, of, finished_at=clock(session) - ago_s, **known)
        for number, ratio in enumerate(ratios):
            found = {"ratio": ratio, "suspected": ratio != STEADY, "cause_kind": cause, "confirmed": cause is not None}
            world.judged(session, run, f"rmsnorm.fwd.{number + 1}x64.fp32", **found)
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
