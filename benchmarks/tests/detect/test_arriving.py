"""A series as its revisions arrive, with the scans of the ledger: what is reported, and what is withdrawn."""

import math

import numpy as np
import pytest

from benchmarks.detect.arriving import replayed


def noisy(*levels: tuple[int, float], sigma: float = 0.005, seed: int = 1) -> list[float]:
    steps = np.concatenate([np.full(count, math.log(level)) for count, level in levels])
    return list(np.exp(steps + np.random.default_rng(seed).normal(0, sigma, len(steps))))


def test_a_step_is_reported_within_a_few_revisions_and_stays():
    [step] = replayed(noisy((100, 100), (100, 103)))
    assert abs(step.place - 100) <= 2
    assert step.when <= 108
    assert (step.open, step.blocks) == (True, True)
    assert step.ratio == pytest.approx(1.03, abs=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_a_calm_series_is_left_alone(seed):
    assert replayed(noisy((200, 100), sigma=0.002, seed=seed)) == []


@pytest.mark.parametrize("odd", [1, 2])
def test_two_odd_values_are_not_reported(odd):
    assert replayed(noisy((60, 100), (odd, 110), (60, 100), sigma=0.002, seed=2)) == []
