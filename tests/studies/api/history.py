"""How much CPU time a document of the API costs, on a database of a few months.

    make bench-api

The app and its client run in this process, so the time includes both.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator

import httpx
from sqlalchemy import insert
from sqlalchemy.orm import Session

from kernels.cases import Role
from service.app import create_app
from service.db import migrate
from service.db.engine import transaction
from service.db.models import Measurement, Run, Stack, VerdictRow, pack
from service.domain.states import BaselineKind, CellState, RunState
from service.settings import settings
from tests import world

RECIPE = """
devices = ["h200"]
sota = "quack"
[base]
stack = "host"
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
"""
SAMPLES = (7.31, 7.29, 7.33, 7.30, 7.35)
GOALS_MS = {"compare": 40.0, "series": 10.0, "regressions": 4.0}


def fill(session: Session, target_id: int, revisions: int, series: int) -> tuple[int, list[str]]:
    """Watch a target for many revisions.  Returns the last run, and the cases."""
    cases = [f"rmsnorm.fwd.{64 * (n + 1)}x1024.bf16" for n in range(series)]
    stack = Stack(digest="1" * 64, versions={"torch": "2.11.0"})
    session.add(stack)
    session.flush()
    run = None
    for n in range(revisions):
        commit = world.commit(session, target_id, n, committed_at=1e9 + n)
        facts = {"device": "h200", "state": RunState.DONE, "worker": "box", "stack_id": stack.id, "created_at": 1e9 + n}
        run = world.run(session, commit, **facts)
        session.execute(insert(Measurement), list(_measurements(run, cases)))
        session.execute(insert(VerdictRow), list(_verdicts(run, cases)))
    assert run is not None
    return run.id, cases


def _measurements(run: Run, cases: list[str]) -> Iterator[dict[str, object]]:
    samples = pack([[*SAMPLES]], [])
    for case in cases:
        for role in (Role.HEAD, Role.PARENT):
            yield {
                "run_id": run.id,
                "contender": f"{role}:norms",
                "role": role,
                "provider": "norms",
                "case": case,
                "state": CellState.MEASURED,
                "median": 7.31,
                "gb_s": 4000.0,
                "trials": 1,
                "rounds": len(SAMPLES),
                "facts": {"registers": 32},
                "samples": samples,
            }


def _verdicts(run: Run, cases: list[str]) -> Iterator[dict[str, object]]:
    for case in cases:
        yield {
            "run_id": run.id,
            "provider": "norms",
            "case": case,
            "baseline_kind": BaselineKind.PARENT,
            "baseline": run.baseline,
            "outcome": "steady",
            "ratio": 1.001,
            "low": 0.995,
            "high": 1.006,
            "trials": 1,
            "rounds": len(SAMPLES),
            "reason": "steady",
        }


async def measured(paths: dict[str, str], requests: int) -> None:
    transport = httpx.ASGITransport(create_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8712/api/v1") as client:
        for name, path in paths.items():
            answer = await client.get(path)
            assert answer.status_code == 200, answer.text
            times = []
            for _ in range(requests):
                began = time.process_time()
                await client.get(path)
                times.append((time.process_time() - began) * 1e3)
            goal = f"  goal {GOALS_MS[name]:.0f}" if name in GOALS_MS else ""
            low, middle = min(times), statistics.median(times)
            print(f"{name:<18} {len(answer.content):>8} B  {middle:7.1f} ms of CPU (least {low:.1f}){goal}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--revisions", type=int, default=300)
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--requests", type=int, default=30)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"KERNELWATCH_STATE": folder, "KERNELWATCH_RATE_LIMIT": ""}
        settings.cache_clear()
        migrate.upgrade(settings().database)
        target = world.target(RECIPE)
        with transaction() as session:
            run, cases = fill(session, target.id, given.revisions, given.series)
        last = given.revisions - 1
        compare = "/targets/norms/compare?device=h200"
        paths = {
            "run": f"/runs/{run}",
            "compare": f"{compare}&base=c{last - 1}&head=c{last}",
            "compare, unpaired": f"{compare}&base=c1&head=c{last}",
            "series": f"/targets/norms/series?case={cases[0]}&provider=norms&device=h200",
            "regressions": "/regressions",
            "runs": "/targets/norms/runs",
        }
        asyncio.run(measured(paths, given.requests))
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
