"""What stands on the mainline until somebody mends it: regressions, and the gaps to SOTA.

Revisions may be measured in any order, and again: what counts is their place on the mainline.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, or_, select, update
from sqlalchemy.orm import Session, aliased

from service import sota
from service.ledger import queue
from service.ledger.once import inserted
from service.models import WATCHED, Gap, RegressionRow, RegressionState, Revision, Run, RunState, VerdictRow
from service.policy import Policy
from service.verdicts import CHANGES, Outcome, Verdict


@dataclass(frozen=True)
class Step:
    """What one mainline revision did to a case.  Ordinals are places on the mainline."""

    run_id: int
    ordinal: int
    baseline: int | None
    outcome: Outcome
    ratio: float | None


def note_regressions(session: Session, run: Run, judged: Mapping[tuple[str, str], Verdict], policy: Policy) -> None:
    """Open a record for each confirmed regression of this mainline run, and close those that are mended."""
    now = queue.clock(session)
    for (provider, case), verdict in judged.items():
        if verdict.outcome is Outcome.REGRESSION and verdict.comparison:
            row = RegressionRow(target_id=run.target_id, device=run.device, provider=provider, case=case, run_id=run.id)
            row.ratio, row.opened_at = verdict.comparison.ratio, now
            if not _recorded(session, run, row, policy.at(case)):
                session.add(row)
    open_ones = (
        select(RegressionRow, Revision.ordinal)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision)
        .where(RegressionRow.target_id == run.target_id, RegressionRow.device == run.device)
        .where(RegressionRow.state == RegressionState.OPEN)
    )
    for row, ordinal in session.execute(open_ones).all():
        if (row.provider, row.case) not in judged:
            continue
        # Whose revision left the mainline when that was rewritten is open no longer: its successor has its own record.
        limits = policy.at(row.case)
        by = run.id if ordinal is None else mended_by(_steps_since(session, row, ordinal), ordinal, row.ratio, limits)
        if by is not None:
            row.state, row.fixed_at, row.fixed_by = RegressionState.FIXED, now, by


def _recorded(session: Session, run: Run, row: RegressionRow, policy: Policy) -> bool:
    """Was this regression recorded already: by this revision, or by one that was passed over as its baseline?"""
    same_baseline = and_(
        Run.baseline == run.baseline,
        Revision.ordinal.is_not(None),
        RegressionRow.state == RegressionState.OPEN,
        RegressionRow.ratio * (1 + policy.smallest_change) >= row.ratio,
    )
    known = (
        select(RegressionRow.id)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision)
        .where(RegressionRow.target_id == row.target_id, RegressionRow.device == row.device)
        .where(RegressionRow.provider == row.provider, RegressionRow.case == row.case)
        .where(or_(Run.revision_id == run.revision_id, same_baseline))
    )
    return session.execute(known.limit(1)).first() is not None


def _steps_since(session: Session, row: RegressionRow, ordinal: int) -> list[Step]:
    """The verdicts on the case of later revisions of the mainline, oldest first; the newest run of each counts."""
    base = aliased(Revision)
    verdicts = (
        select(Run.id, Revision.ordinal, base.ordinal, VerdictRow.outcome, VerdictRow.ratio)
        .join(Revision, Revision.id == Run.revision_id)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .outerjoin(base, and_(base.target_id == Run.target_id, base.sha == Run.baseline))
        .where(Run.target_id == row.target_id, Run.device == row.device, Run.state == RunState.DONE)
        .where(WATCHED, Revision.ordinal > ordinal)
        .where(VerdictRow.provider == row.provider, VerdictRow.case == row.case, VerdictRow.against == "parent")
        .order_by(Revision.ordinal, Run.id)
    )
    return list(
        {
            place: Step(run_id, place, baseline, Outcome(outcome), ratio)
            for run_id, place, baseline, outcome, ratio in session.execute(verdicts)
            if place is not None
        }.values()
    )


def mended_by(steps: Sequence[Step], opened: int, ratio: float, policy: Policy) -> int | None:
    """The first run after which a regression of `ratio`, opened at the ordinal `opened`, is gone.  Pure.

    Each step multiplies what its baseline stood at, so that several small improvements mend one large regression, and
    a baseline from before the regression counts as 1.
    """
    ordinals, nets = [opened], [ratio]
    for step in steps:
        net = nets[-1]  # also after a baseline that left the mainline
        if step.baseline is not None and step.outcome in (Outcome.STEADY, *CHANGES):
            before = bisect_right(ordinals, step.baseline)  # revisions that were not measured changed nothing
            net = nets[before - 1] if before else 1.0
        if step.outcome in CHANGES:
            net *= step.ratio or 1.0
        if net <= 1 + policy.smallest_change:
            return step.run_id
        ordinals.append(step.ordinal)
        nets.append(net)
    return None


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
