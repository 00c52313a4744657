"""What else happened to a machine while a run was measured on it."""

from sqlalchemy import and_, case, func, not_, select
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import Run, Target, VerdictRow
from service.domain.attribution.causes import Kind
from service.domain.states import BaselineKind, Purpose, RunState

AT_THAT_TIME_S = 6 * 3600.0  # a neighbour, a fan or a driver lasts for hours; a commit of another target is over in one
MOST = 0.5  # of what was compared, moving one way: commits slow down a few cases, machines nearly all
FEWEST = 4  # cases, of which half are no accident


def moved_elsewhere(session: Session, run: Run) -> dict[bool, tuple[str, ...]]:
    """The other targets of which most cases became slower (True), or faster, on the worker of `run` lately.

    Each of their cases was compared with its own baseline: what neither a commit of theirs is known to have done, nor a
    search was looking for, nor a stranger could have wanted, is the machine's.
    """
    theirs = and_(
        VerdictRow.confirmed, func.coalesce(VerdictRow.cause_kind, "") == Kind.CODE
    )  # a commit of theirs did that
    moved = and_(VerdictRow.suspected, not_(theirs))
    slower, faster = (
        func.sum(case((and_(moved, VerdictRow.ratio > 1), 1), else_=0)),
        func.sum(case((and_(moved, VerdictRow.ratio < 1), 1), else_=0)),
    )
    compared = func.count(VerdictRow.id)
    rows = session.execute(
        select(Target.name, slower, faster, compared)
        .join(Run, Run.target_id == Target.id)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .where(Run.worker == run.worker, Run.target_id != run.target_id, Run.state == RunState.DONE)
        .where(Run.finished_at >= clock(session) - AT_THAT_TIME_S)
        .where(Run.purpose != Purpose.BISECTION, Run.trusted)
        .where(VerdictRow.baseline_kind == BaselineKind.PARENT, VerdictRow.ratio.is_not(None))
        .group_by(Target.name)
        .order_by(Target.name)
    ).all()
    most = [(name, worse / all_ >= MOST, better / all_ >= MOST) for name, worse, better, all_ in rows if all_ >= FEWEST]
    return {
        True: tuple(name for name, worse, _ in most if worse),
        False: tuple(name for name, _, better in most if better),
    }
