"""Shared by all documents: their base class, times, finite numbers and pages."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, WithJsonSchema
from sqlalchemy.orm import Mapper

from service.db.models import OfSeries

Item = TypeVar("Item")


def moment(seconds: float) -> datetime:
    """Convert seconds since the epoch to a UTC time; what no calendar can hold becomes the epoch."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def rfc3339(seconds: float) -> str:
    """Format seconds since the epoch as `2026-11-21T03:02:00.000Z`."""
    return moment(seconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(value: Any) -> Any:
    return moment(value) if isinstance(value, int | float) else value


Moment = Annotated[datetime, BeforeValidator(_moment)]
Number = float | None  # pydantic writes what is not finite as null

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
Instant = Annotated[datetime, BeforeValidator(_instant), WithJsonSchema({"type": "string", "format": "date-time"})]
Flag = Annotated[bool, Strict()]
Whole = Annotated[int, BeforeValidator(_number)]
Real = Annotated[float, BeforeValidator(_number)]


class Document(BaseModel):
    """Base of all documents; it can be validated from any object with the same attributes."""

    model_config = ConfigDict(from_attributes=True)


class Problem(BaseModel):
    """An error, and how to fix it (RFC 9457)."""

    type: str = Field("about:blank", description="`about:blank`: the status says what kind of problem it is.")
    title: str = Field(examples=["Not Found"])
    status: int
    detail: str = Field(description="What is wrong, and how to fix it.")
    instance: str | None = Field(None, description="The path of the request.")


class Page(BaseModel, Generic[Item]):
    """Part of a list; `next` is the cursor of the following page, null on the last."""

    items: list[Item]
    next: str | None = None


def json_text(document: BaseModel | Sequence[BaseModel]) -> str:
    """Format a document, or a list of documents, as indented JSON."""
    return TypeAdapter[Any](type(document)).dump_json(document, indent=2).decode()


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


class SourceItem(Document):
    """A definition in the files of the head.  `line` is that of the `def`, `first_line` that of its decorators."""

    file: str = Field(description="Relative to the top of the checkout.", examples=["norms/rms.py"])
    line: int
    first_line: int = Field(validation_alias="first")
    last_line: int = Field(validation_alias="last")
    changed: tuple[int, int] | None = Field(description="The first range of lines in it that the head changed.")


def without_tables(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts without their tables, which are lists of one row per kernel."""
    return {name: fact for name, fact in facts.items() if not _is_table(fact)}


def _is_table(fact: Any) -> bool:
    return isinstance(fact, list) and any(isinstance(one, Mapping) for one in fact)
