"""The control variate: what SOTA, measured in the same session, says about the machine."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.changepoints import Seen, changes
from service.domain.changepoints.control_variate import adjusted

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
    raw = sum(len(changes(seen(candidate))) for candidate, _ in sessions)
    with_sota = sum(len(changes(seen(*pair))) for pair in sessions)
    assert raw > 100
    assert with_sota <= 4


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
@given(st.integers(0, 1000), st.integers(30, COUNT - 1), st.floats(-2, 2))
def test_theta_knows_nothing_of_what_comes(seed, now, surprise):
    """Later revisions shift the whole of the past by one constant at most: no difference of it changes much."""
    candidate, reference = session(seed)
    later = candidate.copy()
    later[now + 1 :] += surprise
    assert np.allclose(adjusted(candidate, reference)[: now + 1], adjusted(later, reference)[: now + 1])


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(-5, 5), st.floats(-5, 5))
def test_units_of_either_do_not_matter(seed, mine, theirs):
    candidate, reference = session(seed)
    assert np.allclose(adjusted(candidate + mine, reference + theirs), adjusted(candidate, reference) + mine, atol=1e-9)
