"""Distinct values of a column, by a probe of an index for each of them: DISTINCT would read all rows."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import InstrumentedAttribute


def distinct(
    column: InstrumentedAttribute[Any],
    *where: ColumnElement[bool],
    only: Callable[[ColumnElement[Any]], ColumnElement[bool]] | None = None,
) -> Select[Any]:
    """A query for the values of a column in the rows that fit, in order; `only` is a further condition on each value.

    An index must begin with the columns of the conditions, and then have this one.
    """
    values = select(func.min(column).label("value")).where(*where).cte("walked", recursive=True)
    following = select(func.min(column)).where(*where, column > values.c.value).correlate(values).scalar_subquery()
    values = values.union_all(select(following).where(values.c.value.is_not(None)))
    wanted = [values.c.value.is_not(None)] + ([only(values.c.value)] if only else [])
    return select(values.c.value).where(*wanted).order_by(values.c.value)
