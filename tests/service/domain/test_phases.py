"""The seconds of a run by phase, from what it and older versions stored."""

import pytest

from service.domain.phases import in_words, mean_seconds, mostly_starts, seconds_by_phase

FIRST = {"what": "trial 1", "seconds": {"start": 10.0, "prepare": 4.0, "timed": 1.0, "rounds": 3.0}}
SECOND = {"what": "trial 2", "seconds": {"start": 5.0, "rounds": 3.0, "timed": 2.0, "check": 0.5}}
OF_TRIALS = {"start": 15.0, "prepare": 4.0, "rounds": 6.0, "check": 0.5}


@pytest.mark.parametrize(
    ("telemetry", "expected"),
    [
        ({"seconds": {"build": 2.0}, "trials": [FIRST, SECOND]}, {"build": 2.0} | OF_TRIALS),
        ({"trials": [FIRST, SECOND]}, OF_TRIALS),  # of a version that did not store the phases before the trials
        ({"trials": [{"what": "trial 1"}, SECOND]}, {"start": 5.0, "rounds": 3.0, "check": 0.5}),
        ({"seconds": {"build": 2.0}}, {"build": 2.0}),
        ({"trials": [{"seconds": {"start": "long", "rounds": 3.0, "check": float("nan")}}]}, {"rounds": 3.0}),
        ({"trials": ["trial 1"], "seconds": 7.0}, {}),
        ({}, {}),
        (None, {}),
    ],
)
def test_seconds_by_phase(telemetry: dict[str, object] | None, expected: dict[str, float]) -> None:
    assert list(seconds_by_phase(telemetry).items()) == list(expected.items())


def test_means_are_over_all_runs_so_that_they_add_up() -> None:
    runs = [{"start": 10.0, "rounds": 4.0}, {"start": 5.0, "rounds": 4.0, "inexact": 3.0}]
    means = mean_seconds(runs)
    assert means == {"start": 7.5, "rounds": 4.0, "inexact": 1.5}
    assert sum(means.values()) == sum(sum(run.values()) for run in runs) / len(runs)
    assert mean_seconds([]) == {}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"start": 59.2, "prepare": 16.7, "rounds": 21.9, "check": 4.7, "code": 3.0}, True),
        ({"start": 27.9, "prepare": 17.1, "rounds": 13.4, "check": 4.7, "code": 2.0}, False),
        ({"start": 20.0, "rounds": 20.0}, False),
        ({"rounds": 20.0}, False),
        ({}, False),
    ],
)
def test_starting_processes_takes_most(seconds: dict[str, float], expected: bool) -> None:
    """The first two are sessions before and after processes were started ahead (H200, 28 November)."""
    assert mostly_starts(seconds) is expected


def test_in_words() -> None:
    assert in_words({"fetch": 0.04, "start": 17.66, "rounds": 14.0}) == "31.7 s: start 17.7, rounds 14.0"
    assert in_words({}) == ""
