"""What stands on the mainline until somebody mends it: regressions, and the gaps to SOTA.

Revisions may be measured in any order, and again: what counts is their place on the mainline.
"""

from typing import Any

from sqlalchemy import and_, select, update
from sqlalchemy.orm import Session, aliased

from service import sota
from service.ledger import incidents, openings, queue, regressions
from service.ledger.once import inserted, lock
from service.lives import Action, Deed
from service.mending import Step, mended_by
from service.models import (
    STANDING,
    WATCHED,
    FoundBy,
    Gap,
    RegressionRow,
    Revision,
    Run,
    RunState,
    VerdictRow,
)
from service.policy import Policy
from service.texts import short
from service.verdicts import Outcome


def note_regressions(session: Session, run: Run, policy: Policy) -> None:
    """Open a record for each slow-down that this mainline run confirmed, and close those that it shows to be over.

    Its verdicts and their causes are stored already.
    """
    lock(session, run.target_id)
    now = queue.clock(session)
    rows = select(VerdictRow).where(VerdictRow.run_id == run.id).order_by(VerdictRow.provider, VerdictRow.case)
    verdicts = session.scalars(rows).all()
    touched = {row.incident_id for row in openings.opened_by(session, run, verdicts, policy)}
    judged = {(verdict.provider, verdict.case) for verdict in verdicts if verdict.against == "parent"}
    standing = (
        select(RegressionRow, Revision.ordinal)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(RegressionRow.target_id == run.target_id, RegressionRow.device == run.device)
        .where(RegressionRow.state.in_(STANDING))
        .order_by(RegressionRow.id)
        .execution_options(populate_existing=True)
    )
    for row, ordinal in session.execute(standing).all():
        if (row.provider, row.case) in judged and _ended(session, row, ordinal, policy, now):
            touched.add(row.incident_id)
    incidents.settle(session, touched, now)


def _ended(session: Session, row: RegressionRow, ordinal: int | None, policy: Policy, now: float) -> bool:
    if ordinal is None:
        regressions.leave(session, row, now)
        return True
    crept = row.found_by is FoundBy.SLOW
    steps = _steps_since(session, row, ordinal)
    by = mended_by(steps, ordinal, row.ratio, _smallest(session, row, policy), before=row.ratio if crept else 1.0)
    if by is not None:
        mending = session.execute(select(Revision).join(Run).where(Run.id == by)).scalar_one()
        words = f"as fast at {mending.short} as it was at {short(row.good)}" if row.good else f"by {mending.short}"
        regressions.change(session, row, Deed(Action.FIX, words=words, run_id=by), now)
    return by is not None


def _smallest(session: Session, row: RegressionRow, policy: Policy) -> float:
    """The smallest relevant change where the regression was found: short kernels need more."""
    then = select(VerdictRow.smallest).where(VerdictRow.run_id == row.run_id, VerdictRow.provider == row.provider)
    known = session.scalar(then.where(VerdictRow.case == row.case, VerdictRow.against == "parent"))
    return known if known is not None else policy.at(row.case).smallest_change


def _steps_since(session: Session, row: RegressionRow, ordinal: int) -> list[Step]:
    """The verdicts on the case of later revisions of the mainline, oldest first; the newest run of each counts.

    Where a person reopened what had been fixed, only what was measured after that.
    """
    base, direct = aliased(Revision), aliased(VerdictRow)
    beside = (
        direct.run_id == Run.id,
        direct.provider == row.provider,
        direct.case == row.case,
        direct.against.in_(["good", "slow"]),
        direct.baseline == row.good,
    )
    verdicts = (
        select(
            Run.id,
            Revision.ordinal,
            base.ordinal,
            VerdictRow.outcome,
            VerdictRow.ratio,
            direct.outcome,
            direct.ratio,
        )
        .join(Revision, Revision.id == Run.revision_id)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .outerjoin(base, and_(base.target_id == Run.target_id, base.sha == Run.baseline))
        .outerjoin(direct, and_(*beside))
        .where(Run.target_id == row.target_id, Run.device == row.device, Run.state == RunState.DONE)
        .where(WATCHED, Revision.ordinal > ordinal)
        .where(VerdictRow.provider == row.provider, VerdictRow.case == row.case, VerdictRow.against == "parent")
        .order_by(Revision.ordinal, Run.id)
    )
    if (reopened := regressions.fix_doubted_at(session, row)) is not None:
        verdicts = verdicts.where(Run.finished_at > reopened)
    return list(
        {
            place: Step(
                run_id, place, at, Outcome(outcome), ratio, Outcome(straight) if straight else None, straight_ratio
            )
            for run_id, place, at, outcome, ratio, straight, straight_ratio in session.execute(verdicts)
            if place is not None
        }.values()
    )


def note_gap(
    session: Session,
    run: Run,
    revision: Revision,
    verdict: VerdictRow,
    now: sota.Standing,
    name: str,
    parent_ratio: float | None,
    policy: Policy,
) -> str | None:
    """Keep since when the case of `verdict` is behind; returns the sentence to show when it is."""
    key = {"target_id": run.target_id, "device": run.device, "provider": verdict.provider, "case": verdict.case}
    values: dict[str, Any] = {
        "behind": now.behind,
        "last_run_id": run.id,
        "ratio_now": now.ratio,
        "own": now.own,
        "sota": now.sota,
        "stack_id": now.stack,
        "since_run_id": run.id if now.behind else None,
        "ratio_then": now.ratio if now.behind else None,
    }
    before = None
    if not inserted(session, Gap, tuple(key), {**key, **values}):
        gap = session.execute(select(Gap).filter_by(**key).with_for_update()).scalar_one()
        last = _revision_of(session, gap.last_run_id)
        if last.ordinal is not None and revision.ordinal is not None and last.ordinal > revision.ordinal:
            return None  # how an older revision stands is no news of how the case stands
        before = _standing(session, gap, last)
        if gap.behind and now.behind:
            values |= {"since_run_id": gap.since_run_id, "ratio_then": gap.ratio_then}
        session.execute(update(Gap).where(Gap.id == gap.id).values(values))
    return sota.told(now, before, name, parent_ratio, verdict.case, policy) if now.behind else None


def _standing(session: Session, gap: Gap, last: Revision) -> sota.Standing:
    since = _revision_of(session, gap.since_run_id).short if gap.since_run_id else None
    return sota.Standing(last.short, gap.ratio_now, gap.own, gap.sota, gap.stack_id, gap.behind, since)


def _revision_of(session: Session, run_id: int) -> Revision:
    return session.execute(select(Revision).join(Run).where(Run.id == run_id)).scalar_one()
