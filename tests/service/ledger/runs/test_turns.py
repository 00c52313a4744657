"""In which order runs are taken: priorities, and targets that take turns.  On SQLite and PostgreSQL."""

import random
from itertools import count

import pytest
from sqlalchemy import update

from service.db.engine import reading, transaction
from service.db.models import Run, Target
from service.domain.states import Origin, Priority, Purpose, RunState
from service.ledger.health import fleet
from service.ledger.reading import queries
from service.ledger.runs import internal_runs, queue, revisions
from service.sources.source import Found
from tests import world

PULL, MAINLINE, BACKFILL = Priority.PULL_REQUEST, Priority.MAINLINE, Priority.BACKFILL
RECIPE = """
devices = ["cpu"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
"""
pytestmark = pytest.mark.usefixtures("either")
_shas = count()


@pytest.fixture
def large(either: str) -> Target:
    return world.target(RECIPE, "large")


@pytest.fixture
def small(either: str) -> Target:
    return world.target(RECIPE, "small")


def wants(target: Target, priority: Priority, runs: int = 1) -> list[int]:
    """Queue so many runs of a target; their ids."""
    with transaction() as session:
        made = list[int]()
        for _ in range(runs):
            run = world.run(session, world.commit(session, target.id, f"{next(_shas):08}"), priority=priority)
            queue.enqueue(session, run)
            made.append(run.id)
        return made


def taken(worker: str = "one") -> queue.Lease:
    return world.leased(worker)


def measured(lease: queue.Lease) -> None:
    with transaction() as session:
        queue.end(session, lease, RunState.DONE)


def in_turn(runs: int) -> list[int]:
    """Measure so many runs, one after another; their ids."""
    order = list[int]()
    for _ in range(runs):
        lease = taken()
        order.append(lease.run_id)
        measured(lease)
    return order


def waiting() -> list[int]:
    """The queued runs in the order in which they are taken."""
    with reading() as session:
        return [run.id for run in queries.queue(session).items if run.state is RunState.QUEUED]


@pytest.mark.parametrize(
    ("priority", "wanted"),
    [(PULL, PULL), (MAINLINE, PULL), (MAINLINE, MAINLINE), (BACKFILL, PULL), (BACKFILL, MAINLINE)],
)
def test_a_target_of_very_many_runs_delays_another_by_the_run_that_is_measured(large, small, priority, wanted):
    wants(large, priority, 30)
    in_turn(7)
    begun = taken()
    [run] = wants(small, wanted)
    measured(begun)
    assert in_turn(1) == [run]


def test_while_nothing_is_measured_one_more_run_goes_first(large, small):
    """Between two runs, and on a device without a worker."""
    first, *_ = wants(large, PULL, 30)
    [run] = wants(small, PULL)
    assert in_turn(2) == [first, run]
    second = in_turn(3)[-1]
    [run] = wants(small, PULL)
    assert in_turn(2) == [second + 1, run]


def test_targets_with_many_runs_take_turns(large, small):
    many, few = wants(large, PULL, 30), wants(small, PULL, 3)
    order = in_turn(10)
    assert [run for run in order if run in few] == few, "older before newer"
    assert [order.index(run) for run in few] == [1, 3, 5]
    assert [run for run in order if run in many] == many[:7]


def test_those_who_come_later_come_after_those_who_wait(large, small):
    """However many new targets there are, none of them overtakes another."""
    wants(large, PULL, 30)
    begun = taken()
    [early] = wants(small, PULL)
    late = [wants(world.target(RECIPE, f"new-{number}"), PULL)[0] for number in range(5)]
    measured(begun)
    assert in_turn(6) == [early, *late]


def test_no_priority_waits_for_ever(large, small):
    """Ten pull requests of a target go before a run of the mainline, ten of which go before one of a backfill."""
    pulls = wants(large, PULL, 120)
    [mainline], [backfill] = wants(small, MAINLINE), wants(small, BACKFILL)
    order = waiting()
    assert order[:5] == pulls[:5]
    assert 5 <= order.index(mainline) <= 10
    assert 50 <= order.index(backfill) <= 110


def test_what_nobody_waits_for_lets_the_mainline_go_first_however_much_was_measured(large, small):
    wants(large, BACKFILL, 50)
    for _ in range(10):
        begun = taken()
        [run] = wants(small, MAINLINE)
        measured(begun)
        assert in_turn(1) == [run]


def test_a_newer_head_takes_the_place_of_the_older(large, small):
    wants(large, PULL)
    for number in (1, 2, 3):
        push(small, number, "first")
    wants(large, PULL, 5)
    push(small, 1, "second")
    with reading() as session:
        waiting = {run.pull: run.turn for run in fleet.first_waiting(session) if run.target_id == small.id}
    assert waiting[1] < waiting[2] < waiting[3]


def push(target: Target, number: int, head: str) -> None:
    """A head of a pull request is pushed."""
    with transaction() as session:
        target = session.get_one(Target, target.id)
        found = Found(f"{head}-{number}", None, "work", "Ada", 0.0, ("norms.py",))
        revisions.record_push(session, target, revisions.Push(Origin.PULL_REQUEST, (found,), pull=number))


def test_what_waits_for_one_worker_delays_no_run_of_another(large):
    """A calibration of each worker: all of them are the first of their worker."""
    with transaction() as session:
        revision = world.commit(session, large.id, 0)
        for number in range(20):
            of_one = {"device": "cpu", "suite": "smoke", "baseline": "c0", "worker": f"worker-{number}"}
            internal_runs.internal_run(
                session, session.merge(large), revision, Purpose.CALIBRATION, key=f"{number}", **of_one
            )
    [run] = wants(large, BACKFILL)
    with reading() as session:
        assert len({one.turn for one in queries.queue(session).items if one.id != run}) == 1
    assert taken("worker-7").run_id == run, "calibrations are last"
    with reading() as session:
        assert session.get_one(Run, taken("worker-7").run_id).only_worker == "worker-7"


def test_a_run_that_is_tried_again_does_not_wait_for_all_that_comes_meanwhile(large, small):
    """Its turn is late, and the device is idle until it is due: what comes then is not before everything else."""
    *_, last = wants(large, BACKFILL, 20)
    in_turn(19)
    lease = taken()
    with transaction() as session:
        queue.give_back(session, lease, "its build failed")
    wants(small, MAINLINE)
    begun = taken()
    with transaction() as session:
        session.execute(update(Run).where(Run.id == last).values(not_before=0.0))
    order = list[int]()
    while last not in order:
        wants(small, MAINLINE)
        measured(begun)
        begun = taken()
        order.append(begun.run_id)
        assert len(order) <= 10


def test_what_waits_for_a_worker_that_is_away_keeps_its_turn(large, small):
    """Nobody else has anything to do meanwhile: what comes then is not before everything that waits."""
    wants(large, BACKFILL, 20)
    in_turn(15)
    with transaction() as session:
        queue.register(session, "away", "cpu", "a processor", None, None)
        commit = world.commit(session, large.id, f"{next(_shas):08}")
        bound = world.run(session, commit, priority=BACKFILL, only_worker="away")
        queue.enqueue(session, bound)
    in_turn(5)
    wants(small, MAINLINE)
    begun, order = taken("away"), list[int]()
    while bound.id not in order:
        wants(small, MAINLINE)
        measured(begun)
        begun = taken("away")
        order.append(begun.run_id)
        assert len(order) <= 10


@pytest.mark.parametrize("seed", range(2))
def test_nobody_is_delayed_by_more_than_a_run_of_each_of_the_others(either, seed):
    """Whatever arrives, is measured and is cancelled: the only run of a target waits for one of each of the others."""
    chance = random.Random(seed)
    many = [world.target(RECIPE, f"many-{number}") for number in range(3)]
    rare = world.target(RECIPE, "rare")
    for target in many:
        wants(target, PULL, chance.randrange(1, 12))
    for _ in range(4):
        begun = taken()
        for target in many:
            wants(target, PULL, chance.randrange(3))
            cancelled(target, chance)
        [run] = wants(rare, PULL)
        measured(begun)
        for target in many:
            wants(target, PULL, chance.randrange(8))
        order = in_turn(1)
        while order[-1] != run:
            order += in_turn(1)
        of = [target_of(one) for one in order[:-1]]
        assert len(of) == len(set(of)), "none of them came twice"


def cancelled(target: Target, chance: random.Random) -> None:
    """Somebody cancels one of the waiting runs of a target."""
    with transaction() as session:
        runs = [run.id for run in queries.queue(session).items if run.target_id == target.id and run.worker is None]
        if runs:
            queue.cancel(session, chance.choice(runs), "ada")


def target_of(run_id: int) -> int:
    with reading() as session:
        return session.get_one(Run, run_id).target_id
