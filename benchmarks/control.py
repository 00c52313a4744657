"""What claims, planning and recording cost in a large fleet, simulated by its rows: CPU time with the database's part.

make bench-control                                             100 workers, 1,000 targets, on SQLite in a scratch folder
make bench-control ARGS="--database postgresql://root@127.0.0.1/scratch"      an empty database
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import structlog
from sqlalchemy import text, update

from benchmarks.stored import state
from kernels.cases import Role
from service.db.engine import clock, engine, reading, transaction
from service.db.models import CalibrationPlan, Run
from service.domain.states import RunState
from service.ledger.intake import calibrations, deliveries, second_sessions
from service.ledger.runs import queue
from service.ledger.targets import register
from service.ops.garbage import keep_what_is_loaded
from service.settings import settings
from tests import world
from tests.big import crowd
from tests.fakes.git_server import serving
from tests.fakes.repository import Repository

FINISHED = 100_000
CASES = 200
RECORDED = """devices = ["cpu"]
suite = "all"
sota = "quack"

[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"

[suites]
all = {cases}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", help="URL of an empty PostgreSQL database")
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--targets", type=int, default=1_000)
    parser.add_argument("--flood", type=int, default=2_000)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as folder, state(Path(folder), arguments.database):
        with transaction() as session:
            crowd.seed(session, arguments.workers, arguments.targets, arguments.flood, FINISHED)
        with engine().begin() as connection:
            connection.execute(text("ANALYZE"))
        fleet = f"{arguments.workers} workers, {arguments.targets:,} targets, {arguments.flood:,} pull requests of one"
        print(f"{fleet}; {engine().dialect.name}; load {os.getloadavg()[0]:.1f}")
        measure(arguments.workers)
        record()
        poll()


def measure(workers: int) -> None:
    names = [f"host-{number:03}/{crowd.DEVICE}-0" for number in range(workers)]
    report("a claim, with a flood", 200, lambda: claim(names[0]))
    with transaction() as session:
        others = Run.only_worker.is_(None)
        session.execute(update(Run).where(Run.state == RunState.QUEUED, others).values(state=RunState.CANCELLED))
    with transaction() as session:
        mine = Run.only_worker == names[0]
        session.execute(update(Run).where(Run.state == RunState.QUEUED, mine).values(state=RunState.CANCELLED))
    report("a claim, when only calibrations of others wait", 200, lambda: claim(names[0]))
    report("planning, when nothing is due", 50, plan)
    with transaction() as session:
        few = CalibrationPlan.target_id <= 500, CalibrationPlan.worker == names[-1]
        session.execute(update(CalibrationPlan).where(*few).values(due_at=clock(session) - 1.0))
    report("planning, when 500 calibrations are due", 1, plan, warm=False)
    with ThreadPoolExecutor(8) as pool:
        began = time.perf_counter()
        list(pool.map(claim, names * 10))
    print(f"{workers * 10:,} claims from 8 threads: {workers * 10 / (time.perf_counter() - began):,.0f} a second")


def record() -> None:
    """What a worker does once it has measured a run: verdicts and all rows, in one transaction."""
    cases = [f"rmsnorm.fwd.{64 * (number + 1)}x4096.fp32" for number in range(CASES)]
    target = world.target(RECORDED.format(cases=json.dumps(cases)), "recorded")
    chance, spent = random.Random(1), list[float]()
    sides = ((Role.HEAD, "norms"), (Role.PARENT, "norms"), (Role.CONTROL, "norms"), (Role.SOTA, "quack"))
    keep_what_is_loaded()  # as a worker does
    for place in range(1, 12):
        with transaction() as session:
            revision = world.commit(session, target.id, place)
            world.run(session, revision, suite="all", dedupe=f"recorded {place}")
        lease = world.leased()
        taken = [
            replace(world.took(role, case, provider=provider), screened=trials(chance), confirmed=trials(chance))
            for case in cases
            for role, provider in sides
        ]
        found, before = world.session_of(taken, f"c{place - 1}"), cpu_s()
        world.recorded(lease, found)
        spent.append((cpu_s() - before) * 1e3)
    print(
        f"recording a run of {CASES} cases: {statistics.median(spent[1:]):.0f} ms of CPU (median of {len(spent) - 1})"
    )


def trials(chance: random.Random) -> tuple[tuple[float, ...], ...]:
    """Three trials of three rounds, of equal code: what launches and rounds of an H200 vary by."""
    return tuple(
        tuple(usual * chance.gauss(1, 0.001) for _ in range(3))
        for usual in (100 * chance.gauss(1, 0.002) for _ in range(3))
    )


def poll() -> None:
    """What a poll of a repository costs that has nothing new, without the server's part."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder) / "norms")
        repository.commit("work", {"norms.py": "# work"})
        answers: multiprocessing.Queue[int] = multiprocessing.Queue()
        server = multiprocessing.Process(target=serve, args=(folder, answers), daemon=True)
        server.start()
        port = answers.get()
        os.environ["KERNELWATCH_PRIVATE_HOSTS"] = json.dumps([f"127.0.0.1:{port}"])
        settings.cache_clear()
        with transaction() as session:
            where = {"location": f"http://127.0.0.1:{port}/norms/.git", "branch": "main"}
            target_id = register(session, "polled", recipe_text=crowd.RECIPE, **where).id
        report("a poll over HTTP with nothing new", 30, lambda: deliveries.poll(target_id))
        server.terminate()


def serve(folder: str, answers: "multiprocessing.Queue[int]") -> None:
    with serving(Path(folder)) as port:
        answers.put(port)
        threading.Event().wait()


def claim(worker: str) -> None:
    with transaction() as session:
        queue.sweep(session)
        queue.next_run(session, crowd.DEVICE, worker, 3_600.0)


def plan() -> None:
    second_sessions.plan_due()
    calibrations.plan_due()


def report(what: str, times: int, act: Callable[[], object], *, warm: bool = True) -> None:
    if warm:
        act()
    wall, before = list[float](), cpu_s()
    for _ in range(times):
        began = time.perf_counter()
        act()
        wall.append(time.perf_counter() - began)
    spent = (cpu_s() - before) / times * 1e3
    print(f"{what}: {spent:.1f} ms of CPU, {statistics.median(wall) * 1e3:.1f} ms (median of {times})")


def cpu_s() -> float:
    """CPU time of this process and its children, and of the processes of its connections to PostgreSQL."""
    own = sum(os.times()[:4])
    if engine().dialect.name != "postgresql":
        return own
    with reading() as session:
        rows = session.scalars(text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")).all()
    return own + sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in rows)


if __name__ == "__main__":
    main()
