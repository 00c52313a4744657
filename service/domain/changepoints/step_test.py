"""Test the step between two levels, for correlated noise, after what it shares with SOTA is removed.  Pure.

The plain ratio is not used: it adds the noise of a reference that shares none with the candidate (control variates:
Lavenberg and Welch, 1981).
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Logs = NDArray[np.float64]  # natural logarithms of adjusted values, oldest first
Table = NDArray[np.float64]  # a row for each series; NaN where nothing is known

OUTLIER = 3.0  # standard deviations from the median beyond which a value is winsorised
MAD_TO_SIGMA = 1.4826  # a normal sigma over the median of absolute deviations, and over their mean
MEAN_TO_SIGMA = 1.2533
RUNNING = 11  # revisions of the running median: it follows a level of 6
MIN_LEVEL = 8  # revisions of a level that tells something about autocorrelation
MAX_AUTOCORRELATION = 0.98


def middle_and_spread(logs: Logs) -> tuple[float, float]:
    """The median, and a robust standard deviation, which is 0 only if all values are equal."""
    middle = median(logs)
    return middle, spread(np.abs(logs - middle))


def spread(away: Logs) -> float:
    """A robust standard deviation from absolute deviations.

    If more than half of the values are equal, the MAD is 0; the mean absolute deviation is used then.
    """
    return MAD_TO_SIGMA * median(away) or MEAN_TO_SIGMA * float(away.sum()) / len(away)


def median(logs: Logs) -> float:
    """The median of a short array.  `np.median` takes five times as long."""
    ordered, half = np.sort(logs), len(logs) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


def local_noise(logs: Logs) -> float:
    """The standard deviation about a running median, which contains no step and no slow drift."""
    return spread(np.abs(logs - running_median(logs)))


def running_median(logs: Logs) -> Logs:
    """For each value the median of those around it."""
    reach = min(RUNNING, len(logs)) // 2
    padded = np.pad(logs, reach, mode="reflect")
    return np.asarray(np.median(sliding_window_view(padded, 2 * reach + 1), axis=1))


def autocorrelation(logs: Logs, starts: Sequence[int]) -> float:
    """The lag-1 autocorrelation about the levels that begin at `starts`, pooled over levels.

    Each level counts in its own standard deviations.  The estimate from n values is biased by -(1 + 3 r) / n (Marriott
    and Pope, 1954).  A single level says too little: noise that is cut into levels looks uncorrelated in each.  So do
    few revisions, which are mixed with as many as the shortest level has, without any.
    """
    total, count, levels = 0.0, 0, 0
    for begin, end in pairwise([0, *starts, len(logs)]):
        if end - begin < MIN_LEVEL:
            continue
        middle, sigma = middle_and_spread(logs[begin:end])
        if not sigma:
            continue
        away = np.clip(logs[begin:end] - middle, -OUTLIER * sigma, OUTLIER * sigma)
        away -= away.mean()
        total += float(away[:-1] @ away[1:]) / float(away @ away) * len(away)
        count, levels = count + len(away), levels + 1
    if not count:
        return 0.0
    bias = levels / count
    r = (total / count + bias) / max(1 - 3 * bias, 0.2) * count / (count + MIN_LEVEL)
    return min(max(r, 0.0), MAX_AUTOCORRELATION)


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


WINDOW = 40  # revisions of each side that are compared; values further away have drifted
# Five revisions are too few to estimate a variance.  The pooled variance of both sides is mixed in with the weight of
# this many revisions (as in limma's moderated t: Smyth, 2004).  The degrees of freedom stay those of both sides.
BORROWED = 20
MIN_ERROR = 1e-9  # in log units, for a series that does not vary at all (bytes); far below any change
MIN_FREE = 0.25  # degrees of freedom of a level whose values all move together
MIN_FREEDOM = 1.0
MAX_LOG = math.log(sys.float_info.max)


def ratio_of(log: float) -> float:
    """exp(log), limited to the largest float."""
    return math.exp(log) if log < MAX_LOG else sys.float_info.max


@dataclass(frozen=True)
class Step:
    """The step between two neighbouring levels."""

    shift: float  # log of after over before, between winsorised means
    error: float  # its standard error
    freedom: float  # degrees of freedom of `error`
    p: float  # two-sided, for no step at this place
    strict_p: float  # the same without borrowed variance: right also if one side varies more than the other
    over_drift: float  # twice the log likelihood ratio of a step over a drift
    revisions: int  # of both sides

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Bounds of after over before, as ratios."""
        reach = float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.error
        return ratio_of(self.shift - reach), ratio_of(self.shift + reach)

    def p_of_less(self, shift: float) -> float:
        """How likely the step looks as small as this if it is `shift`, or more in the same direction: one-sided."""
        away = (shift - self.shift) * math.copysign(1, shift)
        return float(stdtr(self.freedom, -away / self.error))


def step_between(before: Logs, after: Logs, r: float = 0.0) -> Step:
    """Welch's t test (1947) of winsorised levels, for noise with the lag-1 autocorrelation `r`.

    The mean of n correlated values varies like that of fewer independent ones, and the same holds for their variance
    (Bayley and Hammersley, 1946).
    """
    before, after = before[-WINDOW:], after[:WINDOW]
    sides = _pulled_in((before, after), r)
    shift = sides[1].mean - sides[0].mean
    error, freedom = _error(sides, BORROWED, r)
    own_error, own_freedom = _error(sides, 0, r)
    p = _two_sided(shift, error, freedom)
    strict_p = max(p, _two_sided(shift, own_error, own_freedom))
    return Step(shift, error, freedom, p, strict_p, _over_drift(sides), len(before) + len(after))


@dataclass(frozen=True)
class _Winsorised:
    """One winsorised level."""

    residuals: Logs  # about the mean, in the order of the revisions
    mean: float
    squares: float  # of the residuals, corrected for those that were pulled in
    inflation: float  # variance of the mean over that of a mean of independent values
    count: int  # values that were not pulled in

    @property
    def free(self) -> float:
        """Degrees of freedom of `squares`: values that move together hide a part of their variance in the mean."""
        return max(self.count - self.inflation, MIN_FREE)

    def variance_of_mean(self, pooled: float, borrowed: int) -> float:
        variance = (self.squares + borrowed * pooled) / (self.free + borrowed)
        return variance * self.inflation / self.count


def _pulled_in(sides: Sequence[Logs], r: float) -> list[_Winsorised]:
    """Both levels with their outliers pulled in.

    The MAD of five values may be nearly 0, so no side is winsorised at less than the spread of both on average.
    """
    middles = [median(side) for side in sides]
    spreads = [spread(np.abs(side - middle)) for side, middle in zip(sides, middles, strict=True)]
    levels = []
    for side, middle, own in zip(sides, middles, spreads, strict=True):
        limit = OUTLIER * max(own, sum(spreads) / 2)
        pulled = np.minimum(np.maximum(side, middle - limit), middle + limit)
        mean = float(pulled.sum()) / len(pulled)
        residuals = pulled - mean
        # The variance of a winsorised mean has the values that were kept as its count (Yuen, 1974).
        kept = int(np.count_nonzero(pulled == side))
        squares = float(residuals @ residuals) * (len(side) - 1) / max(kept - 1, 1)
        levels.append(_Winsorised(residuals, mean, squares, _inflation(kept, r), kept))
    return levels


def _inflation(count: int, r: float) -> float:
    """The variance of a mean of AR(1) values over that of a mean of independent ones."""
    return 1 + 2 * r / (1 - r) * (1 - (1 - r**count) / (count * (1 - r)))


def _error(sides: Sequence[_Winsorised], borrowed: int, r: float) -> tuple[float, float]:
    """The standard error of the shift, and its degrees of freedom: never more than both sides have together."""
    have = sum(side.free for side in sides)
    pooled = sum(side.squares for side in sides) / have
    parts = [side.variance_of_mean(pooled, borrowed) for side in sides]
    total, freedom = sum(parts), have
    if total > 0:  # Welch and Satterthwaite
        shares = sum(part**2 / (side.free + borrowed) for part, side in zip(parts, sides, strict=True))
        freedom = min(total**2 / shares, have)
    return max(math.sqrt(total), MIN_ERROR), max(freedom * (1 - r * r) / (1 + r * r), MIN_FREEDOM)


def _two_sided(shift: float, error: float, freedom: float) -> float:
    return 2 * float(stdtr(freedom, -abs(shift) / error))


def _over_drift(sides: Sequence[_Winsorised]) -> float:
    """Compare a step in AR(1) noise with AR(1) noise alone.

    In noise that is nearly a random walk a place can always be found where the means of both sides differ.  But there,
    each value follows from the one before, and a step adds nothing to that.
    """
    stepped = np.concatenate([side.residuals for side in sides])
    level = np.concatenate([side.residuals + side.mean for side in sides])
    level -= level.mean()
    return (len(level) - 1) * math.log(unpredicted(level) / unpredicted(stepped))


def unpredicted(residuals: Logs) -> float:
    """The variance that is left when each value is predicted from the one before."""
    earlier, later = residuals[:-1], residuals[1:]
    r = float(earlier @ later) / max(float(earlier @ earlier), MIN_ERROR**2)
    left = later - r * earlier
    return float(left @ left) / len(left) + MIN_ERROR**2


# Revisions of a mean.  A step is tested with means, so the slope is that of means: noise of single values, which
# averages out, would hide what the machine does to both.
BLOCK = 8
OUTLYING = 3.0  # robust standard deviations from the slope beyond which a difference of means is left out
ROUNDS = 4  # of leaving out and estimating again
MAX_THETA = 1.2
MIN_RELIABILITY = 0.5
MIN_SERIES = 8  # that show how unlike the series of a device are
MIN_VARIANCE = 1e-6  # of a slope; one series that follows SOTA exactly must not decide for all


@dataclass(frozen=True)
class Slope:
    """By how much a series moves if the machine does, and the variance of that between the series of a device."""

    theta: float
    variance: float
    reliability: float = 1.0  # share of the variance of SOTA that is the machine's


UNKNOWN = Slope(0.0, 1.0)  # of a device with few series


def adjusted(value: Logs, reference: Logs, device: Slope = UNKNOWN) -> Logs:
    """`value` - theta * (`reference` - its median), both logs.

    `reference` is NaN where SOTA was not measured; that revision is not adjusted.  theta is the series' own slope,
    shrunk towards that of its `device` by the variances of both (empirical Bayes).  A constant series does not follow
    the machine.
    """
    measured = ~np.isnan(reference)
    if not measured.any() or np.ptp(value) == 0:
        return value
    [own], [variance] = _slopes(value[None, measured], reference[None, measured], device.reliability)
    theta = device.theta
    if np.isfinite(variance):
        theta = (own * device.variance + device.theta * variance) / (device.variance + variance)
    correction = np.zeros_like(value)
    correction[measured] = min(max(theta, 0), MAX_THETA) * (reference[measured] - np.median(reference[measured]))
    return value - correction


def device_slope(values: Table, references: Table, cases: Sequence[str]) -> Slope:
    """The slope that a series of this device is expected to have, from all of its series.

    The variance is that between series (DerSimonian and Laird, 1986) and that of the mean.  Series that hardly vary
    are ignored, because a coarse clock shows no noise, and their slope of 0 would look exact.
    """
    reliability = _reliability(references, cases)
    thetas, variances = _slopes(values, references, reliability)
    measured = np.isfinite(variances) & (row_medians(np.abs(_moves(values))) > 0)
    if measured.sum() < MIN_SERIES:
        return UNKNOWN
    thetas = np.clip(thetas[measured], -MAX_THETA, 2 * MAX_THETA)
    variances = np.maximum(variances[measured], MIN_VARIANCE)
    weights = 1 / (variances + np.median(variances))
    theta = float(weights @ thetas / weights.sum())
    between = float(weights @ ((thetas - theta) ** 2 - variances) / weights.sum())
    variance = max(between, 0) + float(1 / weights.sum())
    if not (math.isfinite(theta) and math.isfinite(variance)):
        return UNKNOWN
    return Slope(min(max(theta, 0), MAX_THETA), variance, reliability)


def _reliability(references: Table, cases: Sequence[str]) -> float:
    """The share of the variance of SOTA that its other cases have as well.

    The rest is noise of one case, which makes slopes over it too small (Fuller, 1987, has the theory).  If most of the
    variance is such noise, slopes stay as they are: with more of SOTA, a series would take over more noise than it
    loses.
    """
    moves = _moves(references)
    measured = ~np.isnan(moves)
    moves = np.where(measured, moves, 0)
    _, case = np.unique(np.array(cases), return_inverse=True)
    of_case, count = (np.zeros((len(set(cases)), moves.shape[1])) for _ in range(2))
    np.add.at(of_case, case, moves)
    np.add.at(count, case, measured)
    others, counts = (table.sum(axis=0) - table[case] for table in (of_case, count))
    common = np.divide(others, counts, out=np.zeros_like(others), where=counts > 0)
    total = float(np.sum(moves**2 * (counts > 0)))
    share = float(np.sum(moves * common)) / total if total > 0 else 1.0
    return min(share, 1.0) if share >= MIN_RELIABILITY else 1.0


def _slopes(values: Table, references: Table, reliability: float) -> tuple[Logs, Logs]:
    """The slope of each row over its reference and its variance, which is infinite if a row says nothing.

    Differences of neighbouring means do not count a change of level twice, and one that only one side makes is far from
    the slope and left out.
    """
    ours, others = _moves(values), _moves(references)
    measured = ~np.isnan(ours) & ~np.isnan(others)
    ours, others = np.where(measured, ours, 0), np.where(measured, others, 0)
    kept, theta, left = measured, np.zeros(len(ours)), ours
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(ROUNDS):
            theta = np.nan_to_num(np.sum(kept * ours * others, axis=1) / np.sum(kept * others**2, axis=1))
            left = ours - theta[:, None] * others
            sigma = MAD_TO_SIGMA * row_medians(np.where(measured, np.abs(left), np.nan))
            kept = measured & (np.abs(left) <= OUTLYING * sigma[:, None])
        blocks = measured.sum(axis=1) / BLOCK  # differences overlap; so many have no common value
        variance = np.sum(kept * left**2, axis=1) / np.sum(kept * others**2, axis=1) / blocks
    return theta / reliability, np.where(np.isnan(variance) | (blocks < 1), np.inf, variance / reliability**2)


def _moves(rows: Table) -> Table:
    """Differences between the means of neighbouring blocks, one at each place."""
    if rows.shape[1] < 2 * BLOCK:
        return np.full((len(rows), 0), np.nan)
    means = sliding_window_view(rows, BLOCK, axis=1).mean(axis=2)
    return np.asarray(means[:, BLOCK:] - means[:, :-BLOCK])
