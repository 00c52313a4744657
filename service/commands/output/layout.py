"""Tables that fit the width of a terminal.  Text from elsewhere can neither colour nor move anything."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from service.commands.output.views import Column, Sentence, Table
from service.domain.text import listed, printable

GAP = 2  # spaces between columns
MIN_FOLDED = 24  # a column that folds is not made narrower while another one can be left out
MIN_CUT = 8  # where nothing else can give way, as in half a terminal
INDENT = "  "
_WRAPPING = Console(width=80)  # Rich asks for one; the width is passed


def lines(parts: Sequence[Sentence | Table[Any]], width: int) -> Iterator[Text]:
    """Return the lines of a view, none wider than `width` unless a single word is."""
    last: Sentence | Table[Any] | None = None
    for part in parts:
        if last is not None and (isinstance(part, Table) or isinstance(last, Table)):
            yield Text()
        if isinstance(part, Table):
            yield from _table(part, width)
        else:
            yield from _wrapped(_text(part), width)
        last = part


def _text(line: Sentence) -> Text:
    parts = (printable(one) if isinstance(one, str) else (printable(one[0]), one[1]) for one in line.parts)
    return Text.assemble(*parts)


def _wrapped(text: Text, width: int) -> Iterator[Text]:
    """Fold at spaces; an address stays whole, so that it can be copied."""
    for paragraph in text.split("\n", allow_blank=True):
        if cell_len(paragraph.plain) <= width or " " not in paragraph.plain.strip():
            yield paragraph
        else:
            yield from _folded(paragraph, width)


def _folded(text: Text, width: int) -> Iterator[Text]:
    for line in text.wrap(_WRAPPING, width):
        line.rstrip()
        yield line


@dataclass(frozen=True)
class Drawn:
    """A column with its cells."""

    column: Column[Any]
    cells: Sequence[Text]
    width: int


def _table(table: Table[Any], width: int) -> Iterator[Text]:
    if table.title:
        yield Text(printable(table.title), style="bold")
    if not table.rows:
        return
    drawn = [_drawn(column, table.rows) for column in table.columns]
    drawn = [one for one in drawn if one.width]  # nothing to say in any row
    beside, below = _arranged(drawn, width)
    widths = _widths(beside, width)
    yield _row([Text(one.column.title, style="bold") for one in beside], beside, widths)
    for number in range(len(table.rows)):
        yield from _rows([one.cells[number] for one in beside], beside, widths)
        for one in below:
            if one.cells[number].plain:
                folded = _folded(one.cells[number], max(width - len(INDENT), MIN_FOLDED))
                yield from (Text(INDENT) + line for line in folded)
    left_out = [one.column.title for one in drawn if one not in beside and one not in below]
    if left_out:
        said = f"Left out to fit: {listed(left_out)}. A wider terminal or --format csv has them."
        yield from _wrapped(Text(said, style="dim"), width)


def _drawn(column: Column[Any], rows: Sequence[Any]) -> Drawn:
    cells = list[Text]()
    for row in rows:
        text = " ".join(printable(column.text(row)).split())
        cells.append(Text(text, style=column.style(row) if column.style else ""))
    widest = max((cell_len(cell.plain) for cell in cells), default=0)
    return Drawn(column, cells, max(widest, cell_len(column.title)) if widest else 0)


def _arranged(drawn: Sequence[Drawn], width: int) -> tuple[list[Drawn], list[Drawn]]:
    """Divide the columns into those of the table, and those with lines of their own under each row."""
    beside, below = list(drawn), list[Drawn]()
    if _least(beside, whole=True) <= width:
        return beside, below
    below = [one for one in beside if one.column.below]
    beside = [one for one in beside if not one.column.below]
    for one in sorted(beside, key=lambda one: -one.column.spare):
        if _least(beside) <= width or not one.column.spare:
            break
        beside.remove(one)
    return beside, below


def _least(drawn: Sequence[Drawn], *, whole: bool = False) -> int:
    """The columns that a table needs, if what folds is folded."""
    each = (min(one.width, MIN_FOLDED) if one.column.folds and not whole else one.width for one in drawn)
    return sum(each) + GAP * (len(drawn) - 1)


def _widths(drawn: Sequence[Drawn], width: int) -> list[int]:
    """Share what is missing: first among the columns that fold, then among all, the widest first."""
    widths = [one.width for one in drawn]
    folding = [n for n, one in enumerate(drawn) if one.column.folds]
    for columns, least in ((folding, MIN_FOLDED), (range(len(drawn)), MIN_CUT)):
        while sum(widths) + GAP * (len(widths) - 1) > width:
            widest = max(columns, key=lambda n: widths[n], default=None)
            if widest is None or widths[widest] <= least:
                break
            widths[widest] -= 1
    return widths


def _rows(cells: Sequence[Text], drawn: Sequence[Drawn], widths: Sequence[int]) -> Iterator[Text]:
    """One row, over several lines where a cell folds."""
    folded = [
        list(_folded(cell, width)) if cell_len(cell.plain) > width else [cell]
        for cell, width in zip(cells, widths, strict=True)
    ]
    for number in range(max(map(len, folded))):
        yield _row([lines[number] if number < len(lines) else Text() for lines in folded], drawn, widths)


def _row(cells: Sequence[Text], drawn: Sequence[Drawn], widths: Sequence[int]) -> Text:
    row = Text()
    for cell, one, width in zip(cells, drawn, widths, strict=True):
        padding = " " * (width - cell_len(cell.plain))
        row.append_text(Text(padding) + cell if one.column.right else cell + Text(padding))
        row.append(" " * GAP)
    row.rstrip()
    return row
