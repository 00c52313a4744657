"""A facts worker that is asked to stop gives its check back at once, and leaves no program and no file behind."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from service.db.engine import reading, transaction
from service.db.models import FactsCheck
from service.domain.states import FactsState
from service.errors import BuildFailed
from service.ledger import targets
from service.ledger.intake import deliveries
from service.ops import supervisor
from service.settings import settings
from tests.fakes.processes import running, until
from tests.fakes.repository import MEASURED_ANYWHERE
from tests.workers.compile.test_compare import RECIPE, Norms, norms
from workers.compile import compare, facts_worker
from workers.run.heartbeat import Stopped, stopping

__all__ = ["norms"]
STOPPED = (FactsState.QUEUED, 0, str(Stopped()))


@pytest.fixture
def watched(norms: Norms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Norms:
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", json.dumps([str(tmp_path)]))
    settings.cache_clear()
    return norms


@pytest.fixture
def asked_to_stop() -> Iterator[threading.Event]:
    """The event that asks this process to stop."""
    yield stopping
    stopping.clear()


def queued(norms: Norms, recipe: str = RECIPE) -> None:
    """Queue a check of the last commit."""
    with transaction() as session:
        where = {"location": str(norms.folder), "branch": "main"}
        targets.register(session, "norms", recipe_text=recipe, **where, **MEASURED_ANYWHERE)
    deliveries.run_revision("norms", "main", device="h200")


def check() -> tuple[FactsState, int, str | None]:
    """The state of the only check, its attempts and its reason."""
    with reading() as session:
        row = session.scalars(select(FactsCheck)).one()
    return row.state, row.attempt, row.reason


def programs(mark: object) -> list[str]:
    """The commands of running programs that contain the mark."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
        if str(mark) in command and int(process.name) != os.getpid():
            commands.append(command)
    return commands


def test_control_that_is_stopped_gives_the_check_in_progress_back(watched, state, tmp_path):
    watched.commit(fast="hang")
    queued(watched)

    def compiling() -> bool:
        return any(state.glob("scratch/facts-*/*/stderr.log")) and bool(programs(tmp_path))

    with running({"control": ["-m", "service.cli", "control"]}, {}, tmp_path / "logs"):
        until(compiling, 60, 0.1)
        began = time.monotonic()
    assert time.monotonic() - began < 30  # after which it would have been killed
    assert check() == STOPPED
    assert programs(tmp_path) == []
    assert list((state / "scratch").iterdir()) == []


def test_a_build_in_progress_is_ended(watched, state, asked_to_stop):
    build = f"sleep 600.{os.getpid()}"
    queued(watched, RECIPE.replace("test ! -e broken", build))
    worker = facts_worker.run_with_control()
    until(lambda: programs(build), 60, 0.1)

    asked_to_stop.set()
    worker.join(supervisor.GRACE_S)

    assert not worker.is_alive()
    assert check() == STOPPED
    assert programs(build) == []
    assert list((state / "environments").iterdir()) == []


@pytest.mark.parametrize("error", [None, BuildFailed("cp was killed")], ids=str)
def test_no_result_of_the_time_after_the_signal_is_stored(watched, monkeypatch, asked_to_stop, error):
    """The signal may have ended programs of the check as well."""
    queued(watched)

    def stopped_meanwhile(*_: object) -> None:
        asked_to_stop.set()
        if error is not None:
            raise error

    monkeypatch.setattr(compare, "facts", stopped_meanwhile)
    facts_worker.compile_due()
    assert check() == STOPPED


def test_celery_ends_a_process_and_its_check_is_given_back(watched, monkeypatch):
    queued(watched)

    def told_to_exit(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(compare, "facts", told_to_exit)
    with pytest.raises(SystemExit):
        facts_worker.compile_due()
    assert check() == STOPPED
