"""The state of a bisection, derived from the runs that are its steps."""

from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload, undefer

from service.db.models import Bisection, Revision, Run, Target, VerdictRow
from service.domain.bisection.classify import Answer, BisectionStep, StepVerdict
from service.domain.bisection.search import decide
from service.domain.states import OPEN_SEARCHES, OPEN_STATES, BaselineKind, Purpose, RunState
from service.domain.text import one_line
from service.domain.verdicts.judge import Outcome
from service.reports import words
from service.reports.bisection_text import said
from service.reports.views import BisectionView, StepView

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
    answered = {id(one.step): one for one in progress.answered}
    steps = tuple(StepView(run, step, answered.get(id(step))) for run, step in over)
    found = BisectionView(row, target.name, progress, steps, "", pending)
    stored = row.state not in OPEN_SEARCHES or row.waits_for_budget
    return replace(found, words=row.reason or "" if stored else said(progress, found.names))


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
            return replace(step, verdicts={(row.provider, row.case): _verdict(row) for row in _against_baseline(run)})
        case RunState.FAILED if run.build_failed:
            return replace(step, untested=Answer.SKIP, words=why)
        case RunState.SUPERSEDED:  # the mainline was rewritten without it: no repeat will measure it
            return replace(step, untested=Answer.SKIP, words=why)
        case _:
            return replace(step, untested=Answer.UNDECIDED, words=why)


def _against_baseline(run: Run) -> list[VerdictRow]:
    return [row for row in run.verdicts if row.baseline_kind == BaselineKind.PARENT]


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
    recipe = select(Target.recipe_id).where(Target.id == row.target_id).scalar_subquery()
    for start in range(0, len(between), _SOME):
        watched = (
            select(Revision.sha, Run.state)
            .join(Run, Run.revision_id == Revision.id)
            .where(Revision.target_id == row.target_id, Revision.sha.in_(between[start : start + _SOME]))
            .where(Run.device == row.device, Run.recipe_id == recipe, Run.purpose == Purpose.WATCH)
            .where((Run.state == RunState.DONE) | ((Run.state == RunState.FAILED) & Run.log.is_not(None)))
            .order_by(Run.id)
        )
        states |= {sha: state is RunState.FAILED for sha, state in session.execute(watched)}
    return {sha for sha, failed in states.items() if failed}
