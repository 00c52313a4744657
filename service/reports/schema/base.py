"""Shared by what makes documents of rows: columns, times, and what requests may send."""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Strict, WithJsonSchema
from sqlalchemy.orm import Mapper

from kernelwatch.documents.base import moment
from service.db.models import OfSeries
from service.domain.text import within_calendar

Made = TypeVar("Made", bound=BaseModel)


def rfc3339(seconds: float) -> str:
    """Format seconds since the epoch as `2026-11-21T03:02:00.000Z`."""
    return moment(seconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:(\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _instant(value: Any) -> Any:
    """Only a whole time with its zone: pydantic would also take numbers and times of no known zone."""
    found = _RFC3339.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("write a time with its zone, as in 2026-11-21T03:02:00Z")
    at = found.start(1)
    return value[:at] + "59" + value[at + 2 :] if found[1] == "60" else value  # a leap second


def _number(value: Any) -> Any:
    """Only a number: pydantic would also take its digits as text, and false for 0."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("write a number, without quotes")
    return value


# What requests send, as the OpenAPI describes it.
Instant = Annotated[
    datetime,
    BeforeValidator(_instant),
    AfterValidator(within_calendar),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
Flag = Annotated[bool, Strict()]
Whole = Annotated[int, BeforeValidator(_number)]
Real = Annotated[float, BeforeValidator(_number)]


def document_of(kind: type[Made], values: Mapping[str, Any]) -> Made:
    """A document of those values that are its fields: the columns of a row may be more."""
    return kind.model_validate({name: values[name] for name in kind.model_fields if name in values})


def columns(row: Any) -> dict[str, Any]:
    """Return the loaded columns of a row by name, with those of its series."""
    loaded, table = vars(row), row.__mapper__
    found = {name: loaded[name] for name in _column_names(table) if name in loaded}
    if isinstance(row, OfSeries):
        found |= {"device": row.device, "provider": row.provider, "case": row.case}
    return found


@cache
def _column_names(table: Mapper[Any]) -> tuple[str, ...]:
    return tuple(column.key for column in table.column_attrs)


def without_tables(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Facts without their tables, which are lists of one row per kernel."""
    return {name: fact for name, fact in facts.items() if not (isinstance(fact, list) and dict in map(type, fact))}
