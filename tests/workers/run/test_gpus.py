"""Several devices of one host share a run: real processes, on two cores that stand for two GPUs."""

import json
import os
import signal
import time
from collections import Counter
from dataclasses import replace

import pytest
from sqlalchemy import select
from sqlalchemy.orm import undefer

from kernels.arena.channel import Channel
from kernels.arena.session import Contender
from kernels.cases import Case, Role
from service.db.engine import reading, transaction
from service.db.models import Measurement, Run, VerdictRow, Worker
from service.domain import roofline
from service.domain.states import BaselineKind, CellState, Outcome, RunState
from service.ledger import targets
from service.ledger.intake import deliveries
from service.ledger.runs import queue
from service.settings import settings
from tests.fakes.repository import MEASURED_ANYWHERE
from tests.workers.conftest import CASE, RECIPE
from workers import control
from workers.machine.device import DeviceHere
from workers.run import session
from workers.run.trials import OnDevice, deal

ONE, TWO = (DeviceHere("cpu", f"core {number}", f"core-{number}", number) for number in range(2))
CASES = [f"rmsnorm.fwd.{rows}x8.fp32" for rows in (4, 8, 16, 32, 64)]
OF_PARENT = VerdictRow.baseline_kind == BaselineKind.PARENT


class Failing:
    """Kills the processes of device TWO from one of its turns, or one of its starts, on."""

    def __init__(self, event: str, number: int) -> None:
        self.event, self.left = event, number
        self.channels: list[Channel] = []

    def contender(self, label, role, provider, place, here, **options) -> Contender:
        made = session_contender(label, role, provider, place, here, **options)
        return replace(made, start=lambda: self.started(made)) if here is TWO else made

    def started(self, contender: Contender) -> Channel:
        channel = contender.start()
        ask = channel.ask

        def watched(message, *more):
            self.seen(message["do"])
            return ask(message, *more)

        channel.ask = watched
        self.channels.append(channel)
        return channel

    def seen(self, event: str) -> None:
        self.left -= event == self.event
        if self.left <= 0:
            for channel in self.channels:
                channel._process.poll() is None and os.killpg(channel._process.pid, signal.SIGKILL)


session_contender = session.contender


@pytest.fixture
def shared(scripted, norms):
    """A watched repository with five cases."""
    with transaction() as database:
        recipe = RECIPE.replace(f'["{CASE}"]', json.dumps(CASES))
        targets.register(
            database, "norms", recipe_text=recipe, location=str(norms.folder), branch="main", **MEASURED_ANYWHERE
        )
    return norms


def commit(norms, speed: object) -> str:
    return norms.commit({"speed.json": json.dumps(dict.fromkeys(CASES, speed)), "when": str(time.monotonic_ns())})


def measured(norms, *here: DeviceHere, speed=100.0) -> tuple[Run, tuple[DeviceHere, ...]]:
    """A run of a new commit on these devices, and those that were lost."""
    deliveries.run_revision("norms", commit(norms, speed))
    with transaction() as database:
        lease = queue.next_run(database, "cpu", "test/cpu-0", settings().lease_s)
    assert lease
    lost = session.measure(lease, *here)
    with reading() as database:
        return database.get_one(Run, lease.run_id, options=[undefer(Run.telemetry)]), lost


def heads(run: Run) -> dict[str, Measurement]:
    with reading() as database:
        rows = database.execute(select(Measurement).where(Measurement.run_id == run.id, Measurement.role == Role.HEAD))
        return {row.case: row for row in rows.scalars()}


def cases_of(run: Run) -> list[list[str]]:
    return [gpu["cases"] for gpu in run.telemetry["gpus"]]


def test_two_gpus_share_the_cases_and_each_case_stays_on_one(shared):
    run, lost = measured(shared, ONE, TWO)
    again, _ = measured(shared, ONE, TWO)

    assert (run.state, lost) == (RunState.DONE, ())
    first, second = cases_of(run)
    assert sorted(first + second) == sorted(CASES)
    assert {len(first), len(second)} == {2, 3}
    assert cases_of(again) == [first, second], "the history of a case has the times of one GPU"
    assert {case: row.trials for case, row in heads(run).items()} == dict.fromkeys(CASES, 2)
    assert Counter(trial["gpu"] for trial in run.telemetry["trials"]) == {0: 2, 1: 2}
    assert run.telemetry["trials"][1]["what"] == "trial 1 on GPU 1"


def test_one_gpu_is_named_nowhere(shared):
    run, _ = measured(shared, ONE)
    assert "gpus" not in run.telemetry
    assert [trial["what"] for trial in run.telemetry["trials"]] == ["trial 1", "trial 2"]


@pytest.mark.parametrize(("event", "number"), [("start", 5), ("turn", 20), ("turn", 1)])
def test_a_gpu_that_is_lost_in_the_middle_loses_nothing(shared, monkeypatch, event, number):
    """Between two trials, in a later case, or in the first."""
    commit(shared, 100.0)
    monkeypatch.setattr(session, "contender", Failing(event, number).contender)

    run, lost = measured(shared, ONE, TWO, speed=120.0)

    assert (run.state, lost) == (RunState.DONE, (TWO,))
    assert run.reason.endswith("GPU 1 was lost: its 2 cases were given to the others")
    assert [sorted(cases) for cases in cases_of(run)] == [sorted(CASES), []]
    rows = heads(run)
    assert {row.state for row in rows.values()} == {CellState.MEASURED}
    assert len({row.trials for row in rows.values()}) == 1, "the moved cases have trials as the others"
    with reading() as database:
        outcomes = database.scalars(select(VerdictRow.outcome).where(VerdictRow.run_id == run.id, OF_PARENT)).all()
    assert outcomes == [Outcome.REGRESSION] * len(CASES)


def test_a_worker_goes_on_without_a_lost_gpu_until_it_is_restarted(shared, monkeypatch):
    monkeypatch.setattr(control, "devices", lambda: (ONE, TWO))
    monkeypatch.setattr(control, "_lost", set())
    monkeypatch.setattr(session, "contender", Failing("turn", 1).contender)
    for _ in range(2):
        deliveries.run_revision("norms", commit(shared, 100.0))

    assert control.work("cpu") == 2

    with reading() as database:
        runs = database.scalars(select(Run).order_by(Run.started_at).options(undefer(Run.telemetry))).all()
        [worker] = database.scalars(select(Worker))
    assert [run.state for run in runs] == [RunState.DONE] * 2
    assert ["gpus" in run.telemetry for run in runs] == [True, False]
    assert worker.description == "core 0"


def test_a_target_that_crashes_on_every_gpu_is_no_loss_of_a_gpu(shared):
    run, lost = measured(shared, ONE, TWO, speed="crash")
    assert (run.state, lost) == (RunState.DONE, ())
    assert {row.state for row in heads(run).values()} == {CellState.FAILED}


def test_where_no_gpu_can_go_on_the_run_returns_to_the_queue(shared, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(
        session, "contender", lambda *most, **more: replace(session_contender(*most, **more), start=broken)
    )
    run, lost = measured(shared, ONE, TWO)
    assert (run.state, run.attempt, lost) == (RunState.QUEUED, 1, ())


def test_gpus_get_as_many_cases_and_about_as_many_bytes():
    devices = [OnDevice(DeviceHere("h200", "a GPU", f"GPU-{n}", n), ()) for n in range(4)]
    cases = [Case.parse(f"rmsnorm.fwd.{rows}x1024.bf16") for rows in range(1024, 1024 * 41, 1024)]
    dealt = deal(cases, devices)
    shares = {one: [case for case in cases if dealt[case] is one] for one in devices}
    assert {len(share) for share in shares.values()} == {10}
    of_bytes = [sum(case.least_bytes for case in share) for share in shares.values()]
    assert max(of_bytes) < 1.01 * min(of_bytes)
    assert deal(cases[::-1], devices) == dealt


def test_what_other_gpus_would_disturb_is_measured_by_the_first():
    devices = [OnDevice(DeviceHere("h200", "a GPU", f"GPU-{n}", n), ()) for n in range(2)]
    cases = [Case.parse(f"rmsnorm.fwd.{rows}x1024.bf16.call") for rows in (1024, 2048)]
    assert set(deal(cases, devices).values()) == {devices[0]}


def test_a_case_is_compared_with_the_ceilings_of_its_own_gpu():
    best = [{"copy_gb_s": 4000.0}, {"copy_gb_s": 4200.0}]
    gpus = [{"index": n, "cases": [CASES[n]], "ceilings": best[n]} for n in range(2)]
    telemetry = {"ceilings": {"copy_gb_s": 4100.0}, "gpus": gpus}
    assert [roofline.ceilings(telemetry, case) for case in CASES[:2]] == best
    assert roofline.ceilings(telemetry) == {"copy_gb_s": 4100.0}
    assert roofline.ceilings({"ceilings": best[0]}, CASES[1]) == best[0]
