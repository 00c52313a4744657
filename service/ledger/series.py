"""The ids of series.  A series gets its row with the first thing that is stored of it."""

from collections.abc import Collection
from dataclasses import asdict

from sqlalchemy import ColumnElement, and_, bindparam, select
from sqlalchemy.orm import Session

from service.db.models import Series
from service.domain.series import SeriesKey
from service.ledger.locking import insert_if_absent, lock

# The condition for a query that joins `Series`; its parameters are the fields of a key.
IS_SERIES = and_(
    Series.target_id == bindparam("target_id"),
    Series.device == bindparam("device"),
    Series.provider == bindparam("provider"),
    Series.case == bindparam("case"),
    Series.metric == bindparam("metric"),
)


def on_device(target_id: int, device: str) -> ColumnElement[bool]:
    """The condition for all series of a target on a device, in a query that joins `Series`."""
    return and_(Series.target_id == target_id, Series.device == device)


def series_of(session: Session, key: SeriesKey) -> int:
    """The id of a series; the row is inserted if it is absent."""
    return series_ids(session, [key])[key]


def series_ids(session: Session, keys: Collection[SeriesKey]) -> dict[SeriesKey, int]:
    """The ids of several series; absent rows are inserted."""
    known = _known(session, keys)
    absent = sorted(key for key in set(keys) if key not in known)
    # Two transactions that insert the same series wait for each other.  Each takes the target's lock first: otherwise
    # one could wait for the lock while the other, which holds it, waits for a series of the first.
    for target_id in sorted({key.target_id for key in absent}):
        lock(session, target_id)
    for key in absent:
        insert_if_absent(session, Series, tuple(asdict(key)), asdict(key))
    return _known(session, keys) if absent else known


def _known(session: Session, keys: Collection[SeriesKey]) -> dict[SeriesKey, int]:
    rows = session.execute(
        select(Series.id, Series.target_id, Series.device, Series.provider, Series.case, Series.metric)
        .where(Series.target_id.in_({key.target_id for key in keys}), Series.device.in_({key.device for key in keys}))
        .where(Series.case.in_({key.case for key in keys}))
    )
    found = {SeriesKey(*row[1:]): row[0] for row in rows}
    return {key: found[key] for key in keys if key in found}
