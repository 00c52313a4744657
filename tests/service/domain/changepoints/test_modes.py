"""Modes: three excursions between the same two levels, and nothing less."""

import math

import numpy as np
import pytest

from service.domain.changepoints import HistoryLimits, Seen, changes
from service.domain.changepoints.segmentation import levels_of, without_flips

LIMITS = HistoryLimits()


def flipping(*levels: float, each: int = 20, noise: float = 0.3) -> tuple[np.ndarray, list[int]]:
    values = np.repeat(np.array(levels), each)
    return values + np.random.default_rng(1).normal(0, noise, len(values)), [each * n for n in range(1, len(levels))]


@pytest.mark.parametrize(
    ("levels", "kept"),
    [
        ((0, 1), 1),  # a step
        ((0, 1, 0), 2),  # a commit and its revert
        ((0, 1, 0, 1, 0), 4),  # landed and reverted, twice
        ((0, 1, 0, 1, 0, 1), 0),  # the third time
        ((0, 1, 0, 1, 0, 1, 0), 0),  # and back
        ((0, 1, 0, 1, 0, 1, 0, 1), 0),
        ((0, 1, 0, 1.2, 0, 0.9), 0),  # about the same level
        ((0, 1, 0, 2, 0, 3), 5),  # each time another one
        ((0, 1, 0.5, 1.5, 1, 2), 5),  # one way up
        ((5, 0, 1, 0, 1, 0, 1, 9), 2),  # a step to them and one from them are kept
        ((), 0),
    ],
)
def test_which_changes_are_flips(levels, kept):
    values, starts = flipping(*levels) if levels else (np.zeros(10), [])
    assert len(without_flips(values, starts, LIMITS)) == kept


def test_levels_that_can_be_told_apart_are_not_the_same_level():
    values, starts = flipping(0, 1, 0, 1.2, 0, 0.9, noise=0.03)
    assert len(without_flips(values, starts, LIMITS)) == 5, "they differ by some twenty errors"


@pytest.mark.parametrize("seed", range(20))
def test_commits_whose_effects_are_alike_are_no_modes(seed):
    random = np.random.default_rng(seed)
    sizes = random.uniform(0.05, 0.1, 12) * np.tile([1, -1], 6)
    logs = np.repeat(np.concatenate([[0], np.cumsum(sizes)]), 25) + random.normal(0, 0.002, 325)
    assert len(levels_of(logs, LIMITS).starts) == 12


@pytest.mark.parametrize(("last", "kept"), [(15, 0), (16, 5), (100, 5)])
def test_what_landed_for_good_after_two_reverts_is_kept(last, kept):
    values = np.repeat([0, 1, 0, 1, 0, 1], [60, 15, 15, 15, 15, last])
    assert len(without_flips(values, [60, 75, 90, 105, 120], LIMITS)) == kept


@pytest.mark.parametrize("seed", range(20))
def test_a_change_that_landed_for_good_after_two_reverts_is_found(seed):
    levels = np.repeat([0, 1, 0, 1, 0, 1], [60, 15, 15, 15, 15, 40])
    logs = 0.1 * levels + np.random.default_rng(seed).normal(0, 0.01, len(levels))
    found = [change.ordinal for change in changes([Seen(place, math.exp(log)) for place, log in enumerate(logs)])]
    assert any(abs(place - 120) <= 2 for place in found)
