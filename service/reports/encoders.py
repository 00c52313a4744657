"""Documents as rows of a table and as bytes of a file, part by part: CSV, JSON lines and Parquet.

Fields of inner documents get columns of their own, named `outer.inner`.  Lists and mappings stay one cell.
"""

import csv
import io
import json
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel
from pydantic_core import to_json

from service.domain.exports import FileFormat
from service.errors import Unavailable

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


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table as RFC 4180."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(columns)
    table.writerows([csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def text_of_cell(cell: str) -> str:
    """The text that `csv_cell` made a cell of."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


_ROW_GROUP = 50_000  # rows of Parquet that are kept until they are written together


class Encoder(Protocol):
    """Encodes documents of one kind; the file is what `rows` returned, one after the other, and then `end`."""

    def rows(self, documents: Sequence[BaseModel]) -> bytes:
        """The bytes that these add; there may be none yet."""

    def end(self) -> bytes:
        """The rest of the file."""


def encoder(form: FileFormat, kind: type[BaseModel], without: Collection[str] = ()) -> Encoder:
    """An encoder of documents of this kind, without some of their fields.

    Raises:
        Unavailable: If Parquet is wanted and pyarrow is not installed.
    """
    match form:
        case FileFormat.CSV:
            return _Csv(kind, without)
        case FileFormat.JSON:
            return _JsonLines(without)
        case FileFormat.PARQUET:
            return _Parquet(kind, without)


class _Csv:
    """RFC 4180: a line of names, then a line for each document."""

    def __init__(self, kind: type[BaseModel], without: Collection[str]) -> None:
        self._columns, self._without = flat_columns(kind, without), set(without)
        self._text = io.StringIO()
        self._table = csv.writer(self._text)
        self._table.writerow([one.name for one in self._columns])

    def rows(self, documents: Sequence[BaseModel]) -> bytes:
        for one in documents:
            document = one.model_dump(mode="json", exclude=self._without)
            self._table.writerow([csv_cell(column.value(document)) for column in self._columns])
        return self.end()

    def end(self) -> bytes:
        text = self._text.getvalue()
        self._text.seek(0)
        self._text.truncate()
        return text.encode()


class _JsonLines:
    """A JSON object in each line."""

    def __init__(self, without: Collection[str]) -> None:
        self._without = set(without)

    def rows(self, documents: Sequence[BaseModel]) -> bytes:
        return b"".join(one.model_dump_json(exclude=self._without).encode() + b"\n" for one in documents)

    def end(self) -> bytes:
        return b""


class _Parquet:
    """Row groups of typed columns.  Mappings and lists of documents are JSON, because their fields may differ."""

    def __init__(self, kind: type[BaseModel], without: Collection[str]) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ModuleNotFoundError as missing:
            raise Unavailable(
                f"Parquet needs the module {missing.name}: install it with pip install 'kernelwatch[server]', or from "
                "requirements.txt; or choose the format csv or json."
            ) from None
        self._columns, self._without = flat_columns(kind, without), set(without)
        self._schema = pyarrow.schema([(one.name, _arrow_type(one.annotation)) for one in self._columns])
        self._as_json = {column for column in self._columns if _is_json(column.annotation)}
        self._batch = partial(pyarrow.RecordBatch.from_pylist, schema=self._schema)
        self._table = partial(pyarrow.Table.from_batches, schema=self._schema)
        self._sink = _Sink()
        self._writer: Any = parquet.ParquetWriter(self._sink, self._schema, compression="zstd")
        self._waiting: list[Any] = []

    def rows(self, documents: Sequence[BaseModel]) -> bytes:
        self._waiting.append(self._batch([self._row(one) for one in documents]))
        if sum(len(one) for one in self._waiting) >= _ROW_GROUP:
            self._write()
        return self._sink.take()

    def end(self) -> bytes:
        self._write()
        self._writer.close()
        return self._sink.take()

    def _write(self) -> None:
        if any(len(one) for one in self._waiting):
            self._writer.write_table(self._table(self._waiting), row_group_size=2 * _ROW_GROUP)
        self._waiting.clear()

    def _row(self, one: BaseModel) -> dict[str, Any]:
        document = one.model_dump(exclude=self._without)
        return {column.name: self._cell(column, column.value(document)) for column in self._columns}

    def _cell(self, column: FlatColumn, value: Any) -> Any:
        return value if value is None or column not in self._as_json else to_json(value).decode()


class _Sink(io.RawIOBase):
    """A file whose bytes are taken away while it is written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._length += len(part)
        return len(part)

    def tell(self) -> int:
        return self._length

    def take(self) -> bytes:
        """The bytes written since the last call."""
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken


def _arrow_type(annotation: Any) -> Any:
    import pyarrow

    plain = _without_none(annotation)
    if typing.get_origin(plain) is list and (inner := _scalar(typing.get_args(plain)[0])) is not None:
        return pyarrow.list_(inner)
    return _scalar(plain) or pyarrow.string()


def _scalar(annotation: Any) -> Any:
    """The type of a single value; None for anything else."""
    import pyarrow

    plain = _without_none(annotation)
    if not isinstance(plain, type):
        return None
    by_class = (
        (bool, pyarrow.bool_()),
        (int, pyarrow.int64()),
        (float, pyarrow.float64()),
        (str, pyarrow.string()),
        (datetime, pyarrow.timestamp("us", tz="UTC")),
    )
    return next((found for one, found in by_class if issubclass(plain, one)), None)


def _is_json(annotation: Any) -> bool:
    plain = _without_none(annotation)
    if typing.get_origin(plain) is list:
        return _scalar(typing.get_args(plain)[0]) is None
    return _scalar(plain) is None


def _without_none(annotation: Any) -> Any:
    """`int` of `Annotated[int | None, …]`."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = [one for one in typing.get_args(annotation) if one is not types.NoneType]
        if len(kinds) == 1 or str in kinds:  # an enumeration, or text that is none of its values
            return _without_none(kinds[-1])
    return annotation
