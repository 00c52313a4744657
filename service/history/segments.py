"""Where may the level of a series have changed?  Kernel change points first, pruned from the bottom up."""

import math
from collections.abc import Sequence

import numpy as np
from ruptures import KernelCPD

from service.history.steps import Logs, Step, step_between
from service.history.values import HistoryLimits

PENALTY = 0.5  # of a change point, times log n; low, because the pruning comes after
SEPARATION = 0.65  # Cliff's delta that the two sides of a change have at least
QUANTILES = 128  # of the values, from which the width of the kernel is taken


def segments(logs: Logs, limits: HistoryLimits) -> list[tuple[int, Step]]:
    """The places at which the level changes, each the first of its new level, with the step that is there."""
    return _pruned(logs, _candidates(logs, limits.min_size), limits)


def _candidates(logs: Logs, min_size: int) -> list[int]:
    """Kernel change points (Arlot, Celisse and Harchaoui, 2019) by PELT (Killick, Fearnhead and Eckley, 2012)."""
    if len(logs) < 2 * min_size or np.ptp(logs) == 0:
        return []
    search = KernelCPD("rbf", min_size=min_size, params={"gamma": _gamma(logs)}).fit(logs.reshape(-1, 1))
    return [int(place) for place in search.predict(pen=PENALTY * math.log(len(logs)))[:-1]]


def _gamma(logs: Logs) -> float:
    """1 / the median squared distance of two values (Gretton et al., 2012), from a sample of quantiles."""
    ordered = np.sort(logs)
    sample = ordered[np.linspace(0, len(ordered) - 1, min(QUANTILES, len(ordered))).round().astype(int)]
    apart = np.abs(sample[:, None] - sample[None, :])[np.triu_indices(len(sample), 1)]
    width = float(np.median(apart)) or float(apart.mean())
    return 1 / width**2


def _pruned(logs: Logs, places: Sequence[int], limits: HistoryLimits) -> list[tuple[int, Step]]:
    """Take away the weakest change that does not hold, until all hold."""
    edges = [0, *places, len(logs)]
    steps = [step_between(logs[a:b], logs[b:c]) for a, b, c in zip(edges, edges[1:], edges[2:], strict=False)]
    while failing := [number for number, step in enumerate(steps) if not _holds(step, limits)]:
        weakest = max(failing, key=lambda number: (steps[number].p, -steps[number].effect))
        del edges[weakest + 1], steps[weakest]
        for number in (weakest - 1, weakest):
            if 0 <= number < len(steps):
                a, b, c = edges[number : number + 3]
                steps[number] = step_between(logs[a:b], logs[b:c])
    return list(zip(edges[1:-1], steps, strict=True))


def _holds(step: Step, limits: HistoryLimits) -> bool:
    return step.p <= limits.alpha and step.effect >= math.log1p(limits.notify) and step.separation >= SEPARATION
