"""The periodic tasks of control: one must neither stop, nor starve, nor slow down the others."""

import json
import threading
import time
from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from service.db import schema, wakeups
from service.db.engine import clock as database_clock
from service.db.engine import reading, transaction
from service.db.models import Bisection, Delivery, FactsCheck, Revision, Run, Target
from service.domain.states import ForgeKind, RunState, SearchState
from service.ledger import locking, side_by_side, targets
from service.ledger.bisections import bisections
from service.ledger.intake import deliveries
from service.ledger.locking import Backoff
from service.settings import settings
from tests import world
from tests.fakes.contracts import webhooks
from tests.fakes.git_server import serving
from tests.fakes.repository import Repository
from tests.workers.conftest import RECIPE
from tests.workers.periodic import happens, run_control, running_control
from workers import control
from workers.compile import facts_worker


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only go by when a test says so."""
    now = [1000.0]
    monkeypatch.setattr(control.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(locking.time, "monotonic", lambda: now[0])
    return now


def test_a_duty_runs_at_once_and_then_at_most_every_so_often_even_if_it_fails(clock):
    done = []

    def task() -> None:
        done.append(clock[0])
        raise RuntimeError

    duty = control.Duty(task, 60.0)
    for _ in range(31):
        if clock[0] in (1000.0, 1060.0):
            with pytest.raises(RuntimeError):
                duty()
        else:
            duty()
        clock[0] += 2.0
    assert done == [1000.0, 1060.0]
    assert duty.__name__ == "task", "the log names what failed"


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
    for _ in range(2):
        for duty in (duty for lane in control.LANES for duty in lane.duties):
            monkeypatch.setattr(duty, "_next", 0.0)
        run_control()
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
            run_control()
            assert facts_worker.compile_due() == 0
    finally:
        becomes(schema.newest())
    with reading() as session:
        assert session.get_one(Run, waiting).state is RunState.QUEUED
        assert session.get_one(Run, lost).state is RunState.LEASED
        assert session.scalars(select(FactsCheck)).all() == []
    problem = f"the database is at migration {migration}, and this version needs {schema.newest()}; {remedy}"
    assert [one["reason"] for one in said] == [problem], "once, however often it is asked"

    run_control()
    with reading() as session:
        assert session.get_one(Run, lost).state is RunState.QUEUED


@dataclass
class Remotes:
    """A git server over HTTP whose repositories answer, or hang once somebody asks for them."""

    folder: Path
    address: str
    hanging: set[str]
    asked: list[str]
    over: threading.Event  # what hangs goes on

    def watched(self, name: str) -> str:
        """Make a repository with one commit, and watch it; the commit."""
        repository = Repository(self.folder / name)
        head = repository.commit("work", {"norms.py": f"# {name}"})
        with transaction() as session:
            targets.register(session, name, location=f"{self.address}/{name}/.git", recipe_text=RECIPE, branch="main")
        return head

    def due(self) -> None:
        with transaction() as session:
            session.execute(update(Target).values(poll_at=Target.id))  # in this order


@pytest.fixture
def remotes(tmp_path, monkeypatch) -> Iterator[Remotes]:
    folder, over = tmp_path / "remotes", threading.Event()
    hanging, asked = set[str](), list[str]()

    def ask(path: str) -> None:
        name = path.split("/")[1]
        asked.append(name)
        if name in hanging:
            over.wait(60.0)

    with serving(folder, ask) as port:
        monkeypatch.setenv("KERNELWATCH_PRIVATE_HOSTS", json.dumps([f"127.0.0.1:{port}"]))
        settings.cache_clear()
        yield Remotes(folder, f"http://127.0.0.1:{port}", hanging, asked, over)


def known(sha: str) -> bool:
    with reading() as session:
        return session.scalar(select(Revision.id).where(Revision.sha == sha)) is not None


def searched_for(bisection: int) -> Bisection:
    with reading() as session:
        return session.get_one(Bisection, bisection)


def is_processed(delivery: int) -> bool:
    with reading() as session:
        return session.get_one(Delivery, delivery).processed_at is not None


@pytest.mark.usefixtures("either_nightly")
def test_a_repository_that_hangs_delays_no_other(remotes):
    """Neither polls nor webhooks of others, nor what control does without a repository."""
    heads = {name: remotes.watched(name) for name in ("hangs", "first", "second")}
    with transaction() as session:
        session.execute(update(Target).values(forge=Target.name.concat("/norms"), forge_kind=ForgeKind.GITHUB))
    remotes.hanging.add("hangs")
    remotes.due()
    with running_control():
        assert happens(lambda: "hangs" in remotes.asked)
        assert happens(lambda: known(heads["first"]) and known(heads["second"]))
        stored = dict[str, int]()
        for name in ("hangs", "second"):
            push = webhooks.push(heads[name], heads[name], repository=f"{name}/norms")
            with transaction() as session:
                body = webhooks.body_from_github("push", push)
                stored[name], _ = deliveries.store_delivery(session, name, "push", body)
        with transaction() as session:
            ping, _ = deliveries.store_delivery(session, "ping", "ping", b"{}")
        control.wake()
        assert happens(lambda: is_processed(stored["second"]) and is_processed(ping))
        assert not is_processed(stored["hangs"])
        assert not known(heads["hangs"]), "it still waits"
        remotes.over.set()
        assert happens(lambda: known(heads["hangs"]) and is_processed(stored["hangs"])), "nothing is lost"


def test_twenty_repositories_that_hang_delay_no_other(remotes, state):
    """Neither their polls nor the searches for their culprits hold up those of another one for more than seconds."""
    heads = {name: remotes.watched(name) for name in (*(f"hangs-{number}" for number in range(20)), "answers")}
    remotes.hanging.update(heads.keys() - {"answers"})
    remotes.due()
    with running_control():
        assert happens(lambda: known(heads["answers"]), 20.0)  # a fetch that hangs ends after 30 s
        with transaction() as session:
            for target in session.scalars(select(Target).order_by(Target.id)).all():
                # Control asks the repository for the line between these ends.
                ends = (session, target, "cpu", heads["answers"], f"{target.id:040}", ())
                searched = bisections.start(*ends, asked_by="ada").id
        control.wake()
        assert happens(lambda: searched_for(searched).state is SearchState.STOPPED, 20.0)
        assert not any(known(heads[name]) for name in remotes.hanging)
        remotes.over.set()


@pytest.fixture
def impatient(monkeypatch):
    """One place, which work gives up after half a second, and room for two repositories that hang."""
    monkeypatch.setenv("KERNELWATCH_REPOSITORIES_AT_ONCE", "1")
    settings.cache_clear()
    monkeypatch.setattr(side_by_side, "PLACE_S", 0.5)
    monkeypatch.setattr(side_by_side, "WAITING", 2)


def poll_error(name: str) -> str:
    with reading() as session:
        return session.scalar(select(Target.poll_error).where(Target.name == name)) or ""


@pytest.mark.usefixtures("impatient", "state")
def test_more_repositories_that_hang_than_there_is_room_for_delay_no_other(remotes):
    heads = {name: remotes.watched(name) for name in (*(f"hangs-{number}" for number in range(6)), "answers")}
    remotes.hanging.update(heads.keys() - {"answers"})
    remotes.due()
    with running_control():
        assert happens(lambda: known(heads["answers"]), 20.0)  # a fetch that hangs ends after 30 s
        assert happens(lambda: "while 2 others take long, too; it is asked again later" in poll_error("hangs-0"))
        remotes.over.set()


def test_work_for_a_repository_has_a_limit(remotes, state, monkeypatch):
    remotes.watched("hangs")
    remotes.hanging.add("hangs")
    remotes.due()
    monkeypatch.setattr(side_by_side, "LIMIT_S", 1.0)
    with running_control():
        assert happens(lambda: "took longer than 1 s" in poll_error("hangs"), 20.0)
        remotes.over.set()


@pytest.mark.usefixtures("either_nightly")
def test_all_threads_of_control_have_a_connection_at_once():
    count = len(control.LANES) + 3 * settings().repositories_at_once + 2  # facts checks, and the main thread
    together = threading.Barrier(count, timeout=10.0)

    def ask(_: int) -> float:
        with reading() as session:
            now = database_clock(session)
            together.wait()
            return now

    with ThreadPoolExecutor(count) as pool:
        assert len(list(pool.map(ask, range(count)))) == count


def test_a_delivery_that_is_processed_while_others_are_looked_for_is_processed_once(remotes, state, monkeypatch):
    """Its row was read as one that waits, and its repository has nothing to do any more."""
    head = remotes.watched("norms")
    with transaction() as session:
        session.execute(update(Target).values(forge="acme/norms", forge_kind=ForgeKind.GITHUB))
        body = webhooks.body_from_github("push", webhooks.push(head, head, repository="acme/norms"))
        delivery, _ = deliveries.store_delivery(session, "one", "push", body)
    remotes.hanging.add("norms")
    this = threading.current_thread()

    @contextmanager
    def slow() -> Iterator[Session]:
        """A transaction of this thread ends after what hung is processed."""
        with reading() as session:
            yield session
        if threading.current_thread() is this:
            remotes.over.set()
            assert happens(lambda: not any(thread.name == "deliveries" for thread in threading.enumerate()))

    with capture_logs() as logs:
        assert deliveries.process_due(wait=False) == 0
        assert happens(lambda: "norms" in remotes.asked)
        monkeypatch.setattr(deliveries, "reading", slow)
        assert deliveries.process_due() == 0
    assert [entry["event"] for entry in logs].count("delivery") == 1
    assert is_processed(delivery)


def test_control_is_woken_once_a_repository_is_free_again(remotes, state, monkeypatch):
    """What came for it meanwhile waits for no poll."""
    head = remotes.watched("norms")
    with transaction() as session:
        session.execute(update(Target).values(forge="acme/norms", forge_kind=ForgeKind.GITHUB))
    busy = list[frozenset[Hashable]]()
    monkeypatch.setattr(wakeups, "_sender", lambda _queue: busy.append(deliveries._repositories.busy()))
    with transaction() as session:
        body = webhooks.body_from_github("push", webhooks.push(head, head, repository="acme/norms"))
        deliveries.store_delivery(session, "one", "push", body)
    assert deliveries.process_due() == 1
    assert {(ForgeKind.GITHUB, "acme/norms")} in busy, "it is woken for the reports, too"
    assert happens(lambda: busy[-1] == frozenset(), 10.0)


def test_control_is_silent_while_a_lane_hangs(monkeypatch):
    lanes = [control.Lane(name, control.Duty(lambda: None)) for name in ("polls", "ledger")]
    noted = []
    monkeypatch.setattr(control, "LANES", lanes)
    monkeypatch.setattr(control, "note_tick", lambda: noted.append(control.hung()))
    monkeypatch.setattr(schema, "fits", lambda: True)
    control._tick()
    assert noted == [[]], "nothing hangs that was not started"

    for lane in lanes:
        lane.passed_at = time.monotonic() - control.HUNG_S - 1
    lanes[1].run()
    control._tick()
    assert (control.hung(), noted) == (["polls"], [[]])

    lanes[0].run()
    control._tick()
    assert (control.hung(), noted) == ([], [[], []])
