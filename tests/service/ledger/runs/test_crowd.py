"""What claims and planning read in a large fleet: no more for what waits for others, and for what is not due."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, select, text, update
from sqlalchemy.orm import Session

from service.db.engine import clock, engine, reading, transaction
from service.db.models import CalibrationPlan, OutboxMessage, Run, Target
from service.domain.states import ForgeKind, OutboxState, Purpose, RunState
from service.ledger.intake import calibrations, deliveries, second_sessions
from service.ledger.notify import outbox
from service.ledger.runs import queue
from tests.big import crowd
from tests.big.plans import measured

WORKERS, TARGETS, FLOOD, FINISHED = 10, 1_000, 400, 4_000
ME = f"host-000/{crowd.DEVICE}-0"
# Of one statement.  There are 1,000 targets, 400 runs of one target, and 10,000 pairs: to scan any of them reads more.
MAX_ROWS = 200
MAX_STEPS = 5_000  # of SQLite's machine, a dozen of which read a row


@pytest.fixture
def fleet(either: str) -> None:
    with transaction() as session:
        crowd.seed(session, WORKERS, TARGETS, FLOOD, FINISHED)
    with engine().begin() as connection:
        connection.execute(text("ANALYZE"))


@contextmanager
def statements(session: Session) -> Iterator[list[tuple[str, Any]]]:
    """The statements of a session with their parameters."""
    sent = list[tuple[str, Any]]()

    def note(_connection: Connection, _cursor: object, statement: str, values: Any, *_: object) -> None:
        sent.append((statement, values))

    connection = session.connection()
    event.listen(connection, "before_cursor_execute", note)
    yield sent
    event.remove(connection, "before_cursor_execute", note)


def cost(session: Session, statement: str, values: Any) -> int:
    """How many rows PostgreSQL reads for a statement, or how many steps SQLite's machine makes."""
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        asked = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values).scalar()
        plan = asked if isinstance(asked, list) else json.loads(asked)
        return sum(map(rows_of, nodes(plan[0]["Plan"])))
    steps = [0]
    driver = connection.connection.driver_connection

    def count() -> None:
        steps[0] += 1

    driver.set_progress_handler(count, 1)
    connection.exec_driver_sql(statement, values).all()
    driver.set_progress_handler(None, 1)
    return steps[0]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def rows_of(node: dict[str, Any]) -> int:
    """What a scan reads: what it returns, and what it leaves out."""
    if "Scan" not in node["Node Type"]:
        return 0
    left_out = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int((node["Actual Rows"] + left_out) * node["Actual Loops"])


def costs(either: str, begin: Callable[[], Any], act: Callable[[Session], object]) -> tuple[int, int]:
    """The dearest query of an action, and the limit."""
    with begin() as session, statements(session) as sent:
        act(session)
    with reading() as session:
        found = [cost(session, *one) for one in sent if one[0].startswith("SELECT")]
    assert found
    return max(found), MAX_ROWS if either == "postgres" else MAX_STEPS


@pytest.mark.usefixtures("fleet")
def test_a_claim_reads_what_it_takes(either):
    taken = []
    dearest, limit = costs(
        either, transaction, lambda session: taken.append(queue.next_run(session, crowd.DEVICE, ME, 60))
    )
    assert taken[0] is not None
    assert dearest <= limit


@pytest.mark.usefixtures("fleet")
def test_a_claim_reads_nothing_of_what_waits_for_other_workers(either):
    with transaction() as session:
        mine = (Run.only_worker.is_(None)) | (Run.only_worker == ME)
        session.execute(update(Run).where(Run.state == RunState.QUEUED, mine).values(state=RunState.CANCELLED))
    taken = []
    dearest, limit = costs(
        either, transaction, lambda session: taken.append(queue.next_run(session, crowd.DEVICE, ME, 60))
    )
    assert taken == [None]
    assert dearest <= limit


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("others", [0, 5])
def test_planning_reads_what_is_due(either, others):
    with transaction() as session:
        now = clock(session)
        few = (CalibrationPlan.worker == ME, CalibrationPlan.target_id <= others)
        session.execute(update(CalibrationPlan).where(*few).values(due_at=now - 1.0))
        session.execute(update(Run).where(Run.purpose == Purpose.WATCH, Run.id <= others).values(awaits_second=True))
        session.execute(update(Target).where(Target.id <= others).values(poll_at=now - 1.0))

    def plan(session: Session) -> None:
        now = clock(session)
        due = session.execute(calibrations.plans.due(now, now - calibrations.LATELY_S, 1000)).all()
        assert len(due) == others
        assert calibrations._lost(session, now) == []
        session.execute(second_sessions._due(session)).all()
        polled = session.scalars(select(Target.id).where(deliveries._is_poll_due(now))).all()
        assert len(polled) == others

    dearest, limit = costs(either, reading, plan)
    assert dearest <= limit


@pytest.mark.usefixtures("fleet")
def test_a_run_is_queued_without_reading_the_queue(either):
    with transaction() as session:
        run = session.get_one(Run, 1)
        run.target_id = 3

    dearest, limit = costs(either, transaction, lambda session: queue.enqueue(session, session.get_one(Run, 1)))
    assert dearest <= limit


@pytest.mark.usefixtures("fleet")
def test_a_run_is_queued_without_reading_what_waits_for_each_worker(either):
    with transaction() as session:
        now = Run.only_worker.is_(None)
        session.execute(update(Run).where(Run.state == RunState.QUEUED, now).values(state=RunState.CANCELLED))
        session.execute(update(Run).where(Run.state == RunState.LEASED).values(state=RunState.DONE))
    dearest, limit = costs(either, transaction, lambda session: queue.enqueue(session, session.get_one(Run, 1)))
    assert dearest <= limit


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("next_at", [0.0, 1e10], ids=["due", "later"])
def test_a_message_is_claimed_without_reading_all_that_wait(either, next_at):
    """One target has a flood of them, which may all wait for their next attempt, and twenty have one."""
    with transaction() as session:
        session.execute(update(Target).values(forge="acme/norms"))
        now = clock(session)
        usual = {"kind": "check", "payload": {}, "state": OutboxState.WAITING}
        later = {"next_at": min(next_at, now + 1_800.0)}
        flood = [usual | later | {"key": f"one {number}", "target_id": 1} for number in range(2_000)]
        others = [usual | {"key": f"few {number}", "target_id": number} for number in range(2, 22)]
        session.execute(insert(OutboxMessage), [*flood, *others])
    with engine().begin() as connection:
        connection.execute(text("ANALYZE"))
    with measured() as statements:
        claimed = [outbox._claim(None, [*ForgeKind]) for _ in range(3)]
    assert len({one.target for one in claimed if one}) == 3, "they take turns"
    dearest = max(statements.values(), key=lambda one: one.work)
    assert dearest.work <= (MAX_ROWS if either == "postgres" else MAX_STEPS), f"{dearest.sql}\n{dearest.plan}"
