"""A bisection: the line of its revisions, its state by the runs of its steps, and its progress in a list."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sqlalchemy import func, select
from sqlalchemy.orm import Session, selectinload, undefer

from service.db.models import Bisection, Revision, Run, RunTotals, Target, VerdictRow
from service.domain.bisection.search import Answer, BisectionStep, StepVerdict, decide
from service.domain.states import (
    OPEN_SEARCHES,
    OPEN_STATES,
    BaselineKind,
    Outcome,
    Purpose,
    RunState,
    SearchState,
    TargetKind,
)
from service.domain.text import one_line, short
from service.errors import BadInput
from service.ledger.runs.revisions import revisions_known
from service.reports import words
from service.reports.bisection_text import said
from service.reports.views import BisectionView, StepView
from service.sources.source import Found

_SOME = 500  # databases limit how many parameters a statement may have


def search(session: Session, row: Bisection) -> BisectionView:
    """The state of a search, derived from its runs."""
    target = session.get_one(Target, row.target_id)
    runs = steps_of(session, row.id)
    pending = next((run for run in runs if run.state in OPEN_STATES), None)
    over = [(run, _step(run)) for run in runs if run.state not in OPEN_STATES]
    if not row.line:
        return BisectionView(row, target.name, None, (), row.reason or "reads the revisions between its ends", pending)
    progress = decide(row.line, [step for _, step in over], row.max_runs, _unbuildable(session, row))
    answered = {id(answer.step): answer for answer in progress.answered}
    steps = tuple(StepView(run, step, answered.get(id(step))) for run, step in over)
    bisection = BisectionView(row, target.name, progress, steps, "", pending)
    stored = row.state not in OPEN_SEARCHES or row.waits_for_budget
    return replace(bisection, words=row.reason or "" if stored else said(progress, bisection.names))


def steps_of(session: Session, bisection_id: int) -> list[Run]:
    loads = (undefer(Run.log), selectinload(Run.revision), selectinload(Run.verdicts))
    rows = select(Run).where(Run.bisection_id == bisection_id).order_by(Run.id).options(*loads)
    return list(session.execute(rows.execution_options(populate_existing=True)).scalars())


def _step(run: Run) -> BisectionStep:
    """The step that an ended run is.  Only a failed build is the fault of the revision; other failures are retried."""
    step = BisectionStep(run.revision.sha, run.baseline or "")
    why = one_line(run.reason or "no reason was given")
    match run.state:
        case RunState.DONE:
            parent = [row for row in run.verdicts if row.baseline_kind == BaselineKind.PARENT]
            return replace(step, verdicts={(row.provider, row.case): _verdict(row) for row in parent})
        case RunState.FAILED if run.build_failed:
            return replace(step, untested=Answer.SKIP, words=why)
        case RunState.SUPERSEDED:  # the mainline was rewritten without it: no repeat will measure it
            return replace(step, untested=Answer.SKIP, words=why)
        case _:
            return replace(step, untested=Answer.UNDECIDED, words=why)


def _verdict(row: VerdictRow) -> StepVerdict:
    return StepVerdict(
        Outcome(row.outcome),
        row.ratio,
        row.low,
        row.high,
        row.suspected,
        row.trials,
        why=words.cause_text(row),
        reason=words.of_verdict(row),
    )


def _unbuildable(session: Session, row: Bisection) -> set[str]:
    """The revisions between the ends whose build failed in a watched run with the current recipe."""
    states: dict[str, bool] = {}
    between = row.line[1:-1]
    recipe = session.scalar(select(Target.recipe_id).where(Target.id == row.target_id))
    for start in range(0, len(between), _SOME):
        some = Revision.target_id == row.target_id, Revision.sha.in_(between[start : start + _SOME])
        shas = dict(session.execute(select(Revision.id, Revision.sha).where(*some)).all())
        # Neither joined nor asked for the recipe: SQLite would read every run of the device, or with the recipe.
        watched = (
            select(Run.revision_id, Run.state, Run.recipe_id)
            .where(Run.revision_id.in_(list(shas)), Run.device == row.device, Run.purpose == Purpose.WATCH)
            .where((Run.state == RunState.DONE) | ((Run.state == RunState.FAILED) & Run.log.is_not(None)))
            .order_by(Run.id)
        )
        states |= {shas[at]: state is RunState.FAILED for at, state, of in session.execute(watched) if of == recipe}
    return {sha for sha, failed in states.items() if failed}


def known_line(session: Session, target: Target, good: str, bad: str) -> list[str]:
    """The revisions from `good` to `bad` along first parents as the ledger knows them; empty where it has gaps."""
    of_target = select(Revision.sha, Revision.parent).where(Revision.target_id == target.id)
    walk = of_target.where(Revision.sha == bad).cte("walk", recursive=True)
    earlier = of_target.join(walk, walk.c.parent == Revision.sha).where(walk.c.sha != good)
    parents = dict[str, str | None](session.execute(select(walk.union(earlier))).all())
    line, sha = {bad: None}, bad  # a dict keeps the order
    while sha != good:
        if sha not in parents:
            return []
        parent = parents[sha]
        if parent is None or parent in line:
            raise BadInput(_not_on_one_line(good, bad))
        line[parent], sha = None, parent
    return [*line][::-1]


def sound(target: Target, good: str, bad: str, line: Sequence[Found]) -> list[str]:
    """The whole line, checked: each commit is the first parent of the next; releases are ordered by version."""
    shas = [good, *(commit.sha for commit in line)]
    linked = all(commit.parent == before for before, commit in zip(shas, line, strict=False))
    if len(shas) < 2 or shas[-1] != bad or not (linked or target.kind is TargetKind.PACKAGE):
        raise BadInput(_not_on_one_line(good, bad))
    return shas


def _not_on_one_line(good: str, bad: str) -> str:
    return (
        f"{short(good)} is not on the first-parent line of {short(bad)}, which a bisection follows. "
        "Write GOOD..BAD with the older revision first; if the good one is on a merged branch, use the commit where "
        f"that branch started (`git merge-base {short(good)} {short(bad)}`)."
    )


def store(session: Session, target: Target, row: Bisection, line: Sequence[Found]) -> None:
    """Store the revisions of a line.  If its bad end is on the mainline, all of them are."""
    ordinals = select(Revision.ordinal).where(Revision.target_id == target.id, Revision.sha == row.bad)
    mainline = session.execute(ordinals).scalar_one_or_none() is not None
    revisions_known(session, target, line, mainline=mainline)


def moved_between(session: Session, target: Target, device: str, good: str, bad: str) -> list[str]:
    """The cases that the newest stored comparison of the two ends found slower; empty without a comparison."""
    compared = (
        select(Run.id, VerdictRow.case, VerdictRow.outcome)
        .join(Revision, Revision.id == Run.revision_id)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .where(Run.target_id == target.id, Run.device == device, Run.state == RunState.DONE, Revision.sha == bad)
        .where(VerdictRow.baseline_kind.in_((BaselineKind.PARENT, BaselineKind.LAST_GOOD)), VerdictRow.baseline == good)
        .order_by(Run.id.desc())
    )
    rows = session.execute(compared).all()
    return sorted({row.case for row in rows if row.id == rows[0].id and row.outcome == Outcome.REGRESSION})


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


def progress_of(session: Session, bisections: Iterable[Bisection]) -> list[SearchProgress]:
    """The progress of these, with one query for all of their steps."""
    rows = list(bisections)
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
