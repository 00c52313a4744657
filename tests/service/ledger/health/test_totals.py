"""The numbers of a run: what lists show as slower."""

from pathlib import Path

import pytest

from service.db.engine import transaction
from service.db.models import RunTotals
from service.domain.states import CellState, RunState
from tests import world

CASE = "layernorm.bwd.16384x4096.bf16"


@pytest.mark.parametrize(
    ("parent", "outcome", "ratio", "slower"),
    [
        ("invalid", "regression", 2.5, 1),
        ("invalid", "steady", 1.001, 0),
        ("invalid", "improvement", 0.9, 0),
        ("invalid", "inconclusive", 1.05, 1),
        ("invalid", "inconclusive", 1.0004, 0),
        ("measured", "regression", 2.5, 0),  # the head is wrong, and its parent was right
    ],
)
def test_what_is_slower_than_a_wrong_parent_is_counted(
    state: Path, parent: str, outcome: str, ratio: float, slower: int
) -> None:
    target = world.target()
    with transaction() as session:
        run = world.run(session, world.commit(session, target.id, 1), state=RunState.DONE, finished_at=1.0)
        world.measured(session, run, CASE, 500.0)
        world.measured(session, run, CASE, role="parent", state=CellState(parent))
        own = "new" if parent == "invalid" else "invalid"
        world.judged(session, run, CASE, outcome=own)
        args = {"limit": 0.01} if outcome == "inconclusive" else {}
        world.judged(session, run, CASE, baseline_kind="wrong_parent", outcome=outcome, ratio=ratio, reason_args=args)
        world.totalled(session)
        assert session.get_one(RunTotals, run.id).slower_than_wrong == slower
