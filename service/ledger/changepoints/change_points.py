"""Queries about change points.  The scan itself is `service.ledger.changepoints.scan`, which loads far more."""

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session, aliased

from service.db.models import ChangePoint, Revision, Target
from service.domain.states import PointState
from service.reports.views import Pointed


def points(
    session: Session,
    target: Target,
    device: str | None = None,
    state: PointState | None = None,
    *,
    most: int | None = None,
) -> list[Pointed]:
    """The change points of a target, those of the newest revisions first; at most so many."""
    which = [ChangePoint.target_id == target.id]
    if device is not None:
        which.append(ChangePoint.device == device)
    if state is not None:
        which.append(ChangePoint.state == state)
    return _pointed(session, *which, most=most)


def points_of(session: Session, target: Target, case: str, provider: str, device: str) -> list[Pointed]:
    """The change points of one series, the newest first."""
    series = ChangePoint.case == case, ChangePoint.provider == provider, ChangePoint.device == device
    return _pointed(session, ChangePoint.target_id == target.id, *series)


def _pointed(session: Session, *which: ColumnElement[bool], most: int | None = None) -> list[Pointed]:
    before = aliased(Revision)
    rows = session.execute(
        select(ChangePoint, Target.name, Revision, before)
        .join(Target, Target.id == ChangePoint.target_id)
        .join(Revision, Revision.id == ChangePoint.revision_id)
        .join(before, before.id == ChangePoint.before_id)
        .where(*which)
        .order_by(Revision.committed_at.desc(), ChangePoint.id.desc())
        .limit(most)
    )
    return [Pointed(*row) for row in rows]
