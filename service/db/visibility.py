"""Rows of targets that the reader may not know of are left out of every query that is made for that reader.

A session that serves somebody runs inside `hiding(...)`, so that no query needs a condition of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from sqlalchemy import BindParameter, Column, ColumnElement, bindparam, event, exists, true
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from service.db.models import (
    Account,
    ApiKey,
    AuditEntry,
    Base,
    ChannelHealth,
    Delivery,
    PolicyRow,
    RepeatableRequest,
    SignIn,
    Stack,
    StudyRecord,
    StudySession,
    Target,
    Worker,
    WriteProbe,
)

# Tables whose rows belong to no target.  Who reads them is decided where they are read: most are for administrators,
# a worker's run is looked up in `runs`, and stacks and policies are shared by whatever was measured with them.
OF_NO_TARGET: frozenset[type[Base]] = frozenset(
    {
        *(Account, ApiKey, AuditEntry, ChannelHealth, Delivery, PolicyRow, RepeatableRequest, SignIn, Stack),
        *(StudyRecord, StudySession, Worker, WriteProbe),
    }
)

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
        state.statement = state.statement.options(_CRITERIA)


# Read when a statement is executed, so that each condition below is compiled once for all readers.
_HIDDEN: BindParameter[Any] = bindparam("hidden_targets", callable_=_hidden.get, expanding=True)


def _visible(entity: Any) -> ColumnElement[bool]:
    """The condition on a table, or on an alias of it."""
    mapper = getattr(entity, "__mapper__", None)  # None for Base itself, with which SQLAlchemy calls this first
    if mapper is None or mapper.class_ in OF_NO_TARGET:
        return true()
    first, *rest = ways()[mapper.class_]
    key = getattr(entity, first.key)
    if rest:
        return ~_belongs_to_hidden(key, rest)
    shown: ColumnElement[bool] = key.not_in(_HIDDEN)
    return key.is_(None) | shown if first.nullable else shown


def _belongs_to_hidden(key: Any, way: Sequence[Column[Any]]) -> ColumnElement[bool]:
    """Whether the parent that `key` refers to belongs to a hidden target: one row of each table on the way is read."""
    first, *rest = way
    parent = first.table.alias()
    up = parent.c[first.name]
    hidden = _belongs_to_hidden(up, rest) if rest else up.in_(_HIDDEN)
    return exists().where(parent.c.id == key, hidden).correlate_except(parent)


# A function, because in a join SQLAlchemy leaves a ready condition without the alias of its table.  And a lambda around
# it: SQLAlchemy makes parameters of all globals that the function which it is given reads.
_CRITERIA = with_loader_criteria(
    Base, lambda entity: _visible(entity), include_aliases=True, track_closure_variables=False
)


@cache
def ways() -> dict[type[Base], tuple[Column[Any], ...]]:
    """The tables whose rows belong to a target, each with the foreign keys that lead from a row to its target.

    Raises TypeError for a table that has no such way and is not in `OF_NO_TARGET`.
    """
    every = {mapper.class_.__tablename__: mapper.class_ for mapper in Base.registry.mappers}
    found: dict[type[Base], tuple[Column[Any], ...]] = {Target: (Base.metadata.tables[Target.__tablename__].c.id,)}
    waiting = set(every.values()) - OF_NO_TARGET - {Target}
    while waiting:
        # Shortest ways first.  A key that may be null leads somewhere only in a table's own `target_id`.
        nearer = {table: way for table in waiting if (way := _way(table, every, found))}
        if not nearer:
            names = ", ".join(sorted(table.__tablename__ for table in waiting))
            raise TypeError(f"Nothing says to which target rows of these tables belong: {names}.")
        found |= nearer
        waiting -= nearer.keys()
    return found


def _way(
    table: type[Base], every: dict[str, type[Base]], found: dict[type[Base], tuple[Column[Any], ...]]
) -> tuple[Column[Any], ...]:
    columns = Base.metadata.tables[table.__tablename__].c
    if "target_id" in columns:
        return (columns.target_id,)
    for column in columns:
        for key in column.foreign_keys:
            parent = every[key.column.table.name]
            if parent in found and not column.nullable:
                return (column, *found[parent])
    return ()
