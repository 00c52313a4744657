"""Rows of a large fleet: workers, targets, what each worker is to calibrate, and a crowded queue."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Table, func, insert, select
from sqlalchemy.orm import Session

from service.db import models as m
from service.db.engine import clock
from service.domain.states import Priority, Purpose, RunState, TargetKind

DEVICE = "h200"
RECIPE = """devices = ["h200"]
suite = "all"

[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"

[suites]
all = ["rmsnorm.fwd.512x512.fp32"]
"""
_AT_ONCE = 5_000
DAY_S = 86_400.0


def seed(session: Session, workers: int, targets: int, flood: int, finished: int) -> None:
    """Fill an empty database.

    Each worker is to calibrate each target in the next day, and a tenth of these calibrations waits already.  The
    first target has `flood` pull requests waiting, the second a backfill of half as many revisions; `finished` runs
    were measured in the last week.
    """
    now = clock(session)
    numbers = range(1, targets + 1)
    names = [f"host-{number:03}/{DEVICE}-0" for number in range(workers)]
    _insert(session, m.Worker, (_worker(name, now) for name in names))
    _insert(session, m.Target, (_target(number, now) for number in numbers))
    recipe = {"digest": "0" * 64, "text": RECIPE, "adapters": {}, "created_at": now}
    _insert(session, m.RecipeRow, (recipe | {"id": number, "target_id": number} for number in numbers))
    session.execute(m.Target.__table__.update().values(recipe_id=m.Target.__table__.c.id))
    made = {"sha": "a" * 40, "subject": "work", "author": "Ada", "committed_at": now, "paths": [], "ordinal": 0}
    _insert(session, m.Revision, (made | {"id": number, "target_id": number} for number in numbers))
    series = {"device": DEVICE, "provider": "norms", "case": "rmsnorm.fwd.512x512.fp32", "metric": "kernel"}
    _insert(session, m.Series, (series | {"target_id": number} for number in numbers))
    pairs = [(number, name) for number in numbers for name in names]
    plans = (
        {"target_id": number, "worker": name, "due_at": now + DAY_S * (place + 1) / len(pairs), "planned_at": now}
        for place, (number, name) in enumerate(pairs)
    )
    _insert(session, m.CalibrationPlan, plans)
    _insert(session, m.Run, _runs(now, pairs, flood, finished, targets))
    case = {"contender": "head:norms", "role": "head", "provider": "norms", "case": series["case"], "state": "measured"}
    counts = {"median": 100.0, "trials": 6, "rounds": 18, "facts": {}}
    newest = range(1, min(targets, finished) + 1)  # the first finished run of each target
    _insert(session, m.Measurement, (case | counts | {"run_id": number} for number in newest))
    if session.get_bind().dialect.name == "postgresql":
        for table in (m.Run, m.Target, m.RecipeRow, m.Revision):
            top = select(func.max(table.__table__.c.id)).scalar_subquery()
            session.execute(select(func.setval(f"{table.__tablename__}_id_seq", top)))


def _insert(session: Session, table: type[m.Base], rows: Iterator[dict[str, Any]]) -> None:
    assert isinstance(table.__table__, Table)
    some = list[dict[str, Any]]()
    for row in rows:
        some.append(row)
        if len(some) == _AT_ONCE:
            session.execute(insert(table.__table__), some)
            some.clear()
    if some:
        session.execute(insert(table.__table__), some)


def _worker(name: str, now: float) -> dict[str, Any]:
    return {"name": name, "device": DEVICE, "description": "an H200", "started_at": now - DAY_S, "seen_at": now}


def _target(number: int, now: float) -> dict[str, Any]:
    place = {"kind": TargetKind.GIT, "location": f"https://github.com/acme/norms-{number}", "branch": "main"}
    flags = {"trusted": True, "allow_unsandboxed": False, "recipe_from_branch": False, "private": False}
    later = {"created_at": now, "poll_at": now + 60.0, "poll_failures": 0, "forge_paused_until": 0.0}
    return {"id": number, "name": f"norms-{number}", **place, **flags, **later}


def _runs(
    now: float, pairs: list[tuple[int, str]], flood: int, finished: int, targets: int
) -> Iterator[dict[str, Any]]:
    usual = {"device": DEVICE, "suite": "all", "trusted": True, "max_attempts": 3, "attempt": 0, "created_at": now}
    usual |= {"losses": 0, "not_before": 0.0, "notified_state": "", "repeated": False, "only_worker": None}
    usual |= {"pull": None, "worker": None, "finished_at": None, "lease_until": None, "scanned_at": None}

    def row(target: int, turn: float, state: RunState, **more: Any) -> dict[str, Any]:
        ids = {"target_id": target, "revision_id": target, "recipe_id": target, "dedupe": f"run {next(counted)}"}
        return usual | ids | {"turn": turn, "state": state} | more

    counted = iter(range(10**9))
    of = {"purpose": Purpose.WATCH, "priority": Priority.MAINLINE}
    for number in range(finished):
        at = now - 7 * DAY_S * (number + 1) / finished
        yield row(number % targets + 1, 0.0, RunState.DONE, **of, finished_at=at, notified_state="done", scanned_at=at)
    for number in range(flood):
        yield row(1, number + 1.0, RunState.QUEUED, purpose=Purpose.WATCH, priority=Priority.PULL_REQUEST, pull=number)
    for number in range(flood // 2):
        turn = 100.0 * (number + 1)
        yield row(2, turn, RunState.QUEUED, purpose=Purpose.WATCH, priority=Priority.BACKFILL)
    for target, name in pairs[::10]:
        bound = {"purpose": Purpose.CALIBRATION, "priority": Priority.CALIBRATION, "only_worker": name}
        yield row(target, 5_000.0, RunState.QUEUED, **bound)
    for number, name in enumerate(sorted({name for _, name in pairs})[1:]):
        leased = {"worker": name, "lease_until": now + 3_600.0}
        yield row(number % targets + 1, 0.5, RunState.LEASED, **of, **leased)
