"""Changes of other targets on the same machine while a run was measured."""

from sqlalchemy import and_, case, func, not_, select
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import Run, Target, VerdictRow
from service.domain.attribution.causes import Kind
from service.domain.states import BaselineKind, Purpose, RunState
from service.domain.verdicts.machine import most_moved

AT_THAT_TIME_S = 6 * 3600.0  # a neighbour, a fan or a driver lasts for hours; a commit of another target is over in one


def moved_elsewhere(session: Session, run: Run) -> dict[bool, tuple[str, ...]]:
    """The other targets of which most cases became slower (True), or faster, on the worker of `run` lately.

    Each of their cases was compared with its own baseline.  A move counts for the machine unless a commit of theirs is
    known to have caused it; steps of bisections and runs of untrusted code are left out.
    """
    by_a_commit = and_(VerdictRow.confirmed, func.coalesce(VerdictRow.cause_kind, "") == Kind.CODE)
    moved = and_(VerdictRow.suspected, not_(by_a_commit))
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
    return {
        True: tuple(name for name, worse, _, n in rows if most_moved(worse, n)),
        False: tuple(name for name, _, better, n in rows if most_moved(better, n)),
    }
