"""Rows of targets that the reader may not know of are left out of every query that is made for that reader.

A session that serves somebody runs inside `hiding(...)`, so that no query needs a condition of its own.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, bindparam, event, select
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.sql.base import ExecutableOption

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
    if _hidden.get() and state.is_select and not state.is_column_load:
        state.statement = state.statement.options(*_criteria())


# Read when a statement is executed, so that each condition below is compiled once for all readers.
_HIDDEN: BindParameter[Any] = bindparam("hidden_targets", callable_=_hidden.get, expanding=True)
_SERIES = Series.__table__.c


@cache
def _criteria() -> tuple[ExecutableOption, ...]:
    """The conditions of all tables, as functions: in a join, SQLAlchemy leaves other conditions without their alias."""
    return tuple(
        with_loader_criteria(table, _visible(table), include_aliases=True, track_closure_variables=False)
        for table in hidden_tables()
    )


@cache
def hidden_tables() -> tuple[type[Base], ...]:
    """Tables whose rows belong to a target; what belongs to a run is read through its run."""
    every = (mapper.class_ for mapper in Base.registry.mappers)
    return tuple(
        table for table in every if table is Target or issubclass(table, OfSeries) or "target_id" in table.__table__.c
    )


def _visible(table: Any) -> Callable[[Any], ColumnElement[bool]]:
    """The condition on a table or on an alias of it."""
    if table is Target:
        return lambda entity: entity.id.not_in(_HIDDEN)
    if issubclass(table, OfSeries):
        hidden = select(_SERIES.id).where(_SERIES.target_id.in_(_HIDDEN))
        return lambda entity: entity.series_id.not_in(hidden)
    if table.__table__.c.target_id.nullable:
        return lambda entity: entity.target_id.is_(None) | entity.target_id.not_in(_HIDDEN)
    return lambda entity: entity.target_id.not_in(_HIDDEN)
