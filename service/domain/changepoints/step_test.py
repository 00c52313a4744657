"""Test the step between two levels, for correlated noise, after what it shares with SOTA is removed.  Pure.

The plain ratio is not used: it adds the noise of a reference that shares none with the candidate (control variates:
Lavenberg and Welch, 1981).
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Logs = NDArray[np.float64]  # natural logarithms of adjusted values, oldest first
Table = NDArray[np.float64]  # a row for each series; NaN where nothing is known

OUTLIER = 3.0  # standard deviations from the median beyond which a value is winsorised
MAD_TO_SIGMA = 1.4826  # a normal sigma over the median of absolute deviations
MIN_SIDE = 5  # revisions of the shortest level
FEW = 8  # values, or series, from which a level or a deviation can be estimated
NEAR = 30  # values that show what is usual near a place; the newest as many places select the series to scan


def spread(away: Logs) -> float:
    """A robust standard deviation from absolute deviations.

    If more than half of the values are equal, the MAD is 0; the root of the mean square is used then.
    """
    return MAD_TO_SIGMA * median(away) or math.sqrt(float(away @ away) / len(away))


def median(logs: Logs) -> float:
    """The median of a short array.  `np.median` takes five times as long."""
    ordered, half = np.sort(logs), len(logs) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


def local_noise(logs: Logs) -> float:
    """The standard deviation of one value, from differences of neighbours: few of them have a step between."""
    return spread(np.abs(np.diff(logs))) / math.sqrt(2)


def row_medians(rows: Table) -> Table:
    """The median of each row without its NaN; NaN for a row of NaN.  `np.nanmedian` is ten times as slow here."""
    if not rows.size:
        return np.full(len(rows), np.nan)
    ordered, counts = np.sort(rows, axis=1), row_counts(rows)  # NaN is sorted last
    each, last = np.arange(len(rows)), rows.shape[1] - 1
    lower, upper = np.maximum(counts - 1, 0) // 2, np.minimum(counts // 2, last)
    middle = (ordered[each, lower] + ordered[each, upper]) / 2
    return np.asarray(middle)


def row_counts(rows: Table) -> NDArray[np.int64]:
    return np.asarray((~np.isnan(rows)).sum(axis=1))


MEMORIES = (1, 4)  # revisions: without a step, a value follows from the last one, or from the mean of the last four
MIN_ERROR = 1e-9  # in log units, for a series that does not vary at all (bytes); far below any change


def ratio_of(log: float) -> float:
    """exp(log), limited to the largest float."""
    try:
        return math.exp(log)
    except OverflowError:
        return sys.float_info.max


@dataclass(frozen=True)
class Step:
    """The step between two neighbouring levels, or the rise of a leak."""

    shift: float  # log of after over before, between winsorised means
    error: float  # its standard error
    freedom: float  # degrees of freedom of `error`
    p: float  # for noise that wanders, without a step at this place
    revisions: int  # that were compared

    @property
    def searched_p(self) -> float:
        """`p`, corrected for the places among which it was chosen: one in each shortest level (Bonferroni)."""
        return min(self.p * max(self.revisions / MIN_SIDE, 1), 1.0)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Bounds of after over before, as ratios."""
        reach = float(scipy.special.stdtrit(self.freedom, (1 + confidence) / 2)) * self.error
        return ratio_of(self.shift - reach), ratio_of(self.shift + reach)

    def p_of_less(self, shift: float) -> float:
        """How likely the step looks as small as this if it is `shift`, or more in the same direction: one-sided."""
        away = (shift - self.shift) * math.copysign(1, shift)
        return float(scipy.special.stdtr(self.freedom, -away / self.error))


def step_between(before: Logs, after: Logs) -> Step:
    """Test whether two winsorised levels explain the values better than noise that wanders by itself.

    p is also that of a t test in which each level has its own variance (Welch, 1947): a few values that scatter widely
    have no level, although the many of the other side hardly scatter.
    """
    sides = _pulled_in((before, after))
    counts, means = [len(side) for side in sides], [float(side.sum()) / len(side) for side in sides]
    left, level = [side - mean for side, mean in zip(sides, means, strict=True)], np.concatenate(sides)
    squares = counts[0] * counts[1] / len(level)
    level -= float(level.sum()) / len(level)
    step = effect(level, np.concatenate(left), means[1] - means[0], squares, parameters=2)
    parts = [float(side @ side) / (len(side) * (len(side) - 1)) + MIN_ERROR**2 for side in left]
    error = math.sqrt(sum(parts))
    freedom = error**4 / sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    p = 2 * float(scipy.special.stdtr(freedom, -abs(step.shift) / error))
    return replace(step, error=max(step.error, error), p=max(step.p, p))


def effect(level: Logs, left: Logs, shift: float, squares: float, parameters: int) -> Step:
    """The effect of `shift` on a series with the residuals `level` without it, and `left` with it.

    p is that of an F test of both models (Chow, 1960), each with the memory that suits it: so each step is judged
    without regard to any other.  `squares` are those of the effect of a shift of 1.  In the error, correlated values
    count as fewer (Bayley and Hammersley, 1946); each parameter takes about 1/n from the memory, and its estimate is
    biased by 3 r/n (Marriott and Pope, 1954).
    """
    count = len(level)
    freedom = max(count - parameters - 2, 1)  # the memory, and the variance
    wandering, (remaining, slope) = unpredicted(level), _predicted(left)
    p = 2 * float(scipy.special.stdtr(freedom, -math.sqrt(max(wandering / remaining - 1, 0.0) * freedom)))
    slope = min((slope * count + parameters) / max(count - 3 * parameters, 1), 1 - 1 / count)
    error = math.sqrt(remaining / squares) / (1 - slope)
    effective = max((count - parameters) * (1 - slope) / (1 + slope), 1.0)
    return Step(shift, error, effective, p, count)


def unpredicted(residuals: Logs) -> float:
    """The variance that is left when each value is predicted from those before it, by the memory that leaves least."""
    return _predicted(residuals)[0]


def _predicted(residuals: Logs) -> tuple[float, float]:
    """What the best memory leaves, and by how much values follow it."""
    later, sums = residuals[1:], np.concatenate([np.zeros(max(MEMORIES)), np.cumsum(residuals)])
    total, end, ages = float(later @ later), len(sums) - 1, np.arange(1, len(residuals))
    best = total, 0.0
    for memory in MEMORIES:
        earlier = sums[-len(residuals) : end] - sums[-len(residuals) - memory : end - memory]
        if memory > 1:
            earlier /= np.minimum(ages, memory)
        common, squares = float(earlier @ later), float(earlier @ earlier) + MIN_ERROR**2
        slope = min(max(common / squares, 0.0), 1.0)
        best = min(best, (total - slope * (2 * common - slope * squares), slope))
    return max(best[0], 0.0) / len(later) + MIN_ERROR**2, best[1]


def _pulled_in(sides: Sequence[Logs]) -> list[Logs]:
    """Both levels with their outliers pulled in.

    The MAD of five values may be nearly 0, so no side is winsorised at less than the spread of both on average.
    """
    middles = [median(side) for side in sides]
    spreads = [spread(np.abs(side - middle)) for side, middle in zip(sides, middles, strict=True)]
    limits = [OUTLIER * max(own, sum(spreads) / 2) for own in spreads]
    return [
        np.minimum(np.maximum(side, middle - limit), middle + limit)
        for side, middle, limit in zip(sides, middles, limits, strict=True)
    ]


ROUNDS = 2  # of estimating, and leaving out what is far from it


def adjusted(value: Logs, reference: Logs) -> Logs:
    """`value` - theta * (`reference` - its median), both logs.

    `reference` is NaN where SOTA was not measured; that revision is not adjusted.  theta is by how much the series
    moves if SOTA does, from 0 (it does not follow the machine) to 1 (it follows as SOTA does).
    """
    measured = ~np.isnan(reference)
    if measured.sum() < 2 * FEW or np.ptp(value) == 0:  # a constant series does not follow the machine
        return value
    theta = _slope(value[measured], reference[measured])
    return value - theta * np.where(measured, reference - np.median(reference[measured]), 0.0)


def _slope(value: Logs, reference: Logs) -> float:
    """The least-squares slope of differences between neighbouring means of `FEW` values.

    Differences do not count a change of level twice, and those that only one side makes are far from the slope and left
    out.  Means, since a step is tested with means: noise of single values, which averages out, would hide what the
    machine does to both.
    """
    ours, others = _moves(value), _moves(reference)
    kept, theta = np.ones(len(ours), dtype=bool), 0.0
    for _ in range(ROUNDS):
        theta = float(ours[kept] @ others[kept]) / (float(others[kept] @ others[kept]) + MIN_ERROR**2)
        left = np.abs(ours - theta * others)
        kept = left <= OUTLIER * spread(left)
    return min(max(theta, 0.0), 1.0)


def _moves(logs: Logs) -> Logs:
    """Differences between the means of neighbouring blocks, one at each place."""
    means = sliding_window_view(logs, FEW).mean(axis=1)
    return np.asarray(means[FEW:] - means[:-FEW])
