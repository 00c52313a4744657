"""Find where the level of a series changes: kernel change points, pruned by the step test."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ruptures import KernelCPD

from service.domain.changepoints.modes import without_flips
from service.domain.changepoints.step_test import Logs, Step, step_between
from service.domain.changepoints.types import HistoryLimits

SPAN = 400  # revisions that are searched at a time; the cost of a steady series grows with their square
QUANTILES = 64  # of the values, from which the distances between values are estimated


@dataclass(frozen=True)
class Place:
    """A change of level in an array of values."""

    start: int  # the first of the new level
    step: Step


def places(logs: Logs, limits: HistoryLimits) -> list[Place]:
    """The changes of level in an epoch, oldest first."""
    found = _pruned(logs, _candidates(logs, limits), limits)
    while len(left := without_flips(logs, starts := [place.start for place in found])) < len(starts):
        found = _pruned(logs, left, limits)
    return found


def _candidates(logs: Logs, limits: HistoryLimits) -> list[int]:
    """Kernel change points (Arlot, Celisse and Harchaoui, 2019) by PELT (Killick, Fearnhead and Eckley, 2012).

    With a Gaussian kernel the cost of one value is at most 1, so an outlier is not a change.
    """
    if len(logs) < 2 * limits.min_size or np.ptp(logs) == 0:
        return []
    search = KernelCPD("rbf", min_size=limits.min_size, params={"gamma": _gamma(logs)})
    found: list[int] = []
    for begin in range(0, max(len(logs) - SPAN // 2, 1), SPAN // 2):
        end = begin + SPAN
        # Spans overlap by half.  Of each only the middle half counts, where it has values on both sides.
        answers = range(begin + SPAN // 4 if begin else 0, end - SPAN // 4 if end < len(logs) else len(logs))
        ends = search.fit(logs[begin:end].reshape(-1, 1)).predict(pen=limits.penalty * math.log(len(logs)))
        for start in (begin + int(place) for place in ends[:-1]):
            if start in answers and (not found or start - found[-1] >= limits.min_size):
                found.append(start)
    return found


def _gamma(logs: Logs) -> float:
    """1 / the median squared distance of two values (Gretton et al., 2012), estimated from quantiles.

    The estimate of ruptures uses all pairs, which takes seconds for 10,000 values.  If more than half of the pairs are
    equal, the mean distance is used.
    """
    count = min(QUANTILES, len(logs))
    sample = np.sort(logs)[((np.arange(count) + 0.5) * len(logs) / count).astype(int)]
    apart = (sample[:, None] - sample)[np.tril_indices(len(sample), -1)]
    width = float(np.median(apart)) or float(apart.mean()) or float(np.ptp(logs))
    return 1 / width**2


def _pruned(logs: Logs, starts: Sequence[int], limits: HistoryLimits) -> list[Place]:
    """Remove the weakest change that fails the test, merge its two levels and test again, until all changes pass."""
    edges = [0, *starts, len(logs)]
    steps = [step_between(logs[a:b], logs[b:c]) for a, b, c in zip(edges, edges[1:], edges[2:], strict=False)]
    while failing := [number for number, step in enumerate(steps) if not _holds(step, limits)]:
        weakest = max(failing, key=lambda number: (steps[number].p, -steps[number].effect))
        del edges[weakest + 1], steps[weakest]
        for number in (weakest - 1, weakest):
            if 0 <= number < len(steps):
                a, b, c = edges[number : number + 3]
                steps[number] = step_between(logs[a:b], logs[b:c])
    return [Place(start, step) for start, step in zip(edges[1:-1], steps, strict=True)]


def _holds(step: Step, limits: HistoryLimits) -> bool:
    return step.p <= limits.alpha and step.effect >= math.log1p(limits.notify) and step.separation >= limits.separation
