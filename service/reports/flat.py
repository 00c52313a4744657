"""Documents as rows of a table: its columns, and cells of CSV that no spreadsheet takes for formulas.

Fields of inner documents get columns of their own, named `outer.inner`.  Lists and mappings stay one cell.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

# Spreadsheets run a text that begins so, and much text here is written by strangers: subjects, branches, reasons.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


@dataclass(frozen=True)
class FlatColumn:
    """A column: where its value is in a document, and the annotation of the field."""

    path: tuple[str, ...]
    annotation: Any

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def value(self, document: Mapping[str, Any]) -> Any:
        """Its value in a dumped document; None if the document has no such field."""
        found: Any = document
        for part in self.path:
            if not isinstance(found, Mapping):
                return None
            found = found.get(part)
        return found


def flat_columns(kind: "type[BaseModel]", without: Collection[str] = ()) -> tuple[FlatColumn, ...]:
    """The columns of documents of a kind, in the order of its fields; `without` names fields to leave out."""
    return tuple(one for one in _columns(kind, ()) if one.path[0] not in without)


def _columns(kind: "type[BaseModel]", path: tuple[str, ...]) -> Iterator[FlatColumn]:
    from pydantic import BaseModel

    for name, field in kind.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _columns(inner, (*path, name))
        else:
            yield FlatColumn((*path, name), inner)


def csv_cell(value: Any) -> str:
    """A value as a cell: JSON for a flag, a list or a mapping, and nothing for None.

    A text that a spreadsheet would take for a formula gets an apostrophe; `text_of_cell` removes it.
    """
    match value:
        case None:
            return ""
        case str():
            return f"'{value}" if _FORMULA.match(value) else value
        case bool() | list() | dict():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)


def text_of_cell(cell: str) -> str:
    """The text that `csv_cell` made a cell of."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
