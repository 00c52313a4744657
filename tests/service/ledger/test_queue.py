"""The database is the queue: who gets what, who holds it, and what if a worker dies.  On SQLite and PostgreSQL."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, transaction
from service.db.models import Attempt, Pull, Run, Target
from service.domain.states import Priority, RunState
from service.errors import Conflict, LeaseLost, NotFound
from service.ledger.runs import queue, revisions
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
        outcomes = session.execute(select(Attempt.outcome, Attempt.lost).order_by(Attempt.attempt)).all()
    assert outcomes == [("worker dead stopped answering in attempt 1", True), ("done", False)]


def lose() -> None:
    """Let the lease of the next run expire, and sweep it."""
    assert claim(lease_s=-1)
    with transaction() as session:
        assert queue.sweep(session)
    its_time_has_come()


def die(*, in_code: bool, swept: bool = False) -> None:
    """Let the worker of the next run die; the next worker on its machine reports it, perhaps after a sweep."""
    lease = claim(lease_s=-1 if swept else 60)
    with transaction() as session:
        assert len(queue.sweep(session)) == swept
    with transaction() as session:
        queue.died(session, lease, in_code=in_code)
    its_time_has_come()


def test_a_lost_worker_costs_no_attempt(target):
    run = want(target, "a")
    for _ in range(10):
        lose()
    with transaction() as session:
        row = session.get_one(Run, run)
        assert (row.state, row.attempt, row.max_attempts, row.losses) == (RunState.QUEUED, 10, 13, 10)


def test_a_run_that_loses_every_worker_is_given_up_in_the_end(target, monkeypatch):
    monkeypatch.setattr(queue, "MAX_LOSSES", 4)
    run = want(target, "a")
    for _ in range(5):
        assert state_of(run) is RunState.QUEUED
        lose()
    assert state_of(run) is RunState.FAILED


def test_a_run_waits_no_longer_each_time_its_worker_dies(target):
    """Nothing has to pass, as after an outage: it only lets others go first."""
    run = want(target, "a")
    for in_code in (True, False, True):
        lease = claim()
        with transaction() as session:
            queue.died(session, lease, in_code=in_code)
        assert waits(run) == pytest.approx(30, abs=5)
        its_time_has_come()


@pytest.mark.parametrize("swept", [False, True])
def test_a_run_that_kills_its_worker_three_times_is_given_up(target, swept):
    run = want(target, "a")
    lose()
    die(in_code=False, swept=swept)
    for _ in range(3):
        assert state_of(run) is RunState.QUEUED
        die(in_code=True, swept=swept)
    assert state_of(run) is RunState.FAILED
    with transaction() as session:
        assert session.get_one(Run, run).reason == "given up after 5 attempts: worker one died while the code ran"


def test_a_worker_that_died_after_its_run_ended_changes_nothing(target):
    run = want(target, "a")
    lease = claim()
    with transaction() as session:
        queue.end(session, lease, RunState.DONE)
    with transaction() as session:
        queue.died(session, lease, in_code=True)
    assert state_of(run) is RunState.DONE


def test_a_report_that_comes_while_another_worker_measures_counts_for_the_next_failure(target):
    run = want(target, "a")
    leases = []
    for _ in range(2):
        leases.append(claim(lease_s=-1))
        with transaction() as session:
            queue.sweep(session)
        its_time_has_come()
    other = claim("two")
    with transaction() as session:
        for lease in leases:
            queue.died(session, lease, in_code=True)
    assert state_of(run) is RunState.LEASED
    with transaction() as session:
        queue.give_back(session, other, "the contender cannot be started")
    assert state_of(run) is RunState.FAILED


def test_a_failure_that_is_not_the_runs_costs_no_attempt_but_waits(target):
    run = want(target, "a")
    for wait_s in (30, 90, 90, 90):
        with transaction() as session:
            queue.give_back(session, claim(), "the repository is away", blame=False, wait=True)
        assert waits(run) == pytest.approx(wait_s, abs=5)
        its_time_has_come()
    assert claim().attempt == 5


def test_a_clock_that_jumps_back_delays_a_waiting_run_by_its_longest_wait(target):
    waiting, hour = want(target, "a"), want(target, "b")
    with transaction() as session:
        session.get_one(Run, waiting).not_before = clock(session) + 60
        session.get_one(Run, hour).not_before = clock(session) + 3600
    assert claim().run_id == hour
    assert claim() is None


def test_a_clock_that_jumps_back_delays_the_run_of_a_dead_worker_by_one_lease(target):
    want(target, "a")
    lease = claim("dead", lease_s=3600)
    with transaction() as session:
        assert queue.sweep(session) == []
        row = session.get_one(Run, lease.run_id)
        assert row.lease_until - clock(session) == pytest.approx(60, abs=5)
        queue.renew(session, lease, 60)  # by a worker that is alive after all


def test_trouble_of_the_worker_queues_the_run_again_for_later_and_later(target):
    run = want(target, "a")
    for attempt, wait_s in ((1, 30), (2, 90)):
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
        session.add(Pull(target_id=target.id, number=7, head=head, closed_at=closed_at))
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


@contextmanager
def behind(first: Callable[[Session], object], run_id: int) -> Iterator[Session]:
    """A transaction that has read the run while another one, which did `first`, was not committed yet."""
    done, known = threading.Event(), threading.Event()

    def do() -> None:
        with transaction() as session:
            first(session)
            session.flush()
            done.set()
            known.wait(0.5)  # times out on SQLite, where one transaction runs at a time

    other = threading.Thread(target=do)
    other.start()
    try:
        assert done.wait(30)
        with transaction() as session:
            kept = session.get_one(Run, run_id)  # as the API does, to check that the caller may
            known.set()
            yield session
            del kept  # until here: a session forgets a row that nobody holds
    finally:
        other.join()  # it holds a connection, also where the block raises


@pytest.mark.parametrize("ended", [RunState.DONE, RunState.FAILED])
def test_a_run_that_its_worker_ends_at_this_moment_is_not_cancelled(target, ended):
    """Its measurements are stored: measured again, it could not store them a second time."""
    run_id, lease = want(target, "a"), claim()
    with behind(lambda session: queue.end(session, lease, ended), run_id) as session:
        assert not queue.cancel(session, run_id, "the operator")
    assert state_of(run_id) is ended


def test_a_run_that_somebody_retries_at_this_moment_is_not_retried_again(target):
    run_id, lease = want(target, "a"), claim()
    with transaction() as session:
        queue.end(session, lease, RunState.FAILED)
    with (
        pytest.raises(Conflict, match="is queued"),
        behind(lambda session: revisions.retry(session, run_id), run_id) as session,
    ):
        revisions.retry(session, run_id)


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


def test_a_worker_without_a_sandbox_takes_only_what_may_run_without_one(target):
    stranger, trusted = want(target, "a"), want(target, "b")
    with transaction() as session:
        session.get_one(Run, stranger).trusted = False
        session.get_one(Run, trusted).trusted = True

    def claim_without() -> queue.Lease | None:
        with transaction() as session:
            return queue.next_run(session, "h200", "one", 60, has_sandbox=False)

    assert claim_without() is None
    with transaction() as session:
        session.get_one(Target, target.id).allow_unsandboxed = True
    assert claim_without().run_id == trusted
    assert claim_without() is None
    assert claim().run_id == stranger
