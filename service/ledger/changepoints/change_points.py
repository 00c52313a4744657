"""Queries of change points for pages, API and command line."""

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session, aliased, contains_eager

from service.db.models import ChangePoint, Revision, Series, Target
from service.domain.series import SeriesKey
from service.domain.states import PointState
from service.ledger.series import is_series
from service.reports.views import ChangePointView


def points(
    session: Session,
    target: Target,
    device: str | None = None,
    state: PointState | None = None,
    *,
    limit: int | None = None,
) -> list[ChangePointView]:
    """The change points of a target, newest revisions first."""
    which = [Series.target_id == target.id]
    if device is not None:
        which.append(Series.device == device)
    if state is not None:
        which.append(ChangePoint.state == state)
    return _pointed(session, *which, limit=limit)


def points_of(session: Session, target: Target, case: str, provider: str, device: str) -> list[ChangePointView]:
    """The change points of one series, newest first."""
    return _pointed(session, is_series(SeriesKey.of(target.id, device, provider, case)))


def _pointed(session: Session, *which: ColumnElement[bool], limit: int | None = None) -> list[ChangePointView]:
    before = aliased(Revision)
    rows = session.execute(
        select(ChangePoint, Target.name, Revision, before)
        .join(ChangePoint.series)
        .options(contains_eager(ChangePoint.series))
        .join(Target, Target.id == Series.target_id)
        .join(Revision, Revision.id == ChangePoint.revision_id)
        .join(before, before.id == ChangePoint.before_id)
        .where(*which)
        .order_by(Revision.committed_at.desc(), ChangePoint.id.desc())
        .limit(limit)
    )
    return [ChangePointView(*row) for row in rows]
