"""Detect a leak: a series that rises over many revisions, with no step that explains it.  Pure.

Levels that follow each other upwards may be cut out of one slope.  A slope between two flat parts is fitted to them and
compared with the levels by the Bayesian information criterion (Schwarz, 1978).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, takewhile

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from service.domain.changepoints.noise import OUTLIER, Logs, median, running_median, spread
from service.domain.changepoints.segmentation import MIN_SIDE, OVER_DRIFT, Levels
from service.domain.changepoints.step_test import MIN_ERROR, ratio_of, step_between, unpredicted
from service.domain.changepoints.types import HistoryLimits

LONGEST = 120  # revisions before the end of a slope that are compared
SHORTEST = 40  # revisions that can show a slope
MIN_RISING = 16  # revisions of a slope; a shorter one is a step
SLOPE_PARAMETERS = 4  # both ends, the level before and the rise
MAX_AUTOCORRELATION = 0.95
NEAR = 8  # revisions on both sides of a place that show what happens there
MAX_STEP = 0.5  # of the rise at one place; with more it is a step
FLAT = 0.7  # of the smallest rise; means of `NEAR` revisions that are not so far apart hide none, and need no fit
GRID = 4  # revisions between two slopes that are tried


@dataclass(frozen=True)
class Rise:
    """A rise in the logs of an epoch, as indices of its revisions."""

    begin: int  # the last revision before the rise
    half: int  # at which half of the rise has passed
    end: int  # the last revision of the rise
    rise: float
    error: float
    freedom: float
    p: float  # two-sided, for no rise; valid for correlated noise
    revisions: int  # that were compared
    parts: tuple[int, ...]  # the changes of level that it explains

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Bounds of after over before, as ratios."""
        reach = float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.error
        return ratio_of(self.rise - reach), ratio_of(self.rise + reach)


def rises(levels: Levels, limits: HistoryLimits) -> list[Rise]:
    """The leaks of an epoch, oldest first: of levels that follow each other upwards, as many as one slope explains.

    A level alone may hide a leak that is too slow to be cut into levels.
    """
    found = list[Rise]()
    edges = [0, *levels.starts, len(levels.logs)]
    first = 0
    while first < len(edges) - 1:
        following = first + 1
        for last in range(_highest(levels, first), first - 1, -1):
            if some := _rises_between(levels, edges[first], edges[last + 1], limits):
                found += some
                following = last + 1
                break
        first = following
    return found


def _highest(levels: Levels, first: int) -> int:
    """The last of the levels from `first` on that each are above the one before."""
    return first + len(list(takewhile(lambda step: step.shift > 0, levels.steps[first:])))


def _rises_between(levels: Levels, begin: int, end: int, limits: HistoryLimits) -> list[Rise]:
    """The leaks between two revisions, oldest first, in windows from the newest on."""
    found = list[Rise]()
    while end - begin >= SHORTEST:
        rise = _rise(levels, max(begin, end - LONGEST), end, limits)
        if rise is not None:  # once more with all of it in the window
            rise = _rise(levels, max(begin, rise.end + 1 - LONGEST), rise.end + 1, limits) or rise
            found.insert(0, rise)
        end = rise.begin if rise is not None else end - (LONGEST - SHORTEST)
    return found


def _rise(levels: Levels, begin: int, end: int, limits: HistoryLimits) -> Rise | None:
    """The rise of the revisions from `begin` to `end`; None unless a slope explains them better than levels do."""
    begin += (end - begin) % NEAR  # so that few shapes are kept
    means, least = levels.logs[begin:end].reshape(-1, NEAR).mean(axis=1), math.log1p(limits.block)
    if means.max() - means.min() < FLAT * least:
        return None
    logs = _pulled_in(levels.logs[begin:end])
    fit = _fit(logs)
    if fit.rise < least or fit.p > limits.alpha or fit.over_drift < OVER_DRIFT:
        return None
    parts = tuple(start for start in levels.starts if begin < start < end)
    step, steps = _best_step(logs), [part - begin for part in parts]
    if max(_jump(logs, place) for place in (step, *steps)) > MAX_STEP * fit.rise:
        return None
    if any(_is_certain(fit.left, place, limits) for place in steps):
        return None
    stepped = min(_criterion(_about_levels(logs, at), 2 * len(at) + 1, fit.r) for at in ([step], steps))
    if stepped <= _criterion(fit.left, SLOPE_PARAMETERS, fit.r):
        return None
    half = begin + (fit.begin + fit.end) // 2
    last = begin + min(fit.end, len(logs) - 1)
    return Rise(begin + fit.begin, half, last, fit.rise, fit.error, fit.freedom, fit.p, len(logs), parts)


@dataclass(frozen=True)
class _Fit:
    """The slope that leaves the least squares."""

    begin: int
    end: int
    rise: float
    error: float
    freedom: float
    p: float
    over_drift: float  # twice the log likelihood ratio of a slope over a drift
    r: float  # autocorrelation of what is left
    left: Logs


def _fit(logs: Logs) -> _Fit:
    begins, ends, shapes, squares = _shapes(len(logs))
    away = logs - logs.mean()
    rising = shapes @ away / squares
    best = int(np.argmax(rising * np.abs(rising) * squares))
    rise = float(rising[best])
    left = away - rise * shapes[best]
    count, unexplained = len(logs), float(left @ left) + MIN_ERROR**2
    r = float(left[:-1] @ left[1:]) / unexplained
    # Each fitted parameter takes about 1/n from the estimate (Marriott and Pope, 1954, have it for the mean).
    r = (r * count + SLOPE_PARAMETERS) / (count - 3 * SLOPE_PARAMETERS)
    r = min(max(r, 0.0), MAX_AUTOCORRELATION)
    freedom = max((count - SLOPE_PARAMETERS) * (1 - r) / (1 + r), 1.0)
    error = math.sqrt(unexplained / freedom / float(squares[best]))
    over_drift = (count - 1) * math.log(unpredicted(away) / unpredicted(left))
    p = 2 * float(stdtr(freedom, -abs(rise) / error))
    return _Fit(int(begins[best]), int(ends[best]), rise, error, freedom, p, over_drift, r, left)


@lru_cache(maxsize=LONGEST)
def _shapes(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], Logs]:
    """Every slope between two flat parts, from 0 to 1, about its mean."""
    ends_of = [(begin, end) for begin in range(0, count, GRID) for end in range(begin + MIN_RISING, count + 1, GRID)]
    begins, ends = np.array(ends_of).T
    shapes = np.clip((np.arange(count) - begins[:, None]) / (ends - begins)[:, None], 0, 1)
    shapes -= shapes.mean(axis=1)[:, None]
    return begins, ends, shapes, np.einsum("ij,ij->i", shapes, shapes)


def _pulled_in(logs: Logs) -> Logs:
    """The values, none further from its neighbours than outliers are."""
    usual = running_median(logs)
    limit = OUTLIER * max(spread(np.abs(logs - usual)), MIN_ERROR)
    return np.clip(logs, usual - limit, usual + limit)


def _best_step(logs: Logs) -> int:
    """The place of the one step that leaves the least squares."""
    counts = np.arange(1, len(logs))
    sums = np.cumsum(logs - logs.mean())[:-1]
    return int(np.argmax(sums**2 / (counts * (len(logs) - counts)))) + 1


def _jump(logs: Logs, place: int) -> float:
    """The rise at one place."""
    return median(logs[place : place + NEAR]) - median(logs[max(place - NEAR, 0) : place])


def _is_certain(left: Logs, place: int, limits: HistoryLimits) -> bool:
    """Whether a place has a step that blocks by itself, in addition to the slope."""
    before, after = left[max(place - NEAR, 0) : place], left[place : place + NEAR]
    if min(len(before), len(after)) < MIN_SIDE:
        return False
    step = step_between(before, after)
    return step.shift >= math.log1p(limits.block) and step.strict_p <= limits.block_alpha


def _about_levels(logs: Logs, starts: Sequence[int]) -> Logs:
    return np.concatenate([logs[a:b] - logs[a:b].mean() for a, b in pairwise([0, *starts, len(logs)])])


def _criterion(left: Logs, parameters: int, r: float) -> float:
    """The Bayesian information criterion, in which correlated values count as fewer: less is better."""
    count = len(left)
    return count * (1 - r) / (1 + r) * math.log(float(left @ left) + MIN_ERROR**2) + parameters * math.log(count)
