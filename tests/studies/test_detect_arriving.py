"""A series as its revisions arrive, with the looks that the ledger makes: what is reported, and what is taken back."""

import math

import numpy as np
import pytest

from tests.studies.detect.arriving import replayed


def noisy(*levels: tuple[int, float], sigma: float = 0.005, seed: int = 1) -> list[float]:
    steps = np.concatenate([np.full(count, math.log(level)) for count, level in levels])
    return list(np.exp(steps + np.random.default_rng(seed).normal(0, sigma, len(steps))))


def test_a_step_is_told_within_a_few_revisions_and_stays():
    [step] = replayed(noisy((100, 100), (100, 103)), paired=True)
    assert abs(step.place - 100) <= 2
    assert step.when <= 108
    assert (step.open, step.blocks) == (True, True)
    assert step.ratio == pytest.approx(1.03, abs=0.01)


def test_without_a_steady_pair_a_large_step_is_asked_about_at_once():
    [step] = replayed(noisy((100, 100), (30, 110)), paired=False)
    assert (step.place, step.when) == (100, 100)


@pytest.mark.parametrize("seed", range(3))
def test_a_calm_series_is_left_alone(seed):
    assert replayed(noisy((200, 100), sigma=0.002, seed=seed), paired=False) == []


def test_an_odd_value_is_taken_back_when_it_does_not_stay():
    asked = replayed(noisy((60, 100), (1, 110), (60, 100), sigma=0.002, seed=2), paired=False)
    assert [(one.place, one.when, one.open, one.blocks) for one in asked] == [(60, 60, False, False)]
