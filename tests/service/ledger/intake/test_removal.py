"""A target that is changed or removed while others write rows of it.  On SQLite and PostgreSQL."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Barrier, BrokenBarrierError, Event

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.db.engine import engine, reading, transaction
from service.db.models import Run, Target
from service.domain.states import RunState
from service.errors import Conflict, NotFound
from service.ledger.intake import registry
from service.ledger.runs import queue
from service.ledger.runs.revisions import locked_pull
from tests import world

Wait = Callable[[], object]


@pytest.fixture
def target(either: str) -> Target:
    return world.target()


@pytest.fixture
def before_the_end(target: Target) -> Iterator[list[Wait]]:
    """What to do before the row of a removed target is deleted, when all rows that refer to it are."""
    steps: list[Wait] = []

    def step(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        if statement.startswith("DELETE FROM targets"):
            for one in steps:
                one()

    event.listen(engine(), "before_cursor_execute", step)
    yield steps
    event.remove(engine(), "before_cursor_execute", step)


def removed() -> bool:
    with reading() as session:
        return session.scalar(select(Target.id)) is None


def while_removing(steps: list[Wait], write: Callable[[Session], object]) -> Future[None]:
    """Remove the target, and write just before that ends."""
    deleting, written = Event(), Event()

    def wait() -> None:
        deleting.set()
        written.wait(0.5)  # times out: the writer waits for the removal

    def another() -> None:
        assert deleting.wait(30)
        with transaction() as session:
            write(session)
        written.set()

    steps.append(wait)
    with ThreadPoolExecutor(2) as both:
        writing = both.submit(another)
        both.submit(registry.remove, "norms").result(30)
    return writing


def test_nobody_adds_rows_of_a_target_while_it_is_removed(target: Target, before_the_end: list[Wait]) -> None:
    writing = while_removing(before_the_end, lambda session: world.commit(session, target.id, "late"))
    assert removed()
    assert isinstance(writing.exception(), IntegrityError)


def test_who_waits_for_a_removal_reads_that_there_is_no_such_target(target: Target, before_the_end: list[Wait]) -> None:
    writing = while_removing(before_the_end, lambda session: locked_pull(session, target.id, 7))
    assert removed()
    assert isinstance(writing.exception(), NotFound)


def test_two_who_remove_a_target_at_once(target: Target, before_the_end: list[Wait]) -> None:
    begun = Event()

    def wait() -> None:
        begun.set()
        time.sleep(0.3)  # the other gets as far as it can

    before_the_end.append(wait)

    def second() -> None:
        assert begun.wait(30)
        registry.remove("norms")

    with ThreadPoolExecutor(2) as both:
        first, other = both.submit(registry.remove, "norms"), both.submit(second)
        first.result(30)
        assert isinstance(other.exception(30), NotFound)
    assert removed()


@pytest.mark.parametrize(
    ("change", "refused"), [(partial(registry.rename, new="b"), NotFound), (registry.pause, Conflict)]
)
def test_what_two_change_at_once_is_changed_once(
    target: Target, change: Callable[[str], None], refused: type[Exception]
) -> None:
    both, begun = Barrier(2), Event()

    def before(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        """Let nobody write before the other has read, or waits for its turn."""
        if statement.startswith(("UPDATE targets", "INSERT INTO audit")) and not begun.is_set():
            with suppress(BrokenBarrierError):
                both.wait(0.5)
            begun.set()

    event.listen(engine(), "before_cursor_execute", before)
    with ThreadPoolExecutor(2) as pool:
        errors = [one.exception(30) for one in [pool.submit(change, target.name) for _ in range(2)]]
    event.remove(engine(), "before_cursor_execute", before)
    assert [type(one) for one in errors if one is not None] == [refused]


def test_a_target_is_not_removed_while_its_run_is_recorded(target: Target) -> None:
    """Recording holds the run and adds rows of the target: a removal that waited for the run would block both."""
    with transaction() as session:
        run_id = world.run(session, world.commit(session, target.id, "a")).id
    with transaction() as session:
        lease = queue.next_run(session, "cpu", "one", 60)
    assert lease is not None
    ended, refused = Event(), Event()

    def record() -> None:
        with transaction() as session:
            queue.end(session, lease, RunState.DONE)
            session.flush()
            ended.set()
            refused.wait(0.5)  # times out on SQLite, where one transaction runs at a time
            world.commit(session, target.id, "b")

    def remove() -> None:
        assert ended.wait(30)
        try:
            registry.remove("norms")
        finally:
            refused.set()

    with ThreadPoolExecutor(2) as both:
        recording, removing = both.submit(record), both.submit(remove)
        recording.result(30)
        assert removing.exception(30) is None or isinstance(removing.exception(), Conflict)
    with reading() as session:
        assert removed() or session.get_one(Run, run_id).state is RunState.DONE
