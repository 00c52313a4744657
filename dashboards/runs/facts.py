"""The facts of head and baseline next to each other, and the state of the device during the trials.  Pure.

A trial reads the device around every case: thousands of readings, of which ranges and sums are shown.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.codefacts.texts import SourceLines
from service.domain.metrics import digits
from service.domain.phases import seconds_by_phase
from service.domain.roofline import number
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


# What a session did or saw, so that it differs between equal builds: no difference of the code.
OF_THE_RUN = {"prepare_s", "spent", "repeats", "distinct", "sets", "calls", "sm_mhz", "inexact_median"}


@dataclass(frozen=True)
class Line:
    name: str
    before: str
    now: str
    differs: bool = False  # of the stored values: the shown ones may be truncated
    key: str = ""  # the fact, as it is stored


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
    differs = before is not None and now is not None and before != now and name not in OF_THE_RUN
    texts = _text(before), _text(now)
    if differs and texts[0] == texts[1]:  # they differ behind the cut, or in digits that nobody reads
        texts = apart(before, now, MAX_TEXT)
    return Line(_named(name), *texts, differs and texts[0] != texts[1], name)


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


_HARMLESS = {"idle", "clocks_setting", "display"}  # clock reasons that do not slow kernels down
_BOARD = {"driver": "Driver", "uuid": "UUID", "pstate": "Performance state", "ecc": "ECC", "mig": "MIG"}
_READING_NAMES = {**_BOARD, "sms": "SMs", "l2_bytes": "L2, bytes", "memory_bytes": "Memory, bytes", "l2": "L2, bytes"}
_SHOWN = {"trials", "device", "ceilings", "load_before", "began", "worker", "no_sandbox", "seconds"}


@dataclass(frozen=True)
class TrialLine:
    """One trial: its time by phase in seconds, and readings of the device and the host."""

    what: str
    seconds: tuple[tuple[str, float], ...]
    timed_s: float | None  # part of the rounds: what their samples took
    load: str  # of the host, at the start and at the end
    sm_mhz: str
    memory_mhz: str
    power_w: str
    temperature_c: str
    throttled: str
    dropped: str  # how many rounds did not count because the device was throttled, and why

    @property
    def total_s(self) -> float:
        return sum(spent for _, spent in self.seconds)


def trials(telemetry: Mapping[str, Any]) -> tuple[TrialLine, ...]:
    """Return every trial in order, without those stored by an older version."""
    return tuple(_trial(one) for one in _maps(telemetry.get("trials")))


def board(telemetry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the device's name, driver, UUID and modes."""
    device = telemetry.get("device")
    lines = [(_reading_name(key), _said(value)) for key, value in _mapping(device).items() if value is not None]
    gpus = [reading for one in _maps(telemetry.get("trials")) for reading in _gpus(one)]
    for key, name in _BOARD.items():
        seen = list(dict.fromkeys(_said(gpu[key]) for gpu in gpus if gpu.get(key) is not None))
        if seen and key not in _mapping(device):
            lines.append((name, ", ".join(seen)))
    return lines


def rest(telemetry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the telemetry that is not shown otherwise."""
    return {key: value for key, value in telemetry.items() if key not in _SHOWN}


def _trial(one: Mapping[str, Any]) -> TrialLine:
    readings, gpus = _maps(one.get("telemetry")), _gpus(one)
    loads = [load for reading in readings if (load := _load(reading)) is not None]
    return TrialLine(
        what=str(one.get("what", "trial")),
        seconds=tuple(seconds_by_phase({"trials": [one]}).items()),
        timed_s=number(_mapping(one.get("seconds")).get("timed")),
        load=f"{digits(loads[0])} → {digits(loads[-1])}" if loads else "–",
        sm_mhz=_range(gpu.get("sm_mhz") for gpu in gpus),
        memory_mhz=_range(gpu.get("memory_mhz") for gpu in gpus),
        power_w=_range(gpu.get("power_w") for gpu in gpus),
        temperature_c=_range(gpu.get("temperature_c") for gpu in gpus),
        throttled=_throttled(gpus),
        dropped=_dropped(readings),
    )


def _throttled(gpus: Sequence[Mapping[str, Any]]) -> str:
    """`sw_power_cap in 3 of 40 readings`."""
    reasons = Counter(
        str(reason)
        for gpu in gpus
        for reason in (gpu["throttle"] if isinstance(gpu.get("throttle"), list) else ())
        if reason not in _HARMLESS
    )
    if not gpus:
        return "–"
    return ", ".join(f"{reason} in {n} of {len(gpus)} readings" for reason, n in reasons.most_common()) or "never"


def _dropped(readings: Sequence[Mapping[str, Any]]) -> str:
    dropped = [reading for reading in readings if reading.get("when") == "dropped a round"]
    reasons = dict.fromkeys(str(reason) for one in dropped for reason in one.get("reasons") or ())
    return f"{len(dropped)} ({', '.join(reasons)})" if reasons else str(len(dropped))


def _range(values: Iterable[Any]) -> str:
    """`1,965 to 1,980`, or one figure where it never moved."""
    known = [value for one in values if (value := number(one)) is not None]
    if not known:
        return "–"
    ends = dict.fromkeys(f"{value:,.0f}" for value in (min(known), max(known)))
    return " to ".join(ends)


def _load(reading: Mapping[str, Any]) -> float | None:
    """Return the one-minute load average."""
    load = _mapping(reading.get("host")).get("load")
    return number(load[0]) if isinstance(load, list) and load else None


def _gpus(trial: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [gpu for reading in _maps(trial.get("telemetry")) if (gpu := _mapping(reading.get("gpu")))]


def _reading_name(key: str) -> str:
    words = key.replace("_", " ")
    return _READING_NAMES.get(key, words[:1].upper() + words[1:])


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
