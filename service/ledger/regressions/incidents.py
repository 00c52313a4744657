"""Incidents: the regressions of many cases that one event caused."""

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Incident, RegressionRow, Revision, Run
from service.domain.regressions.lifecycle import NEAR, Member, common_cause, is_over, one_event
from service.domain.states import FoundBy


def incident_for(
    session: Session, run: Run, revision: Revision, found_by: FoundBy, culprit: str | None, now: float
) -> int:
    """The open incident that a regression of `revision` belongs to, or a new one.  The caller holds the lock."""
    here = select(Incident, Revision.ordinal).join(Revision, Revision.id == Incident.revision_id)
    near = Incident.revision_id == revision.id
    if revision.ordinal is not None:
        near |= Revision.ordinal.between(revision.ordinal - NEAR, revision.ordinal + NEAR)
    open_ones = session.execute(
        here.where(Incident.target_id == run.target_id, Incident.device == run.device)
        .where(Incident.closed_at.is_(None), near)
        .order_by(Incident.id)
    )
    for incident, place in open_ones.all():
        kinds, culprits = _kinds_and_culprits(session, incident.id)
        same = incident.revision_id == revision.id
        if found_by in kinds and (same or one_event(revision.ordinal, culprit, place, culprits)):
            if revision.ordinal is not None and place is not None and revision.ordinal < place:
                incident.revision_id = revision.id
            return int(incident.id)
    made = Incident(target_id=run.target_id, device=run.device, revision_id=revision.id, opened_at=now)
    session.add(made)
    session.flush()
    return made.id


def _kinds_and_culprits(session: Session, incident_id: int) -> tuple[set[FoundBy], list[str]]:
    known = session.execute(
        select(RegressionRow.found_by, RegressionRow.culprit).where(RegressionRow.incident_id == incident_id).distinct()
    ).all()
    return {kind for kind, _ in known}, [culprit for _, culprit in known if culprit is not None]


def settle(session: Session, ids: Iterable[int | None], now: float) -> None:
    """Close the incidents without an open regression, reopen those with one, and store their common cause."""
    session.flush()
    for incident_id in sorted({one for one in ids if one is not None}):
        incident = session.get_one(Incident, incident_id, populate_existing=True)
        rows = select(RegressionRow.state, RegressionRow.ratio, RegressionRow.cause_kind, RegressionRow.cause_text)
        members = [Member(*row) for row in session.execute(rows.where(RegressionRow.incident_id == incident_id))]
        incident.closed_at = (incident.closed_at or now) if is_over(members) else None
        cause = common_cause(members)
        incident.cause_kind, incident.cause_text = (cause.cause, cause.why) if cause else (None, None)
