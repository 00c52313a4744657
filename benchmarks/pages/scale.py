"""What pages and documents cost in databases of several sizes: CPU of the server, and CPU of the database's part.

    make bench-scale ARGS="--postgresql postgresql://user@host/postgres"

Databases are made, measured and dropped, on SQLite and on PostgreSQL of this machine.  `--kept URL PLACES` measures one
that `python -m tests.big.seed --places PLACES` has filled, as often as it is given, and makes none.  A server with one
worker serves each in turn.  SQLite works in the process of the server; the backends of PostgreSQL are counted apart.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import text

from benchmarks import readers
from benchmarks.api.servers import Server, cpu_s, kernelwatch
from service.db import migrate
from service.db.engine import analyze, disconnect, engine, transaction
from service.settings import settings
from tests.big.addresses import every
from tests.big.seed import seed
from tests.big.seeder import Places

SIZES = {"sqlite": (0, 2_000_000), "postgresql": (0, 12_000_000)}  # measurements; 0 for those of the seed, some 430,000
_WARM = 3
# Most CPU in ms of server and database, by the name of an address.
GOALS = {
    "run, newest": 40.0,
    "health": 15.0,
    "board": 40.0,
    "compare": 30.0,
    "trend": 20.0,
    "regressions": 15.0,
    "API, trend": 15.0,
    "feed, all": 20.0,
    "API, run": 40.0,
    "metrics": 30.0,
}
_MOST_MS, _MOST_TIMES = 150.0, 1.5  # of any, and of its cost in the smallest database
_NEGLIGIBLE_MS = 3.0  # of a growth: less is noise


@dataclass(frozen=True)
class Cost:
    """Medians over the requests for an address."""

    server_ms: float
    database_ms: float
    wall_ms: float
    kb: float
    status: int

    @property
    def ms(self) -> float:
        return self.server_ms + self.database_ms


@dataclass
class Measured:
    """A database: how large it is, what each address costs, and how the server starts and rests."""

    kind: str
    measurements: int
    costs: dict[str, Cost] = field(default_factory=dict)
    start_s: float = 0.0
    start_cpu_s: float = 0.0
    rest_mb: float = 0.0
    load: tuple[float, float] = (0.0, 0.0)  # of the machine, before and after

    @property
    def name(self) -> str:
        return f"{self.kind} {self.measurements / 1e6:.2f} M"


def measure(url: str, places: Places, requests: int, only: Sequence[str]) -> Measured:
    """Serve a database that is filled, and ask for every address."""
    _use(url)
    analyze()
    of_postgresql = engine().dialect.name == "postgresql"
    found = Measured(engine().dialect.name, places.measurements, load=(os.getloadavg()[0], 0.0))
    paths = {name: path for name, path in every(places).items() if not only or any(part in name for part in only)}
    disconnect()
    began = time.monotonic()
    with kernelwatch() as server:
        found.start_s, found.start_cpu_s = time.monotonic() - began, server.cpu_s()
        found.rest_mb = psutil.Process(server.process.pid).memory_info().rss / 1e6
        for name, path in paths.items():
            found.costs[name] = _cost(server, path, requests, of_postgresql)
            print(f"{found.name}, {name}: {found.costs[name].ms:.1f} ms", file=sys.stderr, flush=True)
    disconnect()
    found.load = (found.load[0], os.getloadavg()[0])
    return found


def _use(url: str) -> None:
    os.environ["KERNELWATCH_DATABASE_URL"] = url
    settings.cache_clear()
    disconnect()


def _cost(server: Server, path: str, requests: int, of_postgresql: bool) -> Cost:
    url = server.client.base_url.copy_with(raw_path=path.encode())
    for _ in range(_WARM):
        answer = server.client.get(url)
    backends = _backends() if of_postgresql else []
    taken = []
    for _ in range(requests):
        before, of_database, began = server.cpu_s(), sum(map(cpu_s, backends)), time.perf_counter()
        server.client.get(url)
        wall = time.perf_counter() - began
        taken.append((server.cpu_s() - before, sum(map(cpu_s, backends)) - of_database, wall))
    server_ms, database_ms, wall_ms = (statistics.median(one[n] for one in taken) * 1e3 for n in range(3))
    return Cost(server_ms, database_ms, wall_ms, len(answer.content) / 1e3, answer.status_code)


def _backends() -> list[int]:
    """The processes of PostgreSQL that serve the connections of the server: each keeps its own."""
    asked = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with engine().connect() as connection:
        return [pid for pid in connection.scalars(text(asked)) if psutil.pid_exists(pid)]


def remarks(name: str, small: Cost, large: Cost) -> Iterator[str]:
    """What is wrong with an address."""
    if name in GOALS and large.ms > GOALS[name]:
        yield f"over {GOALS[name]:g} ms"
    if large.ms > _MOST_MS:
        yield f"over {_MOST_MS:g} ms"
    if large.ms > _MOST_TIMES * small.ms + _NEGLIGIBLE_MS:
        yield f"{large.ms / small.ms:.1f} times"
    if small.status != large.status:
        yield f"answers {small.status} and {large.status}"


def table(found: Sequence[Measured]) -> Iterator[str]:
    """A line for each address: server + database in each size, and remarks on the largest of each kind."""
    names = list(found[0].costs)
    width = max(map(len, names))
    yield f"{'':{width}}  {'goal':>5}  " + "  ".join(f"{one.name:>18}" for one in found)
    for name in names:
        costs = [one.costs[name] for one in found if name in one.costs]
        cells = "  ".join(f"{cost.server_ms:>9.1f} + {cost.database_ms:>6.1f}" for cost in costs)
        goal = f"{GOALS[name]:g}" if name in GOALS else ""
        wrong = [
            f"{kind}: {remark}"
            for kind in dict.fromkeys(one.kind for one in found)
            for of_kind in [[one.costs[name] for one in found if one.kind == kind]]
            for remark in remarks(name, of_kind[0], of_kind[-1])
        ]
        yield f"{name:{width}}  {goal:>5}  {cells}  {', '.join(wrong)}".rstrip()


def help_s() -> float:
    """CPU that `kernelwatch --help` takes."""
    taken = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-P", "-m", "service.cli", "--help"], check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        taken.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return statistics.median(taken)


def _made(given: argparse.Namespace, requests: int) -> Iterator[Measured]:
    """Databases of each kind and size, smallest first."""
    for kind in ("sqlite", *(["postgresql"] if given.postgresql else [])):
        for size in given.sizes or SIZES[kind]:
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                url = stack.enter_context(readers.database(kind, folder, given.postgresql or "", None))
                os.environ["KERNELWATCH_STATE"] = str(folder)
                _use(url)
                migrate.upgrade(url)
                print(f"Filling {kind} ...", file=sys.stderr, flush=True)
                with transaction() as session:
                    places = seed(session, measurements=size)
                if kind == "postgresql":
                    with engine().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                        connection.execute(text("VACUUM ANALYZE"))
                yield measure(url, places, requests, given.only)


def _kept(pairs: Sequence[Sequence[str]], given: argparse.Namespace) -> Iterator[Measured]:
    for url, places in pairs:
        known: Mapping[str, Any] = json.loads(Path(places).read_text())
        with tempfile.TemporaryDirectory() as folder:
            os.environ["KERNELWATCH_STATE"] = folder
            yield measure(url, Places(**known), given.requests, given.only)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgresql", metavar="URL", help="a server of this machine, on which databases are made")
    parser.add_argument("--sizes", type=int, nargs="+", help="measurements, instead of the usual sizes; 0: the seed's")
    parser.add_argument("--kept", nargs=2, action="append", metavar=("URL", "PLACES"), help="a filled database")
    parser.add_argument("--only", action="append", default=[], help="addresses whose name contains it")
    parser.add_argument("--requests", type=int, default=15, help="for each address, for the median of its CPU time")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    given = parser.parse_args()
    found = list(_kept(given.kept, given) if given.kept else _made(given, given.requests))
    print(f"CPU ms of server + database; median of {given.requests} requests.")
    print("\n".join(table(found)))
    for one in found:
        load = " and ".join(f"{of_machine:.1f}" for of_machine in one.load)
        ready = f"ready after {one.start_s:.1f} s and {one.start_cpu_s:.1f} s of CPU"
        print(f"{one.name}: {ready}, {one.rest_mb:.0f} MB at rest; load of the machine {load}")
    print(f"kernelwatch --help: {help_s():.2f} s of CPU")
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
