"""The facts worker's queue: what is planned from the runs, who holds it, what is reported.  On both databases."""

import os
import threading
import time

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import FactsCheck, Run
from service.domain.codefacts.findings import Finding, Findings
from service.domain.states import FactsState, Priority, RunState
from service.errors import LeaseLost
from service.ledger.notify import compose
from service.ledger.runs import facts_checks
from service.ledger.runs.facts_checks import FactsLease
from tests import world
from workers.compile import facts_worker
from workers.run.heartbeat import stopping

FOUND = Findings("other machine code at the one case", "abc", changes=(Finding("registers 40 → 50", "a case", 1),))


@pytest.fixture
def target(either: str) -> int:
    return world.target().id


def appeared(target: int, sha: str, pull: int | None = 7, **values: object) -> None:
    """A revision with a run on each of two devices."""
    with transaction() as session:
        revision = world.commit(session, target, sha)
        usual = {"priority": Priority.PULL_REQUEST, "created_at": clock(session), "notified_state": "queued"}
        for device in ("h200", "b200"):
            world.run(session, revision, device=device, pull=pull, **usual | {"baseline": "abc"} | values)


def planned() -> int:
    with transaction() as session:
        return facts_checks.plan(session)


def claimed(lease_s: float = 60.0) -> FactsLease | None:
    with transaction() as session:
        return facts_checks.claim(session, lease_s)


def check() -> FactsCheck:
    with reading() as session:
        return session.scalars(select(FactsCheck).order_by(FactsCheck.id.desc()).limit(1)).one()


def test_a_revision_is_compiled_once_for_all_its_devices(target):
    appeared(target, "head")
    assert (planned(), planned()) == (1, 0)

    lease = claimed()
    assert lease is not None
    assert claimed() is None, "it is held"
    with transaction() as session:
        facts_checks.end(session, lease, FactsState.DONE, findings=FOUND)

    with reading() as session:
        runs = session.scalars(select(Run)).all()
        assert {run.notified_state for run in runs} == {""}, "both are told anew"
        assert "registers 40 → 50" in facts_checks.in_words(session, runs[0])
    assert Findings.from_json(check().findings) == FOUND


def test_findings_that_come_while_a_run_is_reported_are_reported_afterwards(target, monkeypatch):
    appeared(target, "head")
    planned()
    lease = claimed()
    assert lease is not None
    composed, ended = threading.Event(), threading.Event()

    def comment(session: Session, run: Run, _pull: int) -> None:
        assert facts_checks.in_words(session, run) == ""
        composed.set()
        ended.wait(0.5)  # times out: the end waits until the run is reported

    def end() -> None:
        assert composed.wait(30)
        with transaction() as session:
            facts_checks.end(session, lease, FactsState.DONE, findings=FOUND)
        ended.set()

    monkeypatch.setattr(compose, "_comment", comment)
    with reading() as session:
        first = session.scalars(select(Run.id).order_by(Run.id)).first()
    with transaction() as session:
        session.get_one(Run, first).state = RunState.LEASED
    worker = threading.Thread(target=end)
    worker.start()
    with transaction() as session:
        compose._notify(session, first)
    worker.join()
    with reading() as session:
        assert {run.notified_state for run in session.scalars(select(Run))} == {""}


@pytest.mark.parametrize(
    "values",
    [
        {"state": RunState.HELD},
        {"state": RunState.SKIPPED},
        {"state": RunState.SUPERSEDED},
        {"priority": Priority.BACKFILL},
        {"created_at": 1.0},
    ],
    ids=str,
)
def test_what_is_not_compiled(target, values):
    appeared(target, "head", **values)
    assert planned() == 0


def test_the_newest_goes_first_and_what_a_dead_worker_held_is_taken_again(target):
    appeared(target, "older")
    planned()
    appeared(target, "newer")
    planned()
    first = claimed(lease_s=-1.0)
    assert first is not None
    second = claimed()
    assert second == FactsLease(first.check_id, 2)
    with pytest.raises(LeaseLost), transaction() as session:
        facts_checks.end(session, first, FactsState.DONE, findings=FOUND)


def test_trouble_is_tried_again_later_and_three_times_in_all(target):
    appeared(target, "head")
    planned()
    for attempt in range(1, facts_checks.ATTEMPTS + 1):
        lease = claimed()
        assert lease is not None
        with transaction() as session:
            assert facts_checks.retry(session, lease, "the disk is full") is (attempt < facts_checks.ATTEMPTS)
        assert claimed() is None
        with transaction() as session:
            session.execute(update(FactsCheck).values(not_before=0.0))
    assert (check().state, check().reason) == (FactsState.UNAVAILABLE, "the disk is full")


def test_the_metric_beside_control_gives_way_and_ends_with_it(state, monkeypatch):
    seen: list[int] = []

    def compile_due() -> int:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        raise OSError("the database is away")

    monkeypatch.setattr(facts_worker, "compile_due", compile_due)
    usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    metric = facts_worker.run_with_control()
    try:
        until = time.monotonic() + 10
        while not seen and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        stopping.set()
        metric.join(10)
        stopping.clear()
    assert seen[0] == max(usual, facts_worker.NICE)
    assert not metric.is_alive()
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == usual, "of that thread alone"
