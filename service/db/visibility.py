"""Rows of targets that the reader may not know of are left out of every query that is made for that reader.

A session that serves somebody runs inside `hiding(...)`, so that no query needs a condition of its own.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, event, select
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from service.db.models import Base, OfSeries, Series, Target

_hidden: ContextVar[tuple[int, ...]] = ContextVar("hidden targets", default=())


@contextmanager
def hiding(target_ids: Iterable[int]) -> Iterator[None]:
    """Hide these targets, and all that belongs to them, from the queries of the block."""
    token = _hidden.set(tuple(sorted(target_ids)))
    try:
        yield
    finally:
        _hidden.reset(token)


@event.listens_for(Session, "do_orm_execute")
def _leave_out_hidden(state: ORMExecuteState) -> None:
    hidden = _hidden.get()
    if hidden and state.is_select and not state.is_column_load:
        options = [
            with_loader_criteria(table, _visible(table, hidden), include_aliases=True) for table in hidden_tables()
        ]
        state.statement = state.statement.options(*options)


@cache
def hidden_tables() -> tuple[type[Base], ...]:
    """Tables whose rows belong to a target; what belongs to a run is read through its run."""
    every = (mapper.class_ for mapper in Base.registry.mappers)
    return tuple(one for one in every if one is Target or issubclass(one, OfSeries) or "target_id" in one.__table__.c)


def _visible(table: Any, hidden: tuple[int, ...]) -> ColumnElement[bool]:
    """A condition on the attributes of the class, so that it follows an alias; columns of the table would not."""
    visible: ColumnElement[bool]
    if table is Target:
        visible = table.id.not_in(hidden)
    elif issubclass(table, OfSeries):
        series = Series.__table__.c
        visible = table.series_id.not_in(select(series.id).where(series.target_id.in_(hidden)))
    elif table.__table__.c.target_id.nullable:
        visible = table.target_id.is_(None) | table.target_id.not_in(hidden)
    else:
        visible = table.target_id.not_in(hidden)
    return visible
