"""A worker as a job of Slurm: the signal before the end of the job lets it end its run, and the next run waits."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from service.db.engine import reading
from service.db.models import Attempt, Run
from service.domain.states import RunState
from service.settings import Settings, settings
from tests.fakes.processes import ROOT, scripted_python, until
from tests.fakes.repository import Repository
from tests.shell import kernelwatch

CASE = "rmsnorm.fwd.512x512.fp32"
RECIPE = f"""
devices = ["cpu"]
suite = "one"
sota = "eager"
[base]
stack = "host"
[build]
commands = ["sleep 3"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[suites]
one = ["{CASE}"]
"""
SCRIPT = ROOT / "deploy" / "slurm" / "worker.sbatch"


@pytest.fixture
def job(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    """The script as Slurm starts it, with two runs in the queue, once it measures the first of them."""
    monkeypatch.setenv("KERNELWATCH_DEVICE", "cpu")
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", f'["{tmp_path}"]')
    settings.cache_clear()
    repository = Repository(tmp_path / "norms")
    for subject in ("first", "second"):
        repository.commit(subject, {"speed.json": f'{{"{CASE}": 100.0}}', "subject.txt": subject})
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    kernelwatch("target", "add", "norms", repository.folder, "--trusted", "--recipe", recipe, "--backfill", 2)
    kernelwatch("target", "allow-unsandboxed", "norms")
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "kernelwatch").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m service.cli "$@"\n')
    (commands / "kernelwatch").chmod(0o755)
    environment = {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [SCRIPT, scripted_python(tmp_path / "stack")], env=os.environ | environment, start_new_session=True
    )
    try:
        until(lambda: RunState.LEASED in states(), limit_s=60, every_s=0.05)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def states() -> list[RunState]:
    with reading() as session:
        return list(session.scalars(select(Run.state).order_by(Run.id)))


def test_a_job_ends_its_run_and_takes_no_other(job: "subprocess.Popen[bytes]") -> None:
    job.send_signal(signal.SIGUSR1)
    assert job.wait(120) == 0
    assert sorted(states()) == [RunState.DONE, RunState.QUEUED]


def test_a_job_that_is_cancelled_gives_its_run_back(job: "subprocess.Popen[bytes]") -> None:
    """As `scancel --batch` does; the attempt does not count."""
    job.send_signal(signal.SIGTERM)
    assert job.wait(120) == 0
    assert states() == [RunState.QUEUED, RunState.QUEUED]
    with reading() as session:
        assert [one.lost for one in session.scalars(select(Attempt))] == [False]


def test_the_signal_comes_before_a_session_could_be_cut() -> None:
    [before_s] = map(int, re.findall(r"^#SBATCH --signal=B:USR1@(\d+)$", SCRIPT.read_text(), re.MULTILINE))
    limits = Settings.model_fields
    assert before_s >= limits["session_limit_s"].default + limits["build_limit_s"].default
