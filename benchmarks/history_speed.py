"""How long a scan of history takes: all of it, and one more revision; in memory, and with the database.

make bench-history                             1,000 series of 1,000 revisions, on SQLite in a scratch folder
make bench-history ARGS="--revisions 300"
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from sqlalchemy import select

from service.db import migrate
from service.db.engine import reading, transaction
from service.db.models import ChangePoint, Run, Target
from service.domain.changepoints import changes
from service.domain.changepoints.series_table import limits_at
from service.domain.policy.policy import Policy
from service.ledger.changepoints import scan
from service.ledger.changepoints.load import histories, mainline
from service.ledger.targets import register, target_named
from tests.made_histories import Made, Values, store

PROVIDERS = ("norms", "triton", "inductor", "eager")
DEVICE, SUITE = "cpu", "all"
SEED = 20261121
ONE_BY_ONE = 9  # scans of one new revision each


def cases(count: int) -> list[str]:
    """A quarter as many cases as series: each has four providers."""
    return [f"rmsnorm.fwd.{1024 + 8 * number}x4096.fp32" for number in range(-(-count // len(PROVIDERS)))]


def recipe(names: list[str]) -> str:
    providers = "".join(f'[providers.{name}]\nrmsnorm.fwd = "{name}:rmsnorm"\n' for name in PROVIDERS)
    return f'devices = ["{DEVICE}"]\nsuite = "{SUITE}"\nsota = "quack"\n{providers}[suites]\n{SUITE} = {names}\n'


def made(names: list[str], revisions: int) -> Made:
    """Series of noise between .2 and 1 %, a part of it shared with SOTA; one in ten steps up once by 2 to 10 %."""
    random = np.random.default_rng(SEED)
    shared = {case: random.normal(0, 0.001, revisions) for case in names}

    def noisy(case: str, level: Values) -> Values:
        noise = random.normal(0, random.uniform(0.002, 0.01), revisions)
        return np.asarray(200.0 * np.exp(shared[case] + noise) * level)

    def level() -> Values:
        at = random.integers(20, revisions - 60) if random.random() < 0.1 else revisions
        return np.where(np.arange(revisions) >= at, random.uniform(1.02, 1.10), 1.0)

    own = {(provider, case): noisy(case, level()) for case in names for provider in PROVIDERS}
    return Made(own, {case: noisy(case, np.ones(revisions)) for case in names})


def part(whole: Made, begin: int, end: int) -> Made:
    """Some of the revisions."""
    own = {name: values[begin:end] for name, values in whole.own.items()}
    return Made(own, {case: values[begin:end] for case, values in whole.sota.items()})


@dataclass(frozen=True)
class Took:
    """Seconds by the clock on the wall, and of this process alone: others may be busy on the same cores."""

    wall_s: float
    own_s: float

    def __str__(self) -> str:
        return f"{self.wall_s:8.3f} s, of this process {self.own_s:8.3f} s"


def took(what: Callable[[], object]) -> Took:
    wall, own = time.perf_counter(), time.process_time()
    what()
    return Took(time.perf_counter() - wall, time.process_time() - own)


def detection_alone(policy: Policy) -> Took:
    """Every series from its numbers to its changes, no database in sight."""
    with reading() as session:
        target_id = session.scalars(select(Target.id)).one()
        table = histories(session, mainline(session, target_id, DEVICE))
    usual = table.usual().tolist()

    def every() -> None:
        for row, (_, case) in enumerate(table.names):
            changes(table.seen(row), limits_at(case, usual[row], policy))

    return took(every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--revisions", type=int, default=1000, help="at least 100")
    wanted = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory(prefix="kernelwatch-history-") as folder:
        os.environ["KERNELWATCH_STATE"] = folder
        os.environ.pop("KERNELWATCH_DATABASE_URL", None)
        migrate.upgrade()
        names = cases(wanted.series)
        with transaction() as session:
            register(session, "made", location=folder, trusted=True, recipe_text=recipe(names))
        whole = made(names, wanted.revisions + ONE_BY_ONE)
        _store(part(whole, 0, wanted.revisions))
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        _say(f"{len(whole.own)} series x {wanted.revisions} revisions, SOTA beside each case (seed {SEED}): ")
        _say(f"{size / 1e6:.0f} MB of SQLite\n")
        _say(f"detection alone            {detection_alone(Policy())}\n")
        _say(f"whole scan, with database  {took(_scan)}; {_points()} change points\n")
        later = []
        for place in range(wanted.revisions, wanted.revisions + ONE_BY_ONE):
            _store(part(whole, place, place + 1))
            later.append(took(_scan))
        _say(f"one more revision, best    {min(later, key=lambda one: one.wall_s)}\n")
        _say(f"one more revision, median  {sorted(later, key=lambda one: one.wall_s)[ONE_BY_ONE // 2]}; ")
        _say(f"{_points()} change points\n")


def _say(words: str) -> None:
    sys.stdout.write(words)
    sys.stdout.flush()


def _store(some: Made) -> None:
    with transaction() as session:
        store(session, target_named(session, "made"), DEVICE, SUITE, some)


def _scan() -> None:
    """One scan, without what control does with its points."""
    with reading() as session:
        runs = list(session.scalars(select(Run.id).where(Run.scanned_at.is_(None)).order_by(Run.id)))
        target_id = session.scalars(select(Target.id)).one()
    scan.scan(target_id, DEVICE, runs)


def _points() -> int:
    with reading() as session:
        return len(session.scalars(select(ChangePoint.id)).all())


if __name__ == "__main__":
    main()
