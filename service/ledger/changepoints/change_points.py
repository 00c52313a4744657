"""Queries of change points for pages, API and command line."""

from collections.abc import Collection
from dataclasses import asdict

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session, aliased, contains_eager

from service.db.models import ChangePoint, Revision, Series, Target
from service.db.paging import ResultPage, paged_rows
from service.domain.series import SeriesKey
from service.domain.states import PointState
from service.ledger.series import IS_SERIES
from service.reports.views import ChangePointView

_NEWEST = (Revision.committed_at, ChangePoint.id)


def points(
    session: Session,
    target: Target | None,
    device: str | None = None,
    state: PointState | None = None,
    *,
    where: Collection[ColumnElement[bool]] = (),
    cursor: str | None = None,
    limit: int = 50,
) -> ResultPage[ChangePointView]:
    """The change points of a target or of all, newest revisions first."""
    which = [*where]
    if target is not None:
        which.append(Series.target_id == target.id)
    if device is not None:
        which.append(Series.device == device)
    if state is not None:
        which.append(ChangePoint.state == state)
    page = paged_rows(session, _with_revisions(*which), _NEWEST, cursor, limit)
    return page.shown_as(lambda row: ChangePointView(*row[:4]))


def points_of(session: Session, target: Target, case: str, provider: str, device: str) -> list[ChangePointView]:
    """The change points of one series, newest first."""
    key = SeriesKey.of(target.id, device, provider, case)
    return [ChangePointView(*row) for row in session.execute(_OF_SERIES, asdict(key))]


def _with_revisions(*which: ColumnElement[bool]) -> Select[ChangePoint, str, Revision, Revision]:
    before = aliased(Revision)
    return (
        select(ChangePoint, Target.name, Revision, before)
        .join(ChangePoint.series)
        .options(contains_eager(ChangePoint.series))
        .join(Target, Target.id == Series.target_id)
        .join(Revision, Revision.id == ChangePoint.revision_id)
        .join(before, before.id == ChangePoint.before_id)
        .where(*which)
    )


_OF_SERIES = _with_revisions(IS_SERIES).order_by(*(key.desc() for key in _NEWEST))  # made once: that takes longest
