"""What Prometheus reads of the fleet: how busy, how repeatable, how alive, and how full."""

import math
import shutil
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.db.engine import clock, transaction
from service.db.models import Attempt, CalibrationTotals
from service.domain.states import RunState
from service.settings import settings
from tests import world
from tests.dashboards.asking import asking
from tests.workers.periodic import run_control
from workers import control

HOUR_S = 3600.0


def metric(name: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric by the values of their labels, in the order of the labels' names."""
    families = {one.name: one for one in text_string_to_metric_families(asking()("/metrics").text)}
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in families[name].samples
    }


def test_a_worker_is_busy_while_it_holds_a_run(either: str) -> None:
    """One run of 3 hours today, one that began before and has 1 hour of it today, one that is measured for 2 hours."""
    target = world.target("[providers]")
    with transaction() as session:
        now = clock(session)
        begun_s = {"done": (4, 1), "late": (26, 23), "now": (2, None)}
        for sha, (begun, ended) in begun_s.items():
            finished = None if ended is None else now - ended * HOUR_S
            state = RunState.LEASED if ended is None else RunState.DONE
            run = world.run(session, world.commit(session, target.id, sha), state=state, finished_at=finished)
            session.add(
                Attempt(run_id=run.id, attempt=1, worker="gpu", started_at=now - begun * HOUR_S, finished_at=finished)
            )
    assert metric("kernelwatch_worker_busy_share_last_day") == {("cpu", "gpu"): pytest.approx(6 / 24, abs=0.01)}


def test_the_spread_of_equal_code_is_that_of_its_comparisons(either: str) -> None:
    target = world.target("[providers]")
    with transaction() as session:
        now = clock(session)
        world.worker(session, "gpu")
        for sha, squares in (("first", 3e-6), ("second", 5e-6)):
            run = world.run(session, world.commit(session, target.id, sha), worker="gpu")
            session.add(
                CalibrationTotals(
                    run_id=run.id, target_id=target.id, at=now - HOUR_S, comparisons=4, alarmed=0, squares=squares
                )
            )
    assert metric("kernelwatch_equal_code_spread") == {("cpu", "gpu"): pytest.approx(math.sqrt(8e-6 / 8))}


def test_control_says_that_it_lives(either: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert metric("kernelwatch_control_silence_seconds") == {}
    for duty in control.LANES[-1].duties:
        monkeypatch.setattr(duty, "_next", 0.0)
    for _ in range(2):
        run_control()
    assert 0 <= metric("kernelwatch_control_silence_seconds")[()] < 60


def test_the_disk_of_the_state_folder_is_watched(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [(folder, free)] = metric("kernelwatch_disk_free_bytes").items()
    assert folder == (str(state),)
    assert free == pytest.approx(shutil.disk_usage(state).free, rel=0.2)
    monkeypatch.setenv("KERNELWATCH_DATABASE_URL", settings().database)
    monkeypatch.setenv("KERNELWATCH_STATE", str(state / "none"))
    settings.cache_clear()
    assert metric("kernelwatch_disk_free_bytes") == {}, "an API of a fleet has no state folder"
