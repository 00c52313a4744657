"""Modes: three excursions between the same two levels, and nothing less."""

import numpy as np
import pytest

from service.domain.changepoints import HistoryLimits
from service.domain.changepoints.segmentation import FLIPS, changes_in_turn, levels_of

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
    assert sum(count < FLIPS for count in changes_in_turn(values, starts, LIMITS)) == kept


def test_levels_that_can_be_told_apart_are_not_the_same_level():
    values, starts = flipping(0, 1, 0, 1.2, 0, 0.9, noise=0.03)
    assert max(changes_in_turn(values, starts, LIMITS)) == 2, "they differ by some twenty errors"


@pytest.mark.parametrize("seed", range(20))
def test_commits_whose_effects_are_alike_are_no_modes(seed):
    random = np.random.default_rng(seed)
    sizes = random.uniform(0.05, 0.1, 12) * np.tile([1, -1], 6)
    logs = np.repeat(np.concatenate([[0], np.cumsum(sizes)]), 25) + random.normal(0, 0.002, 325)
    assert len(levels_of(logs, LIMITS).starts) == 12
