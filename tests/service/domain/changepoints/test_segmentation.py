"""Laws of the search for levels, over drawn series."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.changepoints import HistoryLimits
from service.domain.changepoints.segmentation import Levels, levels_of
from tests.service.domain.changepoints.test_noise import correlated

LIMITS = HistoryLimits()
NOISE = 0.01

SEEDS = st.integers(0, 2**32 - 1)
SHORTEST = st.sampled_from([5, 8, 10])


def drawn(seed: int, shortest: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """A series of up to 20 levels, some of whose steps are small, in white noise or AR(.6), and their places."""
    random = np.random.default_rng(seed)
    lengths = random.integers(shortest, random.choice([12, 25, 60]), random.integers(2, 21))
    sizes = random.uniform(0, 0.08, len(lengths) - 1) * random.choice([-1, 1], len(lengths) - 1)
    noise = NOISE * (
        correlated(random, lengths.sum(), 0.6) if random.random() < 0.5 else random.normal(0, 1, lengths.sum())
    )
    return np.repeat(np.concatenate([[0], np.cumsum(sizes)]), lengths) + noise, np.cumsum(lengths)[:-1], random


def has(starts: tuple[int, ...], place: int) -> bool:
    return any(abs(start - place) <= 2 for start in starts)


def blocking(levels: Levels) -> list[int]:
    sized = zip(levels.starts, levels.steps, strict=True)
    return [start for start, step in sized if start in levels.certain and abs(step.shift) >= math.log1p(LIMITS.block)]


@settings(max_examples=60)
@given(SEEDS, SHORTEST)
def test_a_step_of_thirty_deviations_survives_whatever_else_is_in_the_series(seed, shortest):
    logs, places, random = drawn(seed, shortest)
    place = int(random.choice(places))
    logs[place:] += 0.38 * random.choice([-1, 1])  # at least 30 deviations with the small step there
    assert has(levels_of(logs, LIMITS).starts, place)


@settings(max_examples=40)
@given(SEEDS, SHORTEST)
def test_a_distant_step_takes_away_no_certain_step(seed, shortest):
    logs, _, random = drawn(seed, shortest)
    alone = levels_of(logs, LIMITS)
    certain = [start for start, step in zip(alone.starts, alone.steps, strict=True) if step.p < 1e-7]
    both = levels_of(np.concatenate([logs, logs[-5:].mean() + 1 + random.normal(0, NOISE, 40)]), LIMITS)
    assert all(has(both.starts, start) for start in certain)


@settings(max_examples=40)
@given(SEEDS, st.integers(10, 40), st.integers(5, 9), st.floats(0.05, 0.1))
def test_alternate_levels_that_differ_by_ten_errors_are_two_levels(seed, each, changes, size):
    """Each level is ten errors above the one before the last, which is far less than a third of the step between."""
    random = np.random.default_rng(seed)
    apart = 10 * math.sqrt(2 / each)  # in deviations of the noise
    levels = [size * (number % 2) + size / 20 * (number // 2) for number in range(changes + 1)]
    logs = np.repeat(levels, each) + random.normal(0, size / 20 / apart, each * (changes + 1))
    assert len(levels_of(logs, HistoryLimits(notify=0.0)).starts) >= changes


@settings(max_examples=30)
@given(SEEDS, st.integers(0, 3000))
def test_a_certain_step_blocks_however_many_places_are_searched(seed, more):
    random = np.random.default_rng(seed)
    logs = np.concatenate([random.normal(0, NOISE, 60 + more), 0.1 + random.normal(0, NOISE, 40)])
    assert [start for start in blocking(levels_of(logs, LIMITS)) if abs(start - 60 - more) <= 1]


@pytest.mark.parametrize("length", [100, 400, 2000])
def test_noise_hardly_ever_blocks_however_many_places_are_searched(length):
    """At most 2 of 10,000 revisions of a machine that wanders, of any length of the series."""
    random = np.random.default_rng(length)
    series = (NOISE * (correlated(random, length, 0.9) + random.normal(0, 1, length)) for _ in range(20_000 // length))
    assert sum(len(blocking(levels_of(logs, LIMITS))) for logs in series) <= 4


@settings(max_examples=30)
@given(SEEDS, SHORTEST)
def test_the_unit_and_the_direction_of_a_series_change_no_place(seed, shortest):
    logs, _, _ = drawn(seed, shortest)
    levels = levels_of(logs, LIMITS)
    for same in (logs + 3.7, -logs):
        other = levels_of(same, LIMITS)
        assert (other.starts, other.certain) == (levels.starts, levels.certain)


@settings(max_examples=40)
@given(SEEDS, st.integers(1, 4), st.floats(0.06, 0.5))
def test_newest_values_that_are_fewer_than_a_level_are_no_level_with_those_before(seed, odd, size):
    """A level of five that takes one to four usual values along would be reported, and withdrawn later."""
    random = np.random.default_rng(seed)
    logs = np.concatenate([np.zeros(60), np.full(odd, size)]) + random.normal(0, NOISE, 60 + odd)
    assert not has(levels_of(logs, LIMITS).starts, 60)
