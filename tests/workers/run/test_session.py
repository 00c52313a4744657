"""One run from lease to end: real git, environments and processes; only what contenders answer is scripted."""

import json
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from kernels.arena.session import Contender
from kernels.cases import Case, Role
from service.db.engine import reading, transaction
from service.db.models import Measurement, Run
from service.domain.policy.policy import Policy
from service.domain.states import RunState, TargetKind
from service.errors import SourceFailed
from service.ledger import targets
from service.ledger.intake import deliveries
from service.ledger.runs import queue
from service.settings import settings
from tests.fakes.repository import MEASURED_ANYWHERE
from tests.workers.conftest import CASE, RECIPE
from workers import control
from workers.machine import environments
from workers.machine.device import DeviceHere
from workers.run import baselines, session, trials
from workers.run.heartbeat import Holding
from workers.run.trials import Tally

CPU = DeviceHere("cpu", "the processor")


def commit(norms, speed: object = 100.0, **files: str) -> str:
    return norms.commit({"speed.json": json.dumps({CASE: speed}), "when": str(time.monotonic_ns()), **files})


def wanted(sha: str) -> None:
    deliveries.run_revision("norms", sha)


def measure() -> Run:
    """What becomes of the next run."""
    with transaction() as database:
        lease = queue.next_run(database, "cpu", "test/cpu-0", settings().lease_s)
    assert lease
    session.measure(lease, CPU)
    with reading() as database:
        return database.get_one(Run, lease.run_id)


def measured(sha: str) -> Run:
    wanted(sha)
    return measure()


def test_what_is_in_the_mirror_is_measured_while_the_origin_is_away(watched):
    wanted(commit(watched))
    watched.folder.rename(watched.folder.with_name("moved"))
    watched.folder.mkdir()  # as a host that answers with nothing
    assert measure().state is RunState.DONE


def test_housekeeping_that_fails_costs_no_evidence(watched, monkeypatch):
    def broken(_limit: int) -> list[str]:
        raise RecursionError

    monkeypatch.setattr(environments, "evict", broken)
    assert measured(commit(watched)).state is RunState.DONE


def test_what_a_dead_worker_of_this_device_left_is_removed_and_another_devices_is_not(watched):
    scratch = settings().state / "scratch"
    for device in ("cpu", "GPU-7"):
        (scratch / device / "head-norms-0" / "home").mkdir(parents=True)
    measured(commit(watched))
    assert [folder.name for folder in scratch.iterdir()] == ["GPU-7"]


def test_a_run_that_cannot_be_ended_now_ends_with_its_lease(watched, monkeypatch):
    def away(*_: object, **__: object) -> None:
        raise OperationalError("UPDATE runs", {}, Exception("the database is away"))

    wanted(commit(watched, broken=""))
    with monkeypatch.context() as patch:
        patch.setattr(session.recording, "fail", away)
        assert measure().state is RunState.LEASED


def test_where_no_near_revision_is_fit_the_nearest_that_builds_is_compared_with(watched, monkeypatch):
    measured(commit(watched))
    wrong = commit(watched, speed="invalid: y is wrong")
    measured(wrong)
    measured(commit(watched, broken=""))
    (watched.folder / "broken").unlink()
    monkeypatch.setattr(baselines, "MAX_BASELINE_DISTANCE", 2)

    run = measured(commit(watched))

    assert (run.state, run.baseline) == (RunState.DONE, wrong)
    assert run.reason.endswith(f"compared with {wrong[:10]} anyway, because no earlier revision is usable")


def wheel(folder: Path, version: str, tag: str = "py3-none-any") -> None:
    folder.mkdir(exist_ok=True)
    about = f"norm_kernels-{version}.dist-info"
    with zipfile.ZipFile(folder / f"norm_kernels-{version}-{tag}.whl", "w") as archive:
        archive.writestr("speed.json", json.dumps({CASE: 100.0 + len(version)}))
        archive.writestr(f"{about}/METADATA", f"Name: norm-kernels\nVersion: {version}\n")


@pytest.mark.parametrize("trouble", ["no wheel for this platform", "a broken wheel"])
def test_a_release_that_cannot_be_had_is_passed_over_as_baseline(scripted, tmp_path, trouble):
    folder = tmp_path / "wheels"
    wheel(folder, "1.0")
    if trouble == "a broken wheel":
        (folder / "norm_kernels-1.1-py3-none-any.whl").write_text("truncated")
    else:
        wheel(folder, "1.1", tag="cp37-cp37m-win_amd64")
    wheel(folder, "1.2")
    where = {"location": str(folder), "kind": TargetKind.PACKAGE, "package": "norm-kernels"}
    with transaction() as database:
        targets.register(database, "norms", recipe_text=RECIPE, **where, **MEASURED_ANYWHERE)

    run = measured("1.2")

    assert (run.state, run.baseline) == (RunState.DONE, "1.0"), run.reason
    assert "1.1 was skipped as a baseline" in run.reason
    assert "compared with 1.0 instead" in run.reason


def test_nothing_measured_within_the_sessions_limit_says_what_mends_it(watched, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_SESSION_LIMIT_S", "0.001")
    settings.cache_clear()
    run = measured(commit(watched))
    assert run.state is RunState.FAILED
    assert "raise KERNELWATCH_SESSION_LIMIT_S" in run.reason


def test_what_was_measured_within_the_sessions_limit_counts_and_the_rest_is_said_to_be_open(watched, monkeypatch):
    """The limit is over after the first trial."""
    trial, over_s = trials.run_trials, 0.0

    def slow(*arguments: Any, **more: Any) -> Any:
        nonlocal over_s
        turned = trial(*arguments, **more)
        over_s += settings().session_limit_s
        return turned

    monkeypatch.setattr(trials, "run_trials", slow)
    monkeypatch.setattr(trials, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + over_s))
    measured(commit(watched))
    run = measured(commit(watched))
    assert run.state is RunState.DONE
    assert run.reason.endswith("the session limit of 1800 s was reached before every case was decided")
    with reading() as database:
        rows = database.execute(select(Measurement).where(Measurement.run_id == run.id)).scalars()
        assert {row.trials for row in rows} == {1}


class Silent:
    """A contender in this process: `slow_s` for each turn."""

    def __init__(self, slow_s: float) -> None:
        self.slow_s = slow_s

    def ask(self, message: Mapping[str, Any], _limit_s: float, meanwhile: Any = lambda: None) -> dict[str, Any]:
        if message["do"] == "turn":
            time.sleep(self.slow_s)
            meanwhile()
            return {"samples": [1.0]}
        return {"ready": True, "state": "measured", "ok": True}

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def cpu_s(self) -> float | None:
        return None

    def close(self) -> None: ...


class Heart:
    def say(self, stage: str) -> None: ...
    def keep_going(self) -> None: ...


@pytest.mark.parametrize(("slow_s", "grace_s", "some"), [(0.01, 60.0, True), (0.3, 0.1, False)])
def test_a_launch_ends_after_the_case_in_hand_and_not_long_after(state, monkeypatch, slow_s, grace_s, some):
    monkeypatch.setenv("KERNELWATCH_SESSION_LIMIT_S", "0.3")
    monkeypatch.setattr(trials, "LAST_CASE_S", grace_s)
    settings.cache_clear()
    head = Contender("head:norms", Role.HEAD, {"name": "norms"}, lambda: Silent(slow_s))
    cases = tuple(Case.parse(f"rmsnorm.fwd.{rows}x8.fp32") for rows in range(1, 99))
    tally = Tally([head], cases)

    began = time.monotonic()
    launching = trials.Trials(tally, [trials.OnDevice(CPU, [head])], Policy(rounds=4), Heart(), seed=1)
    launching.until_decided(cases)

    assert launching.late
    assert bool(tally.taken()) is some
    assert len(tally.taken()) < len(cases)
    assert time.monotonic() - began < 60


def test_a_bad_moment_of_the_database_costs_no_measurement(watched, monkeypatch):
    tries, record = [], session.recording.record

    def deadlocked_once(*args: Any) -> Run:
        tries.append(args)
        if len(tries) == 1:
            raise OperationalError("UPDATE targets", {}, Exception("deadlock detected"))
        return record(*args)

    monkeypatch.setattr(session.recording, "record", deadlocked_once)
    monkeypatch.setattr(session, "RECORD_RETRIES_S", (0.0,))
    run = measured(commit(watched))
    assert (run.state, run.attempt, len(tries)) == (RunState.DONE, 1, 2)


@pytest.mark.parametrize(
    ("where", "trouble", "counted"),
    [
        ("_make_room", OperationalError("SELECT", {}, Exception("the database is away")), False),
        ("_contenders", OperationalError("SELECT", {}, Exception("the database is away")), False),
        ("open_source", SourceFailed("no route to the repository"), False),
        ("_contenders", SourceFailed("no route to the repository"), False),
        ("open_source", OSError(28, "No space left on device"), False),
        ("_contenders", OSError(28, "No space left on device"), True),
        ("_contenders", ZeroDivisionError(), True),
    ],
)
def test_only_an_attempt_that_fails_in_a_build_or_a_contender_counts(watched, monkeypatch, where, trouble, counted):
    def broken(*_: object) -> None:
        raise trouble

    monkeypatch.setattr(session, where, broken)
    run = measured(commit(watched))
    assert (run.state, run.attempt, run.losses, run.max_attempts) == (RunState.QUEUED, 1, not counted, 4 - counted)
    assert list((settings().state / "holding").iterdir()) == []


@pytest.mark.parametrize(("where", "losses"), [("fetching", 1), ("building", 0)])
def test_the_run_of_a_worker_that_was_killed_is_queued_at_once_by_its_successor(watched, monkeypatch, where, losses):
    """The first worker of this device is killed; `control.work` is the second's first poll."""
    monkeypatch.setattr(control, "here", lambda: CPU)
    wanted(commit(watched))
    with transaction() as database:
        lease = queue.next_run(database, "cpu", control.name(), settings().lease_s)
    killed = Holding(lease, CPU).__enter__()
    if where == "building":
        killed.code_starts()
    assert control.work("cpu") == 0, "not at once: what ended the one may end the other"
    with transaction() as database:
        run = database.get_one(Run, lease.run_id)
        assert (run.state, run.losses, run.max_attempts) == (RunState.QUEUED, losses, 3 + losses)
        run.not_before = 0.0
    assert control.work("cpu") == 1
    with reading() as database:
        assert database.get_one(Run, lease.run_id).state is RunState.DONE


FUNCTION = """
[[function]]
name = "softmax"
call = "softmax:softmax"
sizes = ["M"]
inputs = {x = {shape = ["M"], dtype = "fp32"}}
cases = ["8"]
"""


def test_a_provider_takes_part_at_its_own_cases_where_functions_are_measured_besides_norms(watched):
    with transaction() as database:
        text = RECIPE.replace(f'one = ["{CASE}"]', f'one = ["{CASE}", "softmax/8"]') + FUNCTION
        targets.adopt_recipe(database, targets.target_named(database, "norms"), text, {})
    measured(commit(watched))

    run = measured(commit(watched))

    assert run.state is RunState.DONE
    with reading() as database:
        rows = select(Measurement.provider, Measurement.case, Measurement.role).where(Measurement.run_id == run.id)
        taken = {(provider, case): set() for provider, case, _ in database.execute(rows)}
    assert set(taken) == {("norms", CASE), ("eager", CASE), ("functions", "softmax/8")}
