"""Recognise a series that flips between two modes: it visits the same two levels in turn, without any commit."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from service.domain.changepoints.noise import Logs, median

SAME = 1 / 3  # of the distance between the two levels: a nearer level is the same again
# A commit that is reverted, landed again and reverted again leaves a level twice.  The third time, the machine or the
# memory placement is the cause.
EXCURSIONS = 3


def without_flips(logs: Logs, starts: Sequence[int]) -> list[int]:
    """`starts` without the changes between two levels that alternate for at least `EXCURSIONS` excursions.

    The last excursion need not have ended, unless it is already longer than every stay before it: then a commit that
    was reverted twice may have landed for good.
    """
    levels = [median(logs[a:b]) for a, b in pairwise([0, *starts, len(logs)])]
    kept, first = [], 0
    while first < len(starts):
        last = _alternating(levels, first)
        excursions = (last - first) // 2
        if excursions >= EXCURSIONS or (excursions == EXCURSIONS - 1 and _goes_on(len(logs), starts, first, last)):
            first = last
        else:
            kept.append(starts[first])
            first += 1
    return kept


def _goes_on(count: int, starts: Sequence[int], first: int, last: int) -> bool:
    """Whether the changes end within an excursion that is no longer than the longest stay before it."""
    if (last - first) % 2 == 0:
        return False
    *before, newest = np.diff([*starts, count])[first:last].tolist()
    return bool(newest <= max(before))


def _alternating(levels: Sequence[float], first: int) -> int:
    """The last of the levels from `first` on that are in turn near to one and near to the other of two levels."""
    visits = [levels[first]], [levels[first + 1]]
    for number in range(first + 2, len(levels)):
        same, other = visits[(number - first) % 2], visits[(number - first + 1) % 2]
        here, there = float(np.mean(same)), float(np.mean(other))
        if abs(levels[number] - here) >= SAME * abs(there - here):
            return number - 1
        same.append(levels[number])
    return len(levels) - 1
