"""The facts of head and baseline next to each other: lines and tables for the page.  Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.codefacts.source_lines import SourceLines
from service.domain.text import apart, one_line, plain
from service.reports.rows import Row

NAMES = {
    "code": "hash of the code",
    "kind": "what is hashed",
    "source": "defined at",
    "ops": "operators",
    "ran": "kernels that ran",
    "shared": "shared memory, bytes",
    "config": "configuration",
    "sm_mhz": "SM clock, MHz",
    "l2_resident": "stays in L2",
    "repeatable": "bitwise repeatable",
    "rounding": "rounds to the dtype",
    "inplace": "writes outputs into inputs",
    "repeats": "calls compared bit by bit",
    "distinct": "different outputs of those calls",
    "graph_bits": "output bits of the graph, against those of a call",
    "sets": "input sets",
    "errors": "error, share of the bound",
    "prepare_s": "preparation, s",
    "spent": "preparation by step, s",
    "peak_bytes": "peak memory, bytes",
    "flops": "operations of the model",
    "graph_breaks": "graph breaks",
    "recompiled_at_rows": "recompiled at rows",
}
TABLES = {
    "tuned": "Configurations that its autotuner chose",
    "triton": "Kernels",
    "kernels": "Kernels",
    "autotune": "Timed choices",
}
INNER = {"timings": "Timed choices", "choices": "Choices"}
# Facts are untrusted.  The known facts of one case are some 30 lines, and a table has at most 15 columns.
MAX_ROWS = 24  # of a table
MAX_LINES = 60
MAX_COLUMNS = 20
MAX_TABLES = 24
MAX_TEXT = 160
MAX_NAME = 60


@dataclass(frozen=True)
class Line:
    name: str
    before: str
    now: str
    differs: bool = False  # of the stored values: the shown ones may be truncated


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    cut: int = 0  # rows that are not shown
    cut_columns: int = 0


@dataclass(frozen=True)
class Sides:
    lines: tuple[Line, ...]
    tables: tuple[Table, ...]
    cut: int = 0  # lines and tables that are not shown


def sides(row: Row) -> Sides:
    """Compare fact by fact; the baseline's tables are added if they differ from the head's."""
    now, before = (side.facts if side else {} for side in (row.head, row.parent))
    names = [name for name in dict.fromkeys((*now, *before)) if (now.get(name), before.get(name)) != (None, None)]
    of_tables = [name for name in names if _records(now.get(name)) or _records(before.get(name))]
    of_lines = [name for name in names if name not in of_tables]
    lines = tuple(_line(name, before.get(name), now.get(name)) for name in of_lines[:MAX_LINES])
    tables = [table for name in of_tables[:MAX_TABLES] for table in _tables(name, now.get(name), before.get(name))]
    cut = len(of_lines) - len(lines) + max(0, len(of_tables) - MAX_TABLES) + max(0, len(tables) - MAX_TABLES)
    return Sides(lines, tuple(tables[:MAX_TABLES]), cut)


def _line(name: str, before: Any, now: Any) -> Line:
    differs = before is not None and now is not None and before != now
    texts = _text(before), _text(now)
    if differs and texts[0] == texts[1]:  # they differ behind the cut
        texts = apart(before, now, MAX_TEXT)
    return Line(_named(name), *texts, differs)


def _named(name: str) -> str:
    return NAMES.get(name, one_line(name.replace("_", " "), MAX_NAME))


def _tables(name: str, now: Any, before: Any) -> list[Table]:
    title = TABLES.get(name, one_line(name.replace("_", " "), MAX_NAME).capitalize())
    both = [(f"{title} of the baseline", before)] if before != now and _records(before) else []
    found = [(title if not both else f"{title} of the head", now), *both]
    return [table for title, value in found if (records := _records(value)) for table in _with_inner(title, records)]


def _with_inner(title: str, records: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Make a table, and one for each list in it, for example the candidates timed for a kernel."""
    inner = [
        _table(f"{INNER.get(key, one_line(key, MAX_NAME))} of {plain(record.get('name') or number, MAX_NAME)}", lines)
        for number, record in enumerate(records, 1)
        for key, value in record.items()
        if (lines := _records(value))
    ]
    flat = [{key: value for key, value in record.items() if not _records(value)} for record in records]
    return [_table(title, flat), *inner]


def _table(title: str, records: Sequence[Mapping[str, Any]]) -> Table:
    shown = records[:MAX_ROWS]
    known = tuple(dict.fromkeys(key for record in shown for key in record if _text(record[key])))
    columns = known[:MAX_COLUMNS]
    rows = tuple(tuple(_text(record.get(column)) for column in columns) for record in shown)
    names = tuple(one_line(column.replace("_", " "), MAX_NAME) for column in columns)
    return Table(title, names, rows, len(records) - len(shown), len(known) - len(columns))


def _records(value: Any) -> list[Mapping[str, Any]]:
    """Return the rows of a list of tables by column; empty for anything else."""
    if not isinstance(value, list) or not value or not all(isinstance(one, Mapping) for one in value):
        return []
    return [{str(key): inner for key, inner in one.items()} for one in value]


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case {"file": _, "line": int()} if found := SourceLines.read(value):
            return one_line(found.at, MAX_TEXT)
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case list() if not value:
            return "none"
        case _:
            return plain(value, MAX_TEXT)
