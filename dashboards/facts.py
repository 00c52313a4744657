"""The facts of head and baseline side by side, for the page.  Pure: what was stored in, lines and tables out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.reports import Row
from service.texts import plain

NAMES = {
    "code": "hash of the code",
    "kind": "what the hash stands for",
    "ops": "operators",
    "ran": "kernels that ran",
    "shared": "shared memory, bytes",
    "config": "configuration",
    "sm_mhz": "SM clock, MHz",
    "l2_resident": "stays in L2",
    "repeatable": "bitwise repeatable",
    "repeats": "calls compared bit by bit",
    "sets": "input sets",
    "errors": "error, of what is allowed",
    "prepare_s": "made ready in, s",
    "spent": "made ready in, s, by step",
    "peak_bytes": "peak memory, bytes",
    "flops": "operations of the model",
    "graph_breaks": "graph breaks",
    "recompiled_at_rows": "recompiled at rows",
}
TABLES = {"triton": "Kernels", "kernels": "Kernels", "autotune": "Timed choices"}
INNER = {"timings": "Timed choices", "choices": "Choices"}
MOST_ROWS = 24  # of a table
MOST_TEXT = 160


@dataclass(frozen=True)
class Line:
    name: str
    before: str
    now: str

    @property
    def differs(self) -> bool:
        return bool(self.before and self.now) and self.before != self.now


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    cut: int = 0  # rows that are not shown


@dataclass(frozen=True)
class Sides:
    lines: tuple[Line, ...]
    tables: tuple[Table, ...]


def sides(row: Row) -> Sides:
    """What is known of both, fact by fact; tables are the head's, and the baseline's beside them where it differs."""
    now, before = (side.facts if side else {} for side in (row.head, row.parent))
    names = [name for name in dict.fromkeys((*now, *before)) if (now.get(name), before.get(name)) != (None, None)]
    of_tables = [name for name in names if _records(now.get(name)) or _records(before.get(name))]
    lines = tuple(
        Line(NAMES.get(name, name.replace("_", " ")), _text(before.get(name)), _text(now.get(name)))
        for name in names
        if name not in of_tables
    )
    return Sides(lines, tuple(table for name in of_tables for table in _tables(name, now.get(name), before.get(name))))


def _tables(name: str, now: Any, before: Any) -> list[Table]:
    title = TABLES.get(name, name.replace("_", " ").capitalize())
    both = [(f"{title} of the baseline", before)] if before != now and _records(before) else []
    found = [(title if not both else f"{title} of the head", now), *both]
    return [table for title, value in found if (records := _records(value)) for table in _with_inner(title, records)]


def _with_inner(title: str, records: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The table, and one for each list within it: the candidates that were timed for a kernel, say."""
    inner = [
        _table(f"{INNER.get(key, key)} of {record.get('name') or number}", lines)
        for number, record in enumerate(records, 1)
        for key, value in record.items()
        if (lines := _records(value))
    ]
    flat = [{key: value for key, value in record.items() if not _records(value)} for record in records]
    return [_table(title, flat), *inner]


def _table(title: str, records: Sequence[Mapping[str, Any]]) -> Table:
    shown = records[:MOST_ROWS]
    columns = tuple(dict.fromkeys(key for record in shown for key in record if _text(record[key])))
    rows = tuple(tuple(_text(record.get(column)) for column in columns) for record in shown)
    return Table(title, tuple(column.replace("_", " ") for column in columns), rows, len(records) - len(shown))


def _records(value: Any) -> list[Mapping[str, Any]]:
    """A list of tables, as a list of what stands in their columns; empty for anything else."""
    if not isinstance(value, list) or not value or not all(isinstance(one, Mapping) for one in value):
        return []
    return [{str(key): inner for key, inner in one.items()} for one in value]


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case list() if not value:
            return "none"
        case _:
            said = plain(value)
            return said if len(said) <= MOST_TEXT else said[: MOST_TEXT - 1] + "…"
