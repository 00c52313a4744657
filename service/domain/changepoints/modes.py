"""Recognise a series that flips between modes: it returns to the same level again and again, without any commit."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from service.domain.changepoints.step_test import Logs

# A visit to another level returns if the levels before and after it differ by less than this part of the step.
RETURNED = 1 / 3
# A commit and its revert return once.  Three returns within WITHIN revisions come from the machine or from memory
# placement: in the labelled series no label returns more than once.
RETURNS = 3
WITHIN = 200


def without_flips(logs: Logs, starts: Sequence[int]) -> list[int]:
    """`starts` without the changes that are flips between modes."""
    edges = [0, *starts, len(logs)]
    levels = [float(np.median(logs[a:b])) for a, b in pairwise(edges)]
    visits = [number for number in range(1, len(levels) - 1) if _returns(*levels[number - 1 : number + 2])]
    flips: set[int] = set()
    for first, last in zip(visits, visits[RETURNS - 1 :], strict=False):
        if edges[last + 1] - edges[first] <= WITHIN:
            flips.update(end for number in visits if first <= number <= last for end in edges[number : number + 2])
    return [start for start in starts if start not in flips]


def _returns(before: float, visited: float, after: float) -> bool:
    return abs(after - before) < RETURNED * abs(visited - before)
