"""The control variate: what SOTA, measured in the same session, says about the machine."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.changepoints import HistoryLimits, Seen, changes
from service.domain.changepoints.scan import scan_series
from service.domain.changepoints.series_table import Histories
from service.domain.changepoints.step_test import adjusted

COUNT = 300
Logs = np.ndarray[tuple[int], np.dtype[np.float64]]


def wander(random: np.random.Generator, memory: float = 0.95, sigma: float = 0.01) -> Logs:
    """A machine that drifts: what candidate and reference have in common."""
    shocks = random.normal(0, sigma * math.sqrt(1 - memory**2), COUNT)
    level = [0.0]
    for shock in shocks[1:]:
        level.append(memory * level[-1] + shock)
    return np.array(level)


def session(seed: int, shared: bool = True, step: float = 0.0) -> tuple[Logs, Logs]:
    """log(candidate) and log(reference); the candidate is slower by `step` from the middle on."""
    random = np.random.default_rng(seed)
    machine = wander(random)
    candidate = random.normal(0, 0.002, COUNT) + step * (np.arange(COUNT) >= COUNT // 2)
    reference = random.normal(0, 0.002, COUNT)
    return (candidate + machine if shared else candidate), reference + machine


def seen(candidate: Logs, reference: Logs | None = None) -> list[Seen]:
    references = [None] * COUNT if reference is None else np.exp(reference).tolist()
    return [
        Seen(place, value, other)
        for place, (value, other) in enumerate(zip(np.exp(candidate), references, strict=True))
    ]


def test_a_drifting_machine_alarms_nobody_who_was_measured_with_sota():
    sessions = [session(seed) for seed in range(40)]
    assert sum(len(changes(seen(*pair))) for pair in sessions) <= 1


def test_two_percent_are_found_through_the_drift():
    found = [[change.ordinal for change in changes(seen(*session(seed, step=0.02)))] for seed in range(20)]
    assert all(any(abs(place - COUNT // 2) <= 2 for place in places) for places in found)


def test_a_reference_with_noise_of_its_own_adds_none():
    """Where dividing by it would: the plain ratio is five times as noisy here."""
    candidate, reference = session(3, shared=False)
    alone, ratio = np.std(candidate), np.std(candidate - reference)
    assert np.std(adjusted(candidate, reference)) < 1.02 * alone < ratio / 3


def test_a_step_of_the_candidate_does_not_teach_theta():
    candidate, reference = session(5, step=0.5)
    step = np.diff([part.mean() for part in np.split(adjusted(candidate, reference), 2)])[0]
    assert step == pytest.approx(0.5, abs=0.005)


def test_sessions_without_sota_stay_as_they_are():
    candidate, reference = session(6)
    reference[::3] = math.nan
    result = adjusted(candidate, reference)
    assert (result[::3] == candidate[::3]).all()
    assert np.std(result[1::3]) < np.std(candidate[1::3]) / 2


def test_without_any_reference_nothing_is_adjusted():
    candidate, _ = session(7)
    assert (adjusted(candidate, np.full(COUNT, math.nan)) == candidate).all()


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(60, COUNT - 30), st.floats(-2, 2))
def test_a_later_step_hardly_moves_the_past(seed, now, step):
    candidate, reference = session(seed)
    later = candidate.copy()
    later[now:] += step
    moved = adjusted(later, reference)[:now] - adjusted(candidate, reference)[:now]
    assert np.ptp(moved) < 0.005


@pytest.mark.parametrize("revisions", [30, 120])
def test_a_series_follows_the_machine_as_far_as_it_did(revisions):
    """The truth is 1, and 0 for a tenth of the series.  Noise of SOTA itself leaves up to a third of the machine."""
    random = np.random.default_rng(1)
    machine = wander(random)[:revisions]
    own, sota = random.normal(0, 0.005, (2, 50, revisions))
    own[5:] += machine
    left = [slope_left(adjusted(one, other + machine), machine) for one, other in zip(own, sota, strict=True)]
    assert -0.1 < np.median(left[5:]) < 0.33
    assert np.median(left[:5]) == pytest.approx(0, abs=0.15)


def slope_left(logs: Logs, machine: Logs) -> float:
    """How far adjusted values still follow the machine."""
    return float(np.polyfit(machine, logs, 1)[0])


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([0.0, 1e-16, 1e-3, 0.01, 1.0, 200.0]), min_size=8, max_size=20),
    st.sampled_from([0.0, 1e-16, 0.01, 200.0]),
    st.floats(0, 1),
    st.integers(0, 1000),
)
def test_adjusted_values_are_finite(sigmas, sota, missing, seed):
    random = np.random.default_rng(seed)
    values = random.normal(0, np.array(sigmas)[:, None], (len(sigmas), 60))
    references = random.normal(0, sota, values.shape)
    references[random.random(values.shape) < missing * random.integers(0, 2)] = math.nan
    for own, other in zip(values, references, strict=True):
        assert np.isfinite(adjusted(own, other)).all()


@pytest.mark.parametrize("metric", ["", ".memory"])
@pytest.mark.parametrize("constant", range(4, 21, 4))
def test_a_constant_series_has_no_point_because_of_others(constant, metric):
    """As times of a coarse clock, or as bytes; all others follow a machine that drifts and steps."""
    random = np.random.default_rng(constant)
    machine = wander(random)[:60] + 0.05 * (np.arange(60) >= 40)
    own, sota = random.normal(0, 0.003, (2, 20, 60)) + machine
    own[:constant] = 0
    ones = np.ones(own.shape, dtype=np.int64)
    names = [f"rmsnorm.fwd.{64 * row + 64}x4096.bf16{metric if row < constant else ''}" for row in range(20)]
    table = Histories(tuple(("norms", name) for name in names), 0, np.exp(own), np.exp(sota), ones, ones)
    found = scan_series(table, table, {}, dict.fromkeys(table.names, HistoryLimits(notify=0.01)))
    assert {name for name in table.names[:constant] if found[name].matched.new} == set()


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(-5, 5), st.floats(-5, 5))
def test_units_of_either_do_not_matter(seed, mine, theirs):
    candidate, reference = session(seed)
    assert np.allclose(adjusted(candidate + mine, reference + theirs), adjusted(candidate, reference) + mine, atol=1e-9)
