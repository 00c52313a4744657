"""The database is the queue: who gets what, who holds it, and what if a worker dies.  On SQLite and PostgreSQL."""

import threading
import time
from collections import Counter

import pytest
from sqlalchemy import select

from service.database import transaction
from service.errors import LeaseLost, NotFound
from service.ledger import queue
from service.models import Attempt, Priority, Recipe, Revision, Run, RunState, Target, TargetKind

pytestmark = pytest.mark.usefixtures("either")


@pytest.fixture
def target(either: str) -> Target:
    with transaction() as session:
        made = Target(name="norms", kind=TargetKind.GIT, location="/nowhere", created_at=0.0)
        session.add(made)
        session.flush()
        session.add(Recipe(id=1, target_id=made.id, digest="0" * 64, text="", adapters={}, created_at=0.0))
    return made


def want(target: Target, sha: str, priority: Priority = Priority.MAINLINE, device: str = "h200") -> int:
    with transaction() as session:
        revision = Revision(target_id=target.id, sha=sha, subject=sha, author="a", committed_at=0.0, paths=[])
        session.add(revision)
        session.flush()
        run = Run(
            dedupe=f"{sha}:{device}",
            target_id=target.id,
            revision_id=revision.id,
            recipe_id=1,
            device=device,
            suite="smoke",
            trusted=True,
            priority=priority,
            created_at=0.0,
        )
        session.add(run)
        session.flush()
        return run.id


def claim(worker: str = "one", device: str = "h200", lease_s: float = 60) -> queue.Lease | None:
    with transaction() as session:
        return queue.next_run(session, device, worker, lease_s)


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
    assert state_of(run) is RunState.FAILED
    with transaction() as session:
        assert "given up after 3 attempts" in session.get_one(Run, run).reason


def test_trouble_of_the_worker_queues_the_run_again(target):
    run = want(target, "a")
    with transaction() as session:
        queue.give_back(session, claim(), "the disk is full")
    assert state_of(run) is RunState.QUEUED
    assert claim().attempt == 2


def test_a_worker_that_was_asked_to_stop_spends_no_attempt(target):
    run = want(target, "a")
    for _ in range(5):
        with transaction() as session:
            queue.give_back(session, claim(), "the worker was stopped", blame=False)
    assert state_of(run) is RunState.QUEUED


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
