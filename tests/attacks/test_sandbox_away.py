"""bubblewrap fails while a worker has work: nothing fails because of it, and nothing is tried without it."""

import os
import shutil
import stat
from pathlib import Path

import pytest
from sqlalchemy import select

from service.db.engine import reading, transaction
from service.db.models import Run, Worker
from service.domain.states import RunState
from service.ledger.intake import deliveries
from tests import needs
from tests.attacks.conftest import Outcome
from tests.workers.conftest import norms, scripted, watched  # noqa: F401  fixtures
from workers import control
from workers.machine.device import DeviceHere
from workers.sandbox import sandbox

pytestmark = needs.skip_unless(sandbox.self_test() is None, "bubblewrap")
WALL = "sandbox away"


class Bubblewrap:
    """The bubblewrap of this test: the real one for as many starts as it is told, and then one that fails."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.program, self._left = folder / "bwrap", folder / "left"
        count = f'left=$(cat {self._left}); [ "$left" -gt 0 ] || {{ echo "bwrap: No permissions" >&2; exit 1; }}'
        real = shutil.which("bwrap")
        starts = f'case "$1" in --help) ;; *) {count}; echo $((left - 1)) > {self._left};; esac'
        self.program.write_text(f'#!/bin/sh\n{starts}\nexec {real} "$@"\n')
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.works_for(10**6)

    def works_for(self, starts: int) -> None:
        self._left.write_text(f"{starts}\n")
        sandbox.doubt()


@pytest.fixture
def bubblewrap(tmp_path, monkeypatch):
    made = Bubblewrap(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(control, "here", lambda: DeviceHere("cpu", "the processor"))
    yield made
    sandbox.doubt()


def the_run() -> Run:
    with reading() as database:
        return database.execute(select(Run)).scalar_one()


def queued(watched, **files: str) -> None:  # noqa: F811
    sha = watched.commit({"speed.json": "{}", **files})
    deliveries.run_revision("norms", sha)


def test_a_worker_without_a_sandbox_takes_nothing_that_needs_one(watched, bubblewrap, outcome: Outcome):  # noqa: F811
    queued(watched)
    bubblewrap.works_for(0)
    taken = control.work("cpu")
    run = the_run()
    with reading() as database:
        shown = database.execute(select(Worker.sandbox)).scalar_one()

    held = (taken, run.state, run.attempt) == (0, RunState.QUEUED, 0) and "No permissions" in (shown or "")
    seen = f"{taken} taken, run {run.state.value} in attempt {run.attempt}"
    goal = "0 taken, run queued in attempt 0, the worker says why"
    outcome(WALL, "bubblewrap fails before a run is taken", held=held, seen=seen, goal=goal)
    bubblewrap.works_for(10**6)
    assert control.work("cpu") == 1, "the worker tests its sandbox again"


@pytest.mark.parametrize("starts", [2, 3])
def test_a_run_whose_sandbox_goes_away_is_given_back_without_blame(watched, bubblewrap, outcome: Outcome, starts):  # noqa: F811
    queued(watched)
    bubblewrap.works_for(starts)
    control.work("cpu")
    run = the_run()
    left = run.max_attempts - run.attempt

    held = (run.state, left) == (RunState.QUEUED, 3) and "The sandbox stopped working" in (run.reason or "")
    seen = f"run {run.state.value}, {left} attempts left: {run.reason}"
    outcome(WALL, f"bubblewrap fails from start {starts + 1} on", held=held, seen=seen, goal="queued, 3 attempts left")


def test_without_a_sandbox_a_trusted_target_that_is_allowed_to_is_measured(watched, bubblewrap):  # noqa: F811
    queued(watched)
    with transaction() as database:
        run = database.execute(select(Run)).scalar_one()
        run.trusted = True
        database.refresh(run, ["target"])
        run.target.allow_unsandboxed = True
    bubblewrap.works_for(0)
    assert control.work("cpu") == 1
    assert the_run().attempt == 1
