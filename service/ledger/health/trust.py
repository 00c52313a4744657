"""How much comparisons of equal code differed, by night: what a measurement here is worth."""

from collections.abc import Sequence

from sqlalchemy import BindParameter, Float, Integer, bindparam, cast, func, select
from sqlalchemy.orm import Session

from service.db.models import CalibrationTotals
from service.reports.health.facts import EqualCodeSum

NIGHTS = 30
DAY_S = 86_400.0


_now: BindParameter[float] = bindparam("now", type_=Float)
_ago = cast((_now - CalibrationTotals.at) / DAY_S, Integer)
_BY_NIGHT = (
    select(
        _ago,
        func.sum(CalibrationTotals.comparisons),
        func.sum(CalibrationTotals.alarmed),
        func.sum(CalibrationTotals.squares),
    )
    .where(CalibrationTotals.at > bindparam("since"), CalibrationTotals.at <= _now)
    .group_by(_ago)
)


def by_night(session: Session, now: float) -> Sequence[EqualCodeSum]:
    """The last `NIGHTS` days, oldest first; one without comparisons is empty."""
    rows = session.execute(_BY_NIGHT, {"now": now, "since": now - NIGHTS * DAY_S})
    found = {days: EqualCodeSum(comparisons, alarmed, squares) for days, comparisons, alarmed, squares in rows}
    return [found.get(days, EqualCodeSum()) for days in reversed(range(NIGHTS))]
