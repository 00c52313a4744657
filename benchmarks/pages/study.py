"""The pages against their limits, ours and, where it is installed, LNT's, in one session.

    make bench-pages

A real server with one worker serves the large database of `tests/big`.  CPU is that of its processes; a real
browser measures the rest.  A missed limit is printed as `value>limit`.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import playwright.sync_api as playwright
from sqlalchemy import func, select, text, update

from benchmarks import readers
from benchmarks.api.history import History
from benchmarks.api.servers import SUITE, Server, kernelwatch, lnt
from benchmarks.api.speed import submit_to_lnt
from benchmarks.pages.cost import Cost, cost
from benchmarks.pages.listed import Page, lnts, ours
from benchmarks.pages.looks import LATENCY_MS, MBIT, Looks, look_at
from benchmarks.pages.refreshing import Survived, refresh
from benchmarks.pages.slow_queries import print_plans
from service.db import migrate
from service.db.engine import clock, disconnect, engine, transaction
from service.db.models import Run, VerdictRow, Worker
from service.domain.states import BaselineKind, RunState
from service.settings import settings
from tests.big.seed import seed
from tests.big.seeder import Places
from tests.big.story import SMALL
from tests.dashboards.conftest import ARGUMENTS, BROWSERS


@dataclass(frozen=True)
class Result:
    """What was measured of one page."""

    page: Page
    cost: Cost
    looks: Looks | None = None
    survived: Survived | None = None


@dataclass(frozen=True)
class Column:
    """One measure: its value, and the limit that a page has of it."""

    name: str
    value: Callable[[Result], float | bool | str | None]
    limit: str = ""  # a field of Limits
    places: int = 0


COLUMNS = (
    Column("CPU ms", lambda one: one.cost.cpu_ms, "cpu_ms", 1),
    Column("ms", lambda one: one.cost.wall_ms, "wall_ms", 1),
    Column("raw kB", lambda one: one.cost.raw_kb),
    Column("gzip kB", lambda one: one.cost.gzip_kb, "gzip_kb", 1),
    Column("nodes", lambda one: one.looks and one.looks.nodes, "nodes"),
    Column("height", lambda one: one.looks and one.looks.height, "height"),
    Column("at 390", lambda one: one.looks and one.looks.height_narrow, "height_narrow"),
    Column("too wide", lambda one: one.looks and one.looks.overflow, "overflow"),
    Column("at 390", lambda one: one.looks and one.looks.overflow_narrow, "overflow"),
    Column("need at", lambda one: one.looks and one.looks.needs_y, "needs_y"),
    Column("tabs", lambda one: one.looks and one.looks.tabs, "tabs"),
    Column("worst at 390", lambda one: one.looks and one.looks.worst_shown),
    Column("weight kB", lambda one: one.looks and one.looks.weight_kb, "weight_kb"),
    Column("figure s", lambda one: one.looks and one.looks.figure_s, "figure_s", 2),
    Column("explore kB", lambda one: one.looks and one.looks.explored_kb, "explored_kb"),
    Column("explore s", lambda one: one.looks and one.looks.explored_s, "explored_s", 2),
    Column("shift", lambda one: one.looks and one.looks.shift, "shift", 3),
    Column("axe", lambda one: one.looks and one.looks.axe, "axe"),
    Column("errors", lambda one: one.looks and one.looks.errors, "errors"),
    Column("refreshes", lambda one: one.survived and str(one.survived)),
)


def cell(column: Column, result: Result) -> tuple[str, bool]:
    """The value as text, and whether its limit is missed.  A need that cannot be reached has missed it."""
    value = column.value(result)
    limit = getattr(result.page.limits, column.limit) if column.limit else None
    if value is None:
        missed = bool(column.name in ("need at", "tabs") and limit is not None and result.looks)
        return ("none" if missed else "–"), missed
    if isinstance(value, bool):
        return ("yes", False) if value else ("NO", True)
    if isinstance(value, str):
        return value, value.startswith("loses")
    text = f"{value:,.{column.places}f}"
    return (f"{text}>{limit:g}", True) if limit is not None and value > limit else (text, False)


def print_table(results: Sequence[Result], columns: Sequence[Column]) -> int:
    """Print a line for each page.  Returns how many limits are missed."""
    rows = [[one.page.name, *(cell(column, one)[0] for column in columns)] for one in results]
    rows.insert(0, ["", *(column.name for column in columns)])
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        first, *rest = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        print(row[0].ljust(len(first)), *rest, sep="  ")
    return sum(cell(column, one)[1] for one in results for column in columns)


@contextmanager
def browser() -> Iterator[playwright.Browser]:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        sys.exit("make bench-pages needs a browser: install one with `apt-get install chromium`, or give --no-browser.")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield opened
        opened.close()


def measure(
    server: Server,
    pages: Sequence[Page],
    opened: playwright.Browser | None,
    requests: int,
    disturb: Callable[[], None] | None = None,
) -> list[Result]:
    """Measure each page that there is.  CPU first, of all pages, while the browser shows none."""
    address = str(server.client.base_url.copy_with(raw_path=b"/")).rstrip("/")
    found = list[Result]()
    for page in pages:
        _report_workers()
        price = cost(server, page.path, requests)
        if price is None:
            print(f"{page.name}: no such page ({page.path})", flush=True)
        else:
            found.append(Result(page, price))
    if opened is None:
        return found
    whole = []
    for one in found:
        print(f"{one.page.name} ...", file=sys.stderr, flush=True)
        worst = _worst_ratio(one.page.worst_of) if one.page.worst_of else None
        _report_workers()
        looks = look_at(opened, address, one.page, worst)
        survived = refresh(opened, address + one.page.path, disturb) if disturb else None
        whole.append(replace(one, looks=looks, survived=survived))
    return whole


def _report_workers() -> None:
    """Let the workers report that were online at first, as they do every few seconds."""
    with transaction() as session:
        now = clock(session)
        session.execute(update(Worker).where(Worker.seen_at > now - 3600).values(seen_at=now))


def _worst_ratio(run_id: int) -> float:
    worst = select(func.max(VerdictRow.ratio)).where(
        VerdictRow.run_id == run_id,
        VerdictRow.baseline_kind == BaselineKind.PARENT,
        VerdictRow.outcome == "regression",
    )
    with transaction() as session:
        return float(session.execute(worst).scalar_one())


def disturbing(places: Places) -> Callable[[], None]:
    """What a busy service does meanwhile: a run goes on, another leaves the queue."""
    number = 0

    def disturb() -> None:
        nonlocal number
        number += 1
        with transaction() as session:
            session.get_one(Run, places.running).stage = f"measuring: trial 3, case {number} of 206"
            queued = session.scalars(select(Run.id).where(Run.state == RunState.QUEUED).limit(1)).all()
            session.execute(update(Run).where(Run.id.in_(queued)).values(state=RunState.CANCELLED))

    return disturb


class OneSample(History):
    """LNT's pages of a history need one sample of each case and revision."""

    def samples(self, revision: int, series: int) -> list[float]:
        return super().samples(revision, series)[:1]


def lnt_pages(server: Server, history: History) -> list[Page]:
    """Submit the history; the pages are those of its newest run."""
    run = 0
    for revision in range(history.revisions):
        run = submit_to_lnt(server, history, revision)
    tests = server.client.get(f"api/{SUITE}/tests").json()["tests"]
    return lnts(run, next(one["id"] for one in tests if one["name"] == history.cases[0]))


def report(results: Sequence[Result], output: Path | None) -> None:
    first = 12  # columns of the first table
    print()
    missed = print_table(results, COLUMNS[:first])
    print()
    missed += print_table(results, COLUMNS[first:])
    for one in results:
        for said in dict.fromkeys(one.looks.said if one.looks else ()):
            print(f"{one.page.name}: {said}")
    print(f"\n{missed} limits are missed; load of the machine: {os.getloadavg()[0]:.1f}")
    if output:
        rows = [_as_json(one) for one in results]
        output.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def _as_json(one: Result) -> dict[str, Any]:
    looks = asdict(one.looks) if one.looks else {}
    survived = asdict(one.survived) if one.survived else None
    missed = [column.name for column in COLUMNS if cell(column, one)[1]]
    return {**asdict(one.page), **asdict(one.cost), **looks, "refreshes": survived, "missed": missed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=30, help="of each page, for the median of its CPU time")
    parser.add_argument("--small", action="store_true", help="a small database: some seconds, for a try")
    parser.add_argument("--only", action="append", default=[], help="pages whose name contains it; may be repeated")
    parser.add_argument("--no-browser", action="store_true", help="CPU and bytes alone")
    parser.add_argument("--postgresql", metavar="URL", help="a server on which a database is made and dropped")
    parser.add_argument("--measurements", type=int, default=0, help="about how many, on PostgreSQL; else some 430,000")
    parser.add_argument("--plans", type=float, metavar="MS", help="print the plans of statements that take so long")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    parser.add_argument("--lnt", type=Path, help="a Python with LNT; without it the table has no LNT")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kind = "postgresql" if given.postgresql else "sqlite"
        url = stack.enter_context(readers.database(kind, folder, given.postgresql or "", None))
        os.environ |= {"KERNELWATCH_STATE": str(folder), "KERNELWATCH_DATABASE_URL": url}
        settings.cache_clear()
        migrate.upgrade(settings().database)
        print("Filling the database ...", file=sys.stderr, flush=True)
        with transaction() as session:
            places = seed(session, SMALL if given.small else None, given.measurements)
        _analyze()
        print(f"{kind}, {places.measurements:,} measurements; median of {given.requests} requests.  Weight and figure:")
        print(f"with an empty cache over {MBIT} Mbit/s and {LATENCY_MS:.0f} ms.  value>limit is a missed limit.")
        server = stack.enter_context(kernelwatch())
        opened = None if given.no_browser else stack.enter_context(browser())
        wanted = [page for page in ours(places) if _wanted(page, given.only)]
        results = measure(server, wanted, opened, given.requests, disturbing(places))
        if given.lnt and given.lnt.exists():
            theirs = stack.enter_context(lnt(given.lnt, folder / "lnt"))
            print("Filling LNT ...", file=sys.stderr, flush=True)
            history = OneSample(30 if given.small else 300, 20 if given.small else 206)
            pages = [page for page in lnt_pages(theirs, history) if _wanted(page, given.only)]
            results += measure(theirs, pages, opened, given.requests)
        else:
            print("LNT is left out: `make .venv-lnt/.made` could not install it, or --lnt was not given.")
        report(results, given.json)
        if given.plans is not None:
            print_plans({page.name: page.path for page in wanted}, given.plans)
        disconnect()


def _analyze() -> None:
    """Let the planner know the rows, as it does by itself after some minutes."""
    with engine().connect() as connection:
        connection.execute(text("ANALYZE"))
        connection.commit()
    disconnect()


def _wanted(page: Page, only: Sequence[str]) -> bool:
    return not only or any(part in page.name for part in only)


if __name__ == "__main__":
    main()
