"""Modes: three excursions between the same two levels, and nothing less."""

import numpy as np
import pytest

from service.domain.changepoints.modes import without_flips


def flipping(*levels: float, each: int = 20) -> tuple[np.ndarray, list[int]]:
    return np.repeat(np.array(levels), each), [each * number for number in range(1, len(levels))]


@pytest.mark.parametrize(
    ("levels", "kept"),
    [
        ((0, 1), 1),  # a step
        ((0, 1, 0), 2),  # a commit and its revert
        ((0, 1, 0, 1, 0), 4),  # landed and reverted, twice
        ((0, 1, 0, 1, 0, 1), 0),  # the third time
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
    assert len(without_flips(values, starts)) == kept
