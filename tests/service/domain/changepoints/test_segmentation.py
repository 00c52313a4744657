"""Laws of the search for levels, over series that are drawn by seed."""

import numpy as np
import pytest

from service.domain.changepoints import HistoryLimits
from service.domain.changepoints.segmentation import levels_of
from tests.service.domain.changepoints.test_noise import correlated

LIMITS = HistoryLimits()
NOISE = 0.01


def drawn(seed: int, shortest: int, longest: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """A series of up to 20 levels, some of whose steps are small, in white noise or AR(.6), and their places."""
    random = np.random.default_rng(seed)
    lengths = random.integers(shortest, longest, random.integers(2, 21))
    sizes = random.uniform(0, 0.08, len(lengths) - 1) * random.choice([-1, 1], len(lengths) - 1)
    noise = NOISE * (correlated(random, lengths.sum(), 0.6) if seed % 2 else random.normal(0, 1, lengths.sum()))
    return np.repeat(np.concatenate([[0], np.cumsum(sizes)]), lengths) + noise, np.cumsum(lengths)[:-1], random


def has(starts: tuple[int, ...], place: int) -> bool:
    return any(abs(start - place) <= 2 for start in starts)


@pytest.mark.parametrize("lengths", [(8, 12), (8, 25), (10, 60)])
def test_a_step_of_thirty_deviations_survives_whatever_else_is_in_the_series(lengths):
    lost = []
    for seed in range(150):
        logs, places, random = drawn(seed, *lengths)
        place = int(random.choice(places))
        logs[place:] += 0.38 * random.choice([-1, 1])  # at least 30 deviations with the small step there
        if not has(levels_of(logs, LIMITS).starts, place):
            lost.append(seed)
    assert lost == []


def test_a_distant_step_takes_away_no_certain_step():
    lost = []
    for seed in range(150):
        logs, _, random = drawn(seed, 10, 60)
        alone = levels_of(logs, LIMITS)
        certain = [start for start, step in zip(alone.starts, alone.steps, strict=True) if step.strict_p < 1e-7]
        both = levels_of(np.concatenate([logs, logs[-5:].mean() + 1 + random.normal(0, NOISE, 40)]), LIMITS)
        lost += [(seed, start) for start in certain if not has(both.starts, start)]
    assert lost == []


def test_the_unit_and_the_direction_of_a_series_change_no_place():
    for seed in range(50):
        logs, _, _ = drawn(seed, 8, 60)
        starts = levels_of(logs, LIMITS).starts
        assert levels_of(logs + 3.7, LIMITS).starts == starts
        assert levels_of(-logs, LIMITS).starts == starts
