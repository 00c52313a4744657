"""When a queued run is expected to end."""

import pytest

from service.db.engine import clock, transaction
from service.db.models import Attempt, Target
from service.db.visibility import hiding
from service.domain.states import Priority, Purpose, RunState
from service.ledger.runs.queue import QueuePlace, places
from tests import world

pytestmark = pytest.mark.usefixtures("state")


class House:
    """A target whose runs take a minute, unless a test says otherwise."""

    def __init__(self, *, workers: int = 1, took_s: tuple[float, ...] = (50.0, 60.0, 200.0)) -> None:
        self.target = world.target()
        with transaction() as session:
            self.revision_id = world.commit(session, self.target.id, 1).id
        for seconds in took_s:
            self.run(state=RunState.DONE, attempt=1, started_at=1000.0, finished_at=1000.0 + seconds)
        for number in range(workers):
            self.worker(f"box{number}")

    def run(self, **columns: object) -> int:
        with transaction() as session:
            revision = world.commit(session, self.target.id, 1)
            return world.run(session, revision, **columns).id

    def leased(self, worker: str, since_s: float) -> int:
        run_id = self.run(state=RunState.LEASED, attempt=1, worker=worker)
        with transaction() as session:
            session.add(Attempt(run_id=run_id, attempt=1, worker=worker, started_at=clock(session) - since_s))
        return run_id

    def worker(self, name: str, seen_s_ago: float = 0.0, **columns: object) -> None:
        with transaction() as session:
            world.worker(session, name, **{"seen_at": clock(session) - seen_s_ago} | columns)


def found() -> dict[int, tuple[int | None, int | None]]:
    """Position and time in whole seconds."""
    with transaction() as session:
        return {run_id: (one.position, _whole(one)) for run_id, one in places(session).items()}


def _whole(place: QueuePlace) -> int | None:
    return None if place.eta_s is None else round(place.eta_s)


def test_runs_of_one_worker_end_one_after_the_other() -> None:
    house = House()
    first, second = house.run(), house.run()
    assert found() == {first: (1, 60), second: (2, 120)}


def test_the_one_in_progress_is_waited_for() -> None:
    house = House()
    measured, first = house.leased("box0", since_s=20.0), house.run()
    assert found() == {measured: (0, 40), first: (1, 100)}


def test_one_that_takes_longer_than_usual_may_end_at_any_moment() -> None:
    house = House()
    measured, first = house.leased("box0", since_s=300.0), house.run()
    assert found() == {measured: (0, 0), first: (1, 60)}


def test_workers_share_the_queue() -> None:
    house = House(workers=2)
    ids = [house.run() for _ in range(4)]
    assert [found()[one][1] for one in ids] == [60, 60, 120, 120]


def test_the_order_is_that_in_which_they_are_taken() -> None:
    house = House()
    late, soon = house.run(priority=Priority.BACKFILL), house.run(priority=Priority.PULL_REQUEST)
    assert found() == {soon: (1, 60), late: (2, 120)}


def test_a_run_that_waits_before_its_next_attempt_ends_later() -> None:
    house = House()
    with transaction() as session:
        in_half_a_minute = clock(session) + 30.0
    later = house.run(not_before=in_half_a_minute)
    assert found() == {later: (1, 90)}


def test_a_run_bound_to_a_worker_waits_for_that_one() -> None:
    house = House(workers=2)
    house.leased("box1", since_s=0.0)
    bound, free = house.run(only_worker="box1"), house.run()
    assert (found()[bound], found()[free]) == ((1, 120), (2, 60))


@pytest.mark.parametrize("purpose", [Purpose.BISECTION, Purpose.CALIBRATION])
def test_a_step_is_not_expected_to_take_as_long_as_a_whole_run(purpose: Purpose) -> None:
    house = House()
    first = house.run(purpose=purpose)
    assert found()[first] == (1, None)
    house.run(purpose=purpose, state=RunState.DONE, attempt=1, started_at=0.0, finished_at=5.0)
    assert found()[first] == (1, 5)


def test_of_a_first_run_nothing_is_known() -> None:
    first = House(took_s=()).run()
    assert found() == {first: (1, None)}


@pytest.mark.parametrize(
    "worker", [{"seen_s_ago": 90.0}, {"paused_at": 1.0}, {"device": "h200"}, {"sandbox": "user namespaces are refused"}]
)
def test_a_worker_that_takes_no_run_is_not_counted(worker: dict[str, object]) -> None:
    house = House(workers=0)
    house.worker("box", **worker)  # type: ignore[arg-type]
    first = house.run()
    assert found() == {first: (1, None)}


def test_a_trusted_target_may_be_measured_without_a_sandbox() -> None:
    house = House(workers=0)
    house.worker("box", sandbox="user namespaces are refused")
    with transaction() as session:
        session.get_one(Target, house.target.id).allow_unsandboxed = True
    ours, strangers = house.run(), house.run(trusted=False)
    assert found() == {ours: (1, 60), strangers: (2, None)}


def test_behind_work_without_a_known_end_nothing_is_known() -> None:
    house = House()
    unknown, behind = house.run(purpose=Purpose.BISECTION, priority=Priority.PULL_REQUEST), house.run()
    assert found() == {unknown: (1, None), behind: (2, None)}


def test_a_held_run_has_no_place() -> None:
    House().run(state=RunState.HELD)
    assert found() == {}


def test_failed_and_repeated_attempts_say_nothing_about_durations() -> None:
    house = House()
    house.run(state=RunState.FAILED, attempt=1, started_at=0.0, finished_at=9000.0)
    house.run(state=RunState.DONE, attempt=2, started_at=0.0, finished_at=9000.0)
    first = house.run()
    assert found() == {first: (1, 60)}


def test_runs_that_are_hidden_do_not_count() -> None:
    house, hidden = House(), world.target(name="secret")
    with transaction() as session:
        world.run(session, world.commit(session, hidden.id, 1), priority=Priority.PULL_REQUEST)
    visible = house.run()
    assert found()[visible][0] == 2
    with hiding([hidden.id]):
        assert found() == {visible: (1, 60)}
