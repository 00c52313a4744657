"""Read large tables in small steps: pages by the keys of their last row, and distinct values by probes of an index.

`filtered` keeps SQLite from another way to the rows.
"""

import base64
import binascii
import enum
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Select, func, select, tuple_
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from service.db.models import storable
from service.errors import BadInput

Row = TypeVar("Row")
Shown = TypeVar("Shown")
SortKey = InstrumentedAttribute[Any] | ColumnElement[Any]
MAX_CURSOR = 1000  # characters


class filtered(FunctionElement[Any]):  # noqa: N801  # it is used like a function
    """A column whose condition only filters rows that another table or index leads to.

    Of a join from revisions to their runs SQLite would else take the runs first, by an index that fits thousands of
    them.  PostgreSQL knows how many rows fit.
    """

    inherit_cache = True

    def __init__(self, column: SortKey) -> None:
        super().__init__(column)
        self.type = column.type


@compiles(filtered)
def _as_it_is(element: filtered, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(filtered, "sqlite")
def _without_index(element: filtered, compiler: SQLCompiler, **options: Any) -> str:
    return "+" + compiler.process(element.clauses, **options)


@dataclass(frozen=True)
class ResultPage(Generic[Row]):
    """A page of results, and the cursor of the next page."""

    items: tuple[Row, ...]
    next: str | None

    def shown_as(self, show: Callable[[Row], Shown]) -> "ResultPage[Shown]":
        """The page with something made of each of its items."""
        return ResultPage(tuple(show(item) for item in self.items), self.next)


def paged(
    session: Session,
    statement: Select[Row],
    keys: Sequence[SortKey],
    cursor: str | None,
    limit: int,
    *,
    ascending: bool = False,
) -> ResultPage[Row]:
    """The page of what the statement selects first after `cursor`, largest keys first unless `ascending`."""
    page = paged_rows(session, statement, keys, cursor, limit, ascending=ascending)
    return replace(page, items=tuple(row[0] for row in page.items))


def paged_rows(
    session: Session,
    statement: Select[*tuple[Any, ...]],
    keys: Sequence[SortKey],
    cursor: str | None,
    limit: int,
    *,
    ascending: bool = False,
) -> ResultPage[Any]:
    """The page of rows after `cursor`, largest keys first unless `ascending`.

    The keys must be unique together and never null.  Each row has the keys as its last columns.
    """
    if cursor:
        place, last = tuple_(*keys), tuple_(*_read_cursor(cursor, [key.type.python_type for key in keys]))
        statement = statement.where(place > last if ascending else place < last)
    order = [key.asc() if ascending else key.desc() for key in keys]
    rows = session.execute(statement.add_columns(*keys).order_by(*order).limit(limit + 1)).all()
    more = len(rows) > limit
    return ResultPage(tuple(rows[:limit]), cursor_of(rows[limit - 1][-len(keys) :]) if more else None)


def page_of_values(
    values: Iterable[Row], key: Callable[[Row], tuple[str | int, ...]], cursor: str | None, limit: int
) -> ResultPage[Row]:
    """The page of values after `cursor`, smallest keys first, where a query cannot make the page."""
    ordered = sorted(values, key=key)
    if cursor and ordered:
        last = tuple(_read_cursor(cursor, [type(part) for part in key(ordered[0])]))
        ordered = [value for value in ordered if key(value) > last]
    more = len(ordered) > limit
    return ResultPage(tuple(ordered[:limit]), cursor_of(key(ordered[limit - 1])) if more else None)


def cursor_of(values: Iterable[Any]) -> str:
    """The cursor of a row with these keys: the page after it begins below them."""
    text = json.dumps(list(values), ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_cursor(cursor: str, kinds: Sequence[type]) -> list[Any]:
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        values = None
    sound = isinstance(values, list) and len(values) == len(kinds)
    if not sound or not all(_fits(value, kind) for value, kind in zip(values, kinds, strict=True)):
        raise BadInput(f"{cursor!r} is not a cursor of this list; use `next` of the page before, or none.")
    return list(values)


def _fits(value: Any, wanted: type) -> bool:
    """Whether the database can compare the value with the key; PostgreSQL refuses a number where text is due."""
    if issubclass(wanted, enum.Enum | str):
        return isinstance(value, str) and storable(value) == value
    whole = type(value) is int and abs(value) < 2**63
    return whole or (wanted is float and isinstance(value, float) and math.isfinite(value))


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
