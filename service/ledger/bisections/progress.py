"""How far bisections are, for a list of them: which of their revisions were measured, and what came of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.db.models import Bisection, Revision, Run, RunTotals, Target
from service.domain.states import OPEN_STATES, RunState, SearchState


class StepMark(StrEnum):
    """What the run of a step came to."""

    SLOWER = "slower"
    GOOD = "good"
    FAILED = "failed"
    PENDING = "pending"


@dataclass(frozen=True)
class SearchProgress:
    """A bisection with its steps; `marks` are by the place of the revision on its line."""

    row: Bisection
    steps: int
    marks: dict[int, StepMark]

    @property
    def left(self) -> int:
        """The most steps that may follow."""
        return max(0, self.row.max_runs - self.steps)

    @property
    def suspects(self) -> int:
        """The revisions among which the culprit is: after the last good one, up to the first slow one after it."""
        last = len(self.row.line) - 1
        slow = min((at for at, mark in self.marks.items() if mark is StepMark.SLOWER), default=last)
        good = max((at for at, mark in self.marks.items() if mark is StepMark.GOOD and at < slow), default=0)
        return max(0, slow - good)


def progress_of(session: Session, found: Iterable[Bisection]) -> list[SearchProgress]:
    """The progress of these, with one query for all of their steps."""
    rows = list(found)
    steps: dict[int, list[tuple[str, StepMark]]] = {row.id: [] for row in rows}
    asked = (
        select(Run.bisection_id, Revision.sha, Run.state, RunTotals.regression)
        .join(Revision, Revision.id == Run.revision_id)
        .outerjoin(RunTotals, RunTotals.run_id == Run.id)
        .where(Run.bisection_id.in_(list(steps)))
        .order_by(Run.id)
    )
    for bisection_id, sha, state, slower in session.execute(asked):
        steps[bisection_id or 0].append((sha, _mark(state, slower or 0)))
    return [_progress(row, steps[row.id]) for row in rows]


def counts(session: Session, target: Target | None = None) -> dict[SearchState, int]:
    """How many there are in each state, of a target or of all."""
    by_state = select(Bisection.state, func.count()).group_by(Bisection.state)
    if target is not None:
        by_state = by_state.where(Bisection.target_id == target.id)
    return dict(session.execute(by_state).all())


def _progress(row: Bisection, steps: list[tuple[str, StepMark]]) -> SearchProgress:
    place = {sha: n for n, sha in enumerate(row.line)}
    ended = sum(mark is not StepMark.PENDING for _, mark in steps)
    return SearchProgress(row, ended, {place[sha]: mark for sha, mark in steps if sha in place})


def _mark(state: RunState, slower: int) -> StepMark:
    if state in OPEN_STATES:
        return StepMark.PENDING
    if state is not RunState.DONE:
        return StepMark.FAILED
    return StepMark.SLOWER if slower else StepMark.GOOD
