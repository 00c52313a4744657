"""What a command prints, as a value: a document of the API, and how people read it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

    from kernelwatch.client import Page

T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table for people."""

    title: str
    text: Callable[[T], str]
    style: Callable[[T], str] | None = None  # a style of Rich, or ""
    right: bool = False  # for numbers
    spare: int = 0  # in a narrow terminal the column with the highest is left out first; 0 always stays
    folds: bool = False  # over several lines where there is no room
    below: bool = False  # in a narrow terminal it gets lines of its own under its row


@dataclass(frozen=True)
class Sentence:
    """A sentence; a part may be `(text, style)`."""

    parts: tuple[str | tuple[str, str], ...]

    def __str__(self) -> str:
        return "".join(part if isinstance(part, str) else part[0] for part in self.parts)


@dataclass(frozen=True)
class Table(Generic[T]):
    """Documents as rows.  `kind` names the columns of CSV, even if there are no rows."""

    kind: type[T]
    rows: Sequence[T]
    columns: Sequence[Column[T]]
    title: str = ""


def text(*parts: str | tuple[str, str]) -> Sentence:
    """Return a sentence."""
    return Sentence(parts)


def minute(moment: datetime | None) -> str:
    """`2026-11-21 03:02`, in UTC; empty for none."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def day(moment: datetime | None) -> str:
    """`2026-11-21`, in UTC; empty for none."""
    return minute(moment)[:10]


def more(limit: int | None, following: str | None) -> list[Sentence]:
    """What to do if a list has more than the `limit` that was asked for."""
    return [text(f"These are the first {limit}; --limit shows more.")] if limit is not None and following else []


Part = Sentence | Table[Any]


class Columns(Generic[T]):
    """How documents of a kind are printed as a table; `empty` is said of a list without any."""

    def __init__(self, kind: type[T], *columns: Column[T], empty: str = "") -> None:
        self.kind, self.columns, self.empty = kind, columns, empty

    def table(self, rows: Sequence[T], title: str = "") -> Table[T]:
        """These documents as rows."""
        return Table(self.kind, rows, self.columns, title)

    def page(self, page: "Page[T]", limit: int | None = None, *, over: bool = True) -> "View":
        """A list, of which at most `limit` items were asked for."""
        notes = more(limit, page.next) if page.items else [text(self.empty)]
        return View(page, (self.table(page.items), *notes), over=over)


@dataclass(frozen=True)
class View:
    """What a command prints.

    JSON is the document as the API gives it.  CSV is the first table with all fields of its documents, or the document
    as one row.  Table and Markdown show the parts.  `texts` has what is written otherwise by format: the Markdown of a
    comment, or formats that other views do not have.
    """

    document: "BaseModel | Sequence[BaseModel]"
    parts: Sequence[Part] = ()
    code: int = 0  # the exit code
    texts: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    over: bool = True  # nothing will change any more, so that `--watch` ends
    table: Table[Any] | None = field(default=None)  # of CSV, if it is not the first one shown

    @property
    def rows(self) -> "tuple[type[BaseModel], Sequence[BaseModel]]":
        """The documents of CSV, and their class."""
        shown = self.table or next((part for part in self.parts if isinstance(part, Table)), None)
        if shown is not None:
            return shown.kind, shown.rows
        documents = list(self.document) if isinstance(self.document, Sequence) else [self.document]
        return type(documents[0]), documents
