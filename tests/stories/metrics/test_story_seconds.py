"""Where the seconds of a run went: on its page, in the metrics, in the API and in `kernelwatch status`."""

import json
import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.domain.phases import in_words
from tests.dashboards.asking import words
from tests.shell import kernelwatch
from tests.stories.test_story import Story, story  # noqa: F401  (a fixture)

BEFORE_TRIALS = ["fetch", "build", "baselines"]
OF_TRIALS = {"start", "prepare", "rounds", "check"}


def test_seconds_by_phase_reach_whoever_asks(story: Story) -> None:  # noqa: F811
    [run] = story.runs()
    [worker] = story.api("GET", "/api/v1/workers").json()["items"]
    seconds = worker["seconds"]
    assert list(seconds)[:3] == BEFORE_TRIALS
    assert seconds.keys() >= OF_TRIALS

    metrics = {one.name: one for one in text_string_to_metric_families(story.api("GET", "/metrics").text)}
    exposed = metrics["kernelwatch_run_seconds_last_day"].samples
    assert {one.labels["phase"]: one.value for one in exposed} == pytest.approx(seconds)
    assert {(one.labels["worker"], one.labels["device"]) for one in exposed} == {(run.worker, "cpu")}

    [listed] = json.loads(kernelwatch("status --format json").stdout)["workers"]
    assert listed["seconds"] == seconds
    assert in_words(seconds) in kernelwatch("status").stdout


def test_the_page_of_a_run_adds_its_phases_up(story: Story) -> None:  # noqa: F811
    [run] = story.runs()
    telemetry = story.api("GET", f"/api/v1/runs/{run.id}").json()["telemetry"]
    parts = [telemetry["seconds"], *(trial["seconds"] for trial in telemetry["trials"])]
    total = math.fsum(spent for part in parts for phase, spent in part.items() if phase != "timed")
    assert 0 < total < run.finished_at - run.started_at + 1, "phases do not overlap"
    said = words(story.api("GET", f"/runs/{run.id}/telemetry"))
    assert f"total {total:.1f} s" in said
    assert f"baselines {telemetry['seconds']['baselines']:.1f} s" in said
