"""Confirm or close change points by the bisection that they started."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session, aliased

from service.db.models import Bisection, ChangePoint, RegressionRow, Revision, Run, VerdictRow
from service.domain.states import OPEN_SEARCHES, BaselineKind, FoundBy, PointReason, PointState, RunState, SearchState
from service.domain.verdicts.judge import Outcome
from service.ledger.regressions.transitions import Slower, open_one
from service.reports.words import cause_text


@dataclass(frozen=True)
class StepResult:
    """The verdict of one step of a bisection on one series."""

    run: Run
    sha: str
    ordinal: int
    since: int | None  # the ordinal of its baseline; None if that left the mainline
    verdict: VerdictRow


def settle(session: Session, rows: Sequence[ChangePoint]) -> None:
    """End the points whose bisection has ended; the others keep waiting."""
    for row in rows:
        search = session.get_one(Bisection, row.bisection_id)
        if search.state not in OPEN_SEARCHES:
            _settle(session, row, search)


def close(row: ChangePoint, code: PointReason, **args: Any) -> None:
    set_state(row, PointState.CLOSED, code, **args)


def set_state(row: ChangePoint, state: PointState, code: PointReason, **args: Any) -> None:
    """Set the state of a point and the reason for it."""
    row.state, row.reason_code, row.reason_args = state, code.value, args


def _settle(session: Session, row: ChangePoint, search: Bisection) -> None:
    steps = _steps(session, search, row)
    slow = [one for one in steps if one.verdict.outcome == Outcome.REGRESSION.value]
    steady = _not_repeating(session, search, row, steps)
    if search.state in (SearchState.FOUND, SearchState.RANGE) and slow:
        regression = _regression(session, search, row, _evidence(search, slow))
        row.regression_id = regression.id
        set_state(row, PointState.CONFIRMED, PointReason.REGRESSION, regression=regression.id, bisection=search.id)
    elif search.state is not SearchState.STOPPED and steady:
        row.refuted_scans = max(row.refuted_scans, 1)
        close(row, PointReason.NOT_REPEATED, bisection=search.id, sessions=len(steady))
    else:  # a person may decide, or bisect again
        ended = search.reason or search.state.value
        set_state(row, PointState.OPEN, PointReason.INCONCLUSIVE, bisection=search.id, said=ended)


def _not_repeating(
    session: Session, search: Bisection, row: ChangePoint, steps: Sequence[StepResult]
) -> list[StepResult]:
    """The steady steps that would be slower if the point were of the code.

    Before the point, and between two revisions after it, a real step is steady as well.  The bisection goes there if it
    is of another series of the incident.  Only the bad end has all of a leak.
    """
    place, before = (session.get_one(Revision, one).ordinal for one in (row.revision_id, row.before_id))
    if place is None:
        return []
    last = place - 1 if before is None else before
    return [
        one
        for one in steps
        if one.verdict.outcome == Outcome.STEADY.value
        if one.since is not None and one.since <= last
        if (one.sha == search.bad if row.course else one.ordinal >= place)
    ]


def _steps(session: Session, search: Bisection, row: ChangePoint) -> list[StepResult]:
    """The results of a bisection's steps at the point's series, in the order of the mainline."""
    base = aliased(Revision)
    against = and_(base.target_id == Run.target_id, base.sha == func.coalesce(VerdictRow.baseline, Run.baseline))
    found = session.execute(
        select(Run, Revision.sha, Revision.ordinal, base.ordinal, VerdictRow)
        .join(Revision, Revision.id == Run.revision_id)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .outerjoin(base, against)
        .where(Run.bisection_id == search.id, Run.state == RunState.DONE, Revision.ordinal.is_not(None))
        .where(
            VerdictRow.provider == row.provider,
            VerdictRow.case == row.case,
            VerdictRow.baseline_kind == BaselineKind.PARENT,
        )
        .order_by(Revision.ordinal, Run.id.desc())
    )
    return [StepResult(run, sha, ordinal or 0, since, verdict) for run, sha, ordinal, since, verdict in found]


def _evidence(search: Bisection, slow: Sequence[StepResult]) -> StepResult:
    """The step that proves the culprit, or else the earliest revision that was slower than the good end."""
    return next((one for one in slow if one.sha == search.culprit), slow[0])


def _regression(session: Session, search: Bisection, row: ChangePoint, step: StepResult) -> RegressionRow:
    """The regression that the step showed: the stored one, or a new one."""
    known = session.scalar(
        select(RegressionRow)
        .join(Run, Run.id == RegressionRow.run_id)
        .where(Run.revision_id == step.run.revision_id, RegressionRow.series_id == row.series_id)
        .order_by(RegressionRow.id.desc())
        .limit(1)
    )
    if known is not None:
        return known
    verdict = step.verdict
    slower = Slower(
        row.provider,
        row.case,
        verdict.ratio or row.ratio,
        verdict.low,
        verdict.high,
        verdict.cause_kind,
        cause_text(verdict),
    )
    return open_one(
        session,
        step.run,
        slower,
        found_by=FoundBy.HISTORY,
        good=search.good,
        culprit=search.culprit if step.sha == search.culprit else None,
        words=search.reason,
    )
