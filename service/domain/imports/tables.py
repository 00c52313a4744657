"""CSV files as rows: every cell knows its line and column, so that an error can name it."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.domain.imports.trees import decoded
from service.domain.imports.values import Amount, ImportFile
from service.domain.states import Missing
from service.errors import BadInput

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_WORDS = {
    **dict.fromkeys(("", "null", "none", "-", "n/a"), Missing.NULL),
    **dict.fromkeys(("nan", "inf", "+inf", "-inf", "infinity"), Missing.NOT_A_NUMBER),
    **dict.fromkeys(("oom", "cuda oom", "out of memory"), Missing.OUT_OF_MEMORY),
    **dict.fromkeys(("fail", "failed", "error", "timeout"), Missing.FAILED),
}


@dataclass(frozen=True)
class CsvRow:
    """A row of a table.  Methods raise BadInput that names the file, the line and the column."""

    file: str
    line: int
    cells: dict[str, str]

    def wrong(self, column: str, why: str) -> BadInput:
        return BadInput(f"{self.file}: line {self.line}, column {column}: {why}")

    def amount(self, column: str) -> Amount:
        """A number, with what it varies by in brackets; or why there is none."""
        written = self.cells[column].strip()
        if written.endswith(")"):  # `0.0081 (±0.8%)`
            written = written.partition("(")[0].rstrip()
        if (missing := _WORDS.get(written.lower())) is not None:
            return missing
        if not _NUMBER.fullmatch(written):
            raise self.wrong(column, f"{written[:80]!r} is no number.")
        return float(written)


@dataclass(frozen=True)
class CsvTable:
    """The columns of a CSV file, and its rows one after another."""

    columns: Sequence[str]
    rows: Iterator[CsvRow]


def table(source: ImportFile, wanted: Sequence[str] = ()) -> CsvTable:
    """A CSV file, separated by semicolons if its first line has one.

    Raises:
        BadInput: If it has no header, or lacks a wanted column.
    """
    content = decoded(source.name, source.content)
    lines = _lines(source.name, content, ";" if ";" in content.partition("\n")[0] else ",")
    columns = [name.strip() for name in next(lines, (1, []))[1]]
    for column in wanted:
        if column not in columns:
            raise BadInput(f"{source.name}: line 1: there is no column {column}.")
    if len(columns) < 2 or len(set(columns)) < len(columns):
        raise BadInput(f"{source.name}: line 1: expected the names of two or more columns, each of them once.")
    return CsvTable(columns, _rows(source.name, columns, lines))


def _lines(file: str, content: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise BadInput(f"{file}: line {reader.line_num}: it is not CSV: {error}.") from None


def _rows(file: str, columns: Sequence[str], lines: Iterator[tuple[int, list[str]]]) -> Iterator[CsvRow]:
    for line, cells in lines:
        if cells and len(cells) != len(columns):
            raise BadInput(f"{file}: line {line}: {len(cells)} cells for {len(columns)} columns.")
        if cells:
            yield CsvRow(file, line, dict(zip(columns, cells, strict=True)))
