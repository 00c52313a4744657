"""The database is the queue: who gets what, who holds it, and what if a worker dies.  On SQLite and PostgreSQL."""

import threading
import time
from collections import Counter

import pytest
from sqlalchemy import select, update

from service.db.engine import clock, transaction
from service.db.models import Attempt, PushRow, Run, Target
from service.domain.states import Origin, Priority, RunState
from service.errors import LeaseLost, NotFound
from service.ledger.runs import queue
from tests import world

pytestmark = pytest.mark.usefixtures("either")


@pytest.fixture
def target(either: str) -> Target:
    return world.target()


def want(target: Target, sha: str, priority: Priority = Priority.MAINLINE, device: str = "h200") -> int:
    with transaction() as session:
        return world.run(session, world.commit(session, target.id, sha), priority=priority, device=device).id


def claim(worker: str = "one", device: str = "h200", lease_s: float = 60) -> queue.Lease | None:
    with transaction() as session:
        return queue.next_run(session, device, worker, lease_s)


def its_time_has_come() -> None:
    """What waits in the queue has waited long enough."""
    with transaction() as session:
        session.execute(update(Run).values(not_before=0.0))


def waits(run_id: int) -> float:
    with transaction() as session:
        return session.get_one(Run, run_id).not_before - clock(session)


def state_of(run_id: int) -> RunState:
    with transaction() as session:
        return session.get_one(Run, run_id).state


def test_pull_requests_go_before_the_mainline_and_that_before_backfill(target):
    old = want(target, "a", Priority.BACKFILL)
    first, second = want(target, "b"), want(target, "c")
    pull = want(target, "d", Priority.PULL_REQUEST)
    assert [claim().run_id for _ in range(4)] == [pull, first, second, old]
    assert claim() is None


def test_a_worker_gets_only_runs_of_its_device(target):
    want(target, "a", device="b200")
    assert claim(device="h200") is None


def test_a_run_ends_once_and_only_by_the_one_who_holds_it(target):
    want(target, "a")
    lease = claim()
    with transaction() as session:
        queue.renew(session, lease, 60, "building")
    with transaction() as session:
        queue.end(session, lease, RunState.DONE)
    with pytest.raises(LeaseLost), transaction() as session:
        queue.end(session, lease, RunState.DONE)


def test_a_dead_workers_run_goes_to_another_and_the_dead_one_is_fenced_off(target):
    run = want(target, "a")
    dead = claim("dead", lease_s=0.05)
    time.sleep(0.1)
    with transaction() as session:
        assert queue.sweep(session) == [run]
    assert claim("alive") is None, "not at once: what ended the one may end the other"
    its_time_has_come()
    alive = claim("alive")
    assert (alive.run_id, alive.attempt) == (run, 2)
    for stale in (lambda s: queue.renew(s, dead, 60), lambda s: queue.end(s, dead, RunState.DONE)):
        with pytest.raises(LeaseLost), transaction() as session:
            stale(session)
    with transaction() as session:
        queue.end(session, alive, RunState.DONE)
        outcomes = session.execute(select(Attempt.outcome).order_by(Attempt.attempt)).scalars().all()
    assert outcomes == ["worker dead stopped answering in attempt 1", "done"]


def test_after_three_attempts_it_is_failed_with_a_reason(target):
    run = want(target, "a")
    for attempt in (1, 2, 3):
        assert claim(lease_s=0.02).attempt == attempt
        time.sleep(0.05)
        with transaction() as session:
            queue.sweep(session)
        its_time_has_come()
    assert state_of(run) is RunState.FAILED
    with transaction() as session:
        assert "given up after 3 attempts" in session.get_one(Run, run).reason


def test_trouble_of_the_worker_queues_the_run_again_for_later_and_later(target):
    run = want(target, "a")
    for attempt, wait_s in ((1, 30), (2, 300)):
        with transaction() as session:
            queue.give_back(session, claim(), "the disk is full")
        with transaction() as session:
            assert session.get_one(Run, run).reason == f"the disk is full; next attempt after {wait_s} s"
        assert (state_of(run), claim()) == (RunState.QUEUED, None), f"after attempt {attempt}"
        assert waits(run) == pytest.approx(wait_s, abs=5)
        its_time_has_come()
    assert claim().attempt == 3


def test_a_run_that_waits_holds_up_no_other(target):
    want(target, "a")
    with transaction() as session:
        queue.give_back(session, claim(), "no route to its repository")
    other = want(target, "b")
    assert claim().run_id == other


@pytest.mark.parametrize(
    ("head", "closed_at", "found", "why"),
    [
        ("a", None, RunState.QUEUED, "the worker was stopped"),
        ("b", None, RunState.SUPERSEDED, "b is a newer head of pull request 7"),
        ("a", 1.0, RunState.CANCELLED, "pull request 7 was closed"),
    ],
)
@pytest.mark.parametrize("lost", ["given back", "swept"])
def test_what_nobody_waits_for_any_more_does_not_return_to_the_queue(target, head, closed_at, found, why, lost):
    run = want(target, "a", Priority.PULL_REQUEST)
    with transaction() as session:
        session.get_one(Run, run).pull = 7
        for one in ("a", head):
            session.add(PushRow(target_id=target.id, origin=Origin.PULL_REQUEST, head=one, pull=7, created_at=0.0))
            session.flush()
        session.execute(select(PushRow).order_by(PushRow.id.desc())).scalars().first().closed_at = closed_at
    lease = claim(lease_s=-1)
    with transaction() as session:
        if lost == "swept":
            queue.sweep(session)
        else:
            queue.give_back(session, lease, "the worker was stopped", blame=False)
    assert state_of(run) is found
    with transaction() as session:
        row = session.get_one(Run, run)
        assert (row.finished_at is None) is (found is RunState.QUEUED)
        assert row.reason == why or (lost, found) == ("swept", RunState.QUEUED)


def test_a_worker_that_was_asked_to_stop_spends_no_attempt(target):
    run = want(target, "a")
    for _ in range(5):
        with transaction() as session:
            queue.give_back(session, claim(), "the worker was stopped", blame=False)
    assert claim().run_id == run, "and it waits for nothing"


@pytest.mark.parametrize("found", [RunState.HELD, RunState.QUEUED, RunState.LEASED])
def test_cancel_ends_an_open_run(target, found):
    run = want(target, "a")
    lease = claim() if found is RunState.LEASED else None
    with transaction() as session:
        session.get_one(Run, run).state = found
    with transaction() as session:
        assert queue.cancel(session, run, "the operator")
    assert state_of(run) is RunState.CANCELLED
    if lease:
        with pytest.raises(LeaseLost), transaction() as session:
            queue.renew(session, lease, 60)


@pytest.mark.parametrize(
    "found", [RunState.DONE, RunState.FAILED, RunState.SKIPPED, RunState.SUPERSEDED, RunState.CANCELLED]
)
def test_cancel_leaves_an_ended_run_as_it_is(target, found):
    run = want(target, "a")
    with transaction() as session:
        session.get_one(Run, run).state = found
    with transaction() as session:
        assert not queue.cancel(session, run, "the operator")
    assert state_of(run) is found


def test_cancelling_what_is_not_there_says_so():
    with pytest.raises(NotFound, match="No run 99"), transaction() as session:
        queue.cancel(session, 99, "the operator")


def test_many_workers_do_every_run_once(target):
    runs = [want(target, f"r{number}") for number in range(24)]
    done: Counter[int] = Counter()

    def work(name: str) -> None:
        while lease := claim(name):
            with transaction() as session:
                queue.end(session, lease, RunState.DONE)
            done[lease.run_id] += 1

    threads = [threading.Thread(target=work, args=(f"worker{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == Counter(runs)
