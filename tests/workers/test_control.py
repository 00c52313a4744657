"""The periodic tasks of control: one must neither stop, nor starve, nor slow down the others."""

import json
import socket

import pytest
from sqlalchemy import select, text, update
from structlog.testing import capture_logs

from service.db import schema
from service.db.engine import clock as database_clock
from service.db.engine import reading, transaction
from service.db.models import Delivery, FactsCheck, Run, Target
from service.domain.states import RunState
from service.ledger import locking, targets
from service.ledger.intake import deliveries
from service.ledger.locking import Backoff
from service.settings import settings
from tests import world
from tests.workers.conftest import RECIPE
from workers import control
from workers.compile import facts_worker


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only go by when a test says so."""
    now = [1000.0]
    monkeypatch.setattr(control.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(locking.time, "monotonic", lambda: now[0])
    return now


def test_a_throttled_task_runs_at_once_and_then_at_most_every_so_often_even_if_it_fails(clock):
    done = []

    def task() -> None:
        done.append(clock[0])
        raise RuntimeError

    throttled = control.Throttled(task, 60.0)
    for _ in range(31):
        if clock[0] in (1000.0, 1060.0):
            with pytest.raises(RuntimeError):
                throttled()
        else:
            throttled()
        clock[0] += 2.0
    assert done == [1000.0, 1060.0]
    assert throttled.__name__ == "task", "the log names what failed"


def test_what_fails_is_tried_again_ever_more_seldom_and_at_once_where_it_succeeded(clock):
    tried, kept = [], Backoff()
    while clock[0] < 2000.0:
        if not kept.should_skip("one"):
            tried.append(clock[0] - 1000.0)
            kept.failed("one")
        clock[0] += 2.0
    assert tried == [0.0, 2.0, 4.0, 14.0, 44.0, 164.0, 764.0]
    assert not kept.should_skip("another")
    kept.succeeded("one")
    assert not kept.should_skip("one")
    kept.failed("one")
    assert not kept.should_skip("one"), "it is new again"


@pytest.mark.usefixtures("state")
def test_all_tasks_run_on_an_empty_ledger(monkeypatch):
    failed = []
    monkeypatch.setattr(control.log, "exception", lambda *_, task, **__: failed.append(task))
    for one in (control._follow, control._auto_start, control._calibrate, control._measure_twice):
        monkeypatch.setattr(one, "_next", 0.0)
    for _ in range(2):
        control.run()
    assert failed == []


def becomes(migration: str) -> None:
    with transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :to"), {"to": migration})


@pytest.mark.parametrize(
    ("migration", "remedy"),
    [
        ("0001_release", "run `kernelwatch db upgrade`"),
        ("9999_later", "restart this process with the version that made it"),
    ],
)
@pytest.mark.usefixtures("either_nightly")
def test_no_process_takes_work_from_a_database_of_another_version(monkeypatch, migration, remedy):
    monkeypatch.setattr(schema, "_reported", None)
    target = world.target()
    with transaction() as session:
        revision = world.commit(session, target.id, 0)
        waiting = world.run(session, revision, created_at=database_clock(session)).id
        lost = world.run(session, revision, device="h200", state=RunState.LEASED, attempt=1, lease_until=1.0).id
    becomes(migration)
    try:
        with capture_logs() as said:
            assert control.work("cpu") == 0
            control.run()
            assert facts_worker.compile_due() == 0
    finally:
        becomes(schema.newest())
    with reading() as session:
        assert session.get_one(Run, waiting).state is RunState.QUEUED
        assert session.get_one(Run, lost).state is RunState.LEASED
        assert session.scalars(select(FactsCheck)).all() == []
    problem = f"the database is at migration {migration}, and this version needs {schema.newest()}; {remedy}"
    assert [one["reason"] for one in said] == [problem], "once, however often it is asked"

    control.run()
    with reading() as session:
        assert session.get_one(Run, lost).state is RunState.QUEUED


@pytest.mark.usefixtures("state")
def test_a_remote_that_does_not_answer_holds_up_no_webhook(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as remote:
        remote.settimeout(30)
        host = f"127.0.0.1:{remote.getsockname()[1]}"
        monkeypatch.setenv("KERNELWATCH_PRIVATE_HOSTS", json.dumps([host]))
        settings.cache_clear()
        with transaction() as session:
            targets.register(session, "norms", location=f"http://{host}/norms.git", recipe_text=RECIPE, branch="main")
            session.execute(update(Target).values(poll_at=0.0))
        polling = control.start_polling()
        try:
            with remote.accept()[0]:  # the poll waits for an answer
                with transaction() as session:
                    delivery, _ = deliveries.store_delivery(session, "one", "ping", b"{}")
                control.run()
                with reading() as session:
                    assert session.get_one(Delivery, delivery).processed_at is not None
                    assert session.scalars(select(Target)).one().poll_error is None, "it still waits"
        finally:
            control.stopping.set()
            remote.close()  # else a second try of git waits
            polling.join(30)
            control.stopping.clear()
    assert not polling.is_alive()
