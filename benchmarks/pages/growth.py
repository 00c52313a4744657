"""What pages read in a small and in a large database: statements, rows, buffers, and the time of both.

    python -m tests.big.seed --places small.json                            # into one database of PostgreSQL
    python -m tests.big.seed --places large.json --measurements 10000000    # into another
    python -m benchmarks.pages.growth --small URL small.json --large URL large.json

Each page is asked for in this process.  PostgreSQL then explains its statements: rows are those that scans returned or
filtered out, buffers are pages of 8 kB.  A page grows if it reads more than twice as much of either in the large one.
"""

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages.addresses import every
from benchmarks.pages.slow_queries import Statement, explained, timed
from service.db.engine import disconnect
from service.settings import settings
from tests.big.seeder import Places
from tests.dashboards.asking import Get, asking

_WARM = 2
_MOST_MS = 150.0
_SLOW_MS = 100.0
# Fewer are noise: a statement visits three or four buffers for a row, and plans differ with the size of a table.
_NEGLIGIBLE_ROWS = 500
_NEGLIGIBLE_BUFFERS = 1000


@dataclass(frozen=True)
class Reading:
    """What one page read and took."""

    status: int
    statements: int
    rows: int
    buffers: int
    slowest_ms: float  # statement
    database_ms: float
    cpu_ms: float  # of this process: without PostgreSQL
    wall_ms: float
    slowest_sql: str = ""


@dataclass(frozen=True)
class Compared:
    """A page in both databases."""

    name: str
    small: Reading
    large: Reading

    @property
    def remarks(self) -> Iterator[str]:
        """What is wrong with it."""
        for what, negligible in (("rows", _NEGLIGIBLE_ROWS), ("buffers", _NEGLIGIBLE_BUFFERS)):
            before, after = getattr(self.small, what), getattr(self.large, what)
            if after > 2 * before + negligible:
                yield f"{what} grow"
        if self.large.statements > self.small.statements + 3:
            yield "statements grow"
        if self.large.wall_ms > _MOST_MS:
            yield f"over {_MOST_MS:g} ms"
        if self.large.slowest_ms > _SLOW_MS:
            yield f"a statement over {_SLOW_MS:g} ms"
        if self.small.status != self.large.status:
            yield f"answers {self.small.status} and {self.large.status}"


def read(url: str, places: Path, wanted: Callable[[str], bool], requests: int, plans_ms: float) -> dict[str, Reading]:
    """Read all pages of one database."""
    os.environ["KERNELWATCH_DATABASE_URL"] = url
    settings.cache_clear()
    disconnect()
    get = asking()
    known = Places(**json.loads(places.read_text()))
    found = {}
    for name, path in every(known).items():
        if wanted(name):
            found[name] = _reading(get, name, path, requests, plans_ms)
    disconnect()
    return found


def _reading(get: Get, name: str, path: str, requests: int, plans_ms: float) -> Reading:
    for _ in range(_WARM):
        status = get(path).status_code
    taken = []
    for _ in range(requests):
        began, cpu = time.perf_counter(), time.process_time()
        with timed() as sent:
            get(path)
        wall_ms, cpu_ms = (time.perf_counter() - began) * 1e3, (time.process_time() - cpu) * 1e3
        taken.append((wall_ms, cpu_ms, sum(one.ms for one in sent), sent))
    wall, cpu_, database = (statistics.median(one[n] for one in taken) for n in range(3))
    sent = min(taken, key=lambda one: one[2])[3]
    plans = [explained(one) for one in sent]
    slowest = max(sent, key=lambda one: one.ms, default=Statement("", None, 0.0))
    for one in sent:
        if one.ms >= plans_ms:
            print(f"\n{name}: {one.ms:.0f} ms: {one.sql}\n{_indented(explained(one))}\n", flush=True)
    print(f"{name}: {len(sent)} statements, {wall:.0f} ms", file=sys.stderr, flush=True)
    return Reading(
        status,
        len(sent),
        sum(_rows(plan) for plan in plans if plan),
        sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans if plan),
        slowest.ms,
        database,
        cpu_,
        wall,
        re.sub(r"\s+", " ", slowest.sql),
    )


def _rows(plan: Mapping[str, Any]) -> int:
    """The rows that the scans of a plan returned or left out."""
    own = 0
    if "Scan" in plan["Node Type"] and plan["Node Type"] not in ("CTE Scan", "Subquery Scan", "Bitmap Index Scan"):
        left_out = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
        own = round((plan["Actual Rows"] + left_out) * plan["Actual Loops"])
    return own + sum(_rows(each) for each in plan.get("Plans", ()))


def _indented(plan: Mapping[str, Any] | None, depth: int = 1) -> str:
    """A plan as text: for each node what it is, its rows, its buffers and its time."""
    if plan is None:
        return ""
    of = " ".join(str(plan[key]) for key in ("Relation Name", "Index Name") if key in plan)
    buffers = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    out = f"{'  ' * depth}{plan['Node Type']} {of}: {plan['Actual Rows']} rows x {plan['Actual Loops']}, "
    out += f"{plan.get('Rows Removed by Filter', 0)} left out, {buffers} buffers, {plan['Actual Total Time']:.1f} ms"
    return "\n".join([out, *(_indented(each, depth + 1) for each in plan.get("Plans", ()))])


_COLUMNS = ("rows", "buffers", "slowest_ms", "database_ms", "cpu_ms", "wall_ms")


def table(found: Sequence[Compared]) -> Iterator[str]:
    """A line for each page: small and large side by side."""
    width = max(len(one.name) for one in found)
    heads = ("rows", "buffers", "slowest ms", "database ms", "CPU ms", "wall ms")
    yield f"{'':{width}}  statements  " + "  ".join(f"{head:>17}" for head in heads)
    for one in found:
        cells = [_pair(getattr(one.small, key), getattr(one.large, key)) for key in _COLUMNS]
        statements = f"{one.small.statements:>4} {one.large.statements:>5}"
        yield f"{one.name:{width}}  {statements}  " + "  ".join(cells) + "  " + ", ".join(one.remarks)


def _pair(small: float, large: float) -> str:
    places = 1 if isinstance(large, float) else 0
    return f"{small:>8,.{places}f} {large:>8,.{places}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for which in ("small", "large"):
        parser.add_argument(f"--{which}", nargs=2, metavar=("URL", "PLACES"), required=True)
    parser.add_argument("--only", action="append", default=[], help="pages whose name contains it; may be repeated")
    parser.add_argument("--requests", type=int, default=5, help="of each page, for the median of its times")
    parser.add_argument("--plans", type=float, metavar="MS", default=1e9, help="print plans of such slow statements")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    given = parser.parse_args()

    def wanted(name: str) -> bool:
        return not given.only or any(part in name for part in given.only)

    small, large = (
        read(url, Path(places), wanted, given.requests, given.plans if url == given.large[0] else 1e9)
        for url, places in (given.small, given.large)
    )
    both = [Compared(name, small[name], large[name]) for name in small if name in large]
    print("\n".join(table(both)))
    wrong = sum(any(one.remarks) for one in both)
    print(f"\n{wrong} of {len(both)} with a remark; load of the machine: {os.getloadavg()[0]:.1f}")
    if given.json:
        rows = {one.name: {"small": vars(one.small), "large": vars(one.large)} for one in both}
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
