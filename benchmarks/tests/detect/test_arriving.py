"""A series as its revisions arrive, with the scans of the ledger: what is reported, and what is withdrawn."""

import math

import numpy as np
import pytest

from benchmarks.detect.arriving import replayed


def noisy(*levels: tuple[int, float], sigma: float = 0.005, seed: int = 1) -> list[float]:
    steps = np.concatenate([np.full(count, math.log(level)) for count, level in levels])
    return list(np.exp(steps + np.random.default_rng(seed).normal(0, sigma, len(steps))))


def test_a_step_is_reported_within_a_few_revisions_and_stays():
    [step] = replayed(noisy((100, 100), (100, 103)), steady=range(200))
    assert abs(step.place - 100) <= 2
    assert step.when <= 108
    assert (step.open, step.blocks) == (True, True)
    assert step.ratio == pytest.approx(1.03, abs=0.01)


def test_without_a_steady_pair_a_large_step_is_reported_at_its_second_revision():
    [step] = replayed(noisy((100, 100), (30, 110)), steady=())
    assert (step.place, step.when) == (100, 101)


def test_a_step_whose_pair_did_not_answer_is_not_hidden_by_the_steady_pairs_after_it():
    [step] = replayed(noisy((100, 100), (30, 110)), steady={*range(130)} - {100})
    assert (step.place, step.when) == (100, 101)


def test_a_step_of_the_machine_whose_first_pair_was_steady_is_left_to_the_search():
    [step] = replayed(noisy((100, 100), (30, 110)), steady={100})
    assert step.when > 101


@pytest.mark.parametrize("seed", range(3))
def test_a_calm_series_is_left_alone(seed):
    assert replayed(noisy((200, 100), sigma=0.002, seed=seed), steady=()) == []


@pytest.mark.parametrize(
    ("odd", "reported"),
    [
        (1, []),
        (2, [(60, 61, False, False)]),  # withdrawn, since they do not stay
    ],
)
def test_one_odd_value_is_not_reported_and_two_are_withdrawn(odd, reported):
    found = replayed(noisy((60, 100), (odd, 110), (60, 100), sigma=0.002, seed=2), steady=())
    assert [(one.place, one.when, one.open, one.blocks) for one in found] == reported
