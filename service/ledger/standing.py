"""What stands on the mainline until somebody mends it: regressions, and the gaps to SOTA.

Revisions may be measured in any order, and again: what counts is their place on the mainline.
"""

from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service import sota
from service.ledger import incidents, mended, openings, queue
from service.ledger.once import inserted, lock
from service.models import (
    Gap,
    Revision,
    Run,
    VerdictRow,
)
from service.policy import Policy


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
    touched |= {row.incident_id for row in mended.over(session, run, judged, policy, now)}
    incidents.settle(session, touched, now)


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
