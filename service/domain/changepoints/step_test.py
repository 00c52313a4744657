"""Test the step between two levels: a robust t test corrected for autocorrelation, and the overlap of both sides."""

import math
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Logs = NDArray[np.float64]  # natural logarithms of adjusted values, oldest first

WINDOW = 40  # revisions of each side that are compared; values further away have drifted
OUTLIER = 3.0  # standard deviations from the median beyond which a value is winsorised
MAD_TO_SIGMA = 1.4826  # a normal sigma over the median of absolute deviations, and over their mean
MEAN_TO_SIGMA = 1.2533
# Five revisions are too few to estimate a variance.  The pooled variance of both sides is mixed in with the weight of
# this many revisions (as in limma's moderated t: Smyth, 2004).
BORROWED = 20
MAX_AUTOCORRELATION = 0.9
MIN_ERROR = 1e-9  # in log units, for a series that does not vary at all (bytes); far below any change
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
    effect: float  # the smaller of the shift of the means and of the medians, absolute
    separation: float  # Cliff's delta (1993), absolute: 0 the same values, 1 no overlap

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Bounds of after over before, as ratios."""
        reach = float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.error
        return ratio_of(self.shift - reach), ratio_of(self.shift + reach)


def step_between(before: Logs, after: Logs) -> Step:
    """Welch's t test (1947) of winsorised levels, corrected for autocorrelated noise.

    With lag-1 autocorrelation r, the variance of a mean is (1 + r) / (1 - r) times that of independent values (Bayley
    and Hammersley, 1946), and the degrees of freedom shrink by the same factor.
    """
    before, after = before[-WINDOW:], after[:WINDOW]
    first, second = _level(before), _level(after)
    pooled = (first.squares + second.squares) / (first.count + second.count - 2)
    inflation = _inflation(first, second)
    parts = [_variance(level, pooled) / level.count for level in (first, second)]
    error = max(math.sqrt(sum(parts) * inflation), MIN_ERROR)
    shift = second.mean - first.mean
    freedom = _freedom(parts, (first.count, second.count), inflation)
    return Step(
        shift=shift,
        error=error,
        freedom=freedom,
        p=2 * float(stdtr(freedom, -abs(shift) / error)),
        effect=min(abs(shift), abs(second.median - first.median)),
        separation=_separation(first.ordered, after),
    )


@dataclass(frozen=True)
class _Level:
    ordered: Logs
    residuals: Logs  # winsorised, in the order of the revisions
    mean: float
    median: float
    squares: float

    @property
    def count(self) -> int:
        return len(self.ordered)


def middle_and_spread(logs: Logs) -> tuple[float, float]:
    """The median, and a robust standard deviation, which is 0 only if all values are equal."""
    return _middle_and_spread(logs, np.sort(logs))


def _middle_and_spread(logs: Logs, ordered: Logs) -> tuple[float, float]:
    middle = _middle(ordered)
    away = np.abs(logs - middle)
    # If more than half of the values are equal, the MAD is 0; the mean absolute deviation is used then.
    return middle, MAD_TO_SIGMA * _middle(np.sort(away)) or MEAN_TO_SIGMA * float(away.sum()) / len(away)


def _middle(ordered: Logs) -> float:
    half = len(ordered) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


def _level(logs: Logs) -> _Level:
    ordered = np.sort(logs)
    middle, spread = _middle_and_spread(logs, ordered)
    pulled = np.minimum(np.maximum(logs, middle - OUTLIER * spread), middle + OUTLIER * spread)
    mean = float(pulled.sum()) / len(pulled)
    residuals = pulled - mean
    return _Level(ordered, residuals, mean, middle, float(residuals @ residuals))


def _inflation(first: _Level, second: _Level) -> float:
    """(1 + r) / (1 - r) of both sides together, with r corrected for short series (Marriott and Pope, 1954).

    The estimate of r from n values is biased by -(1 + 3 r) / n, and by twice that for both sides together.
    """
    squares, count = first.squares + second.squares, first.count + second.count
    if squares <= 0:
        return 1.0
    products = sum(float(level.residuals[:-1] @ level.residuals[1:]) for level in (first, second))
    r = (products / squares + 2 / count) / max(1 - 6 / count, 0.2)
    r = min(max(r, 0.0), MAX_AUTOCORRELATION)
    return (1 + r) / (1 - r)


def _variance(level: _Level, pooled: float) -> float:
    return (level.squares + BORROWED * pooled) / (level.count - 1 + BORROWED)


def _freedom(parts: list[float], counts: tuple[int, int], inflation: float) -> float:
    """Welch-Satterthwaite degrees of freedom of the moderated variances."""
    total = sum(parts)
    if total <= 0:
        return float(sum(counts) - 2)
    spread = sum(part**2 / (count - 1 + BORROWED) for part, count in zip(parts, counts, strict=True))
    return max(total**2 / spread / inflation, 2.0)


def _separation(before: Logs, after: Logs) -> float:
    below = np.searchsorted(before, after, "left") + np.searchsorted(before, after, "right")
    return abs(float(below.sum()) / (len(before) * len(after)) - 1)
