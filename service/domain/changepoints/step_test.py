"""How strong is the step between two levels?  A robust t test that knows autocorrelation, and an overlap."""

import math
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Logs = NDArray[np.float64]  # natural logarithms of adjusted values, oldest first

WINDOW = 40  # revisions of each side that are compared: what lies further off has drifted
OUTLIER = 3.0  # deviations from the median beyond which a value is pulled in (winsorised)
MAD_TO_SIGMA = 1.4826  # what the median and the mean of absolute deviations are short of a normal sigma
MEAN_TO_SIGMA = 1.2533
# Levels of five revisions do not know their own variance: it is averaged with the other side's, which counts as
# so many revisions (the idea of limma's moderated t: Smyth, 2004).
BORROWED = 20
LARGEST_AUTOCORRELATION = 0.9
TINIEST = 1e-9  # spread of a series that does not vary at all (bytes), in log units: far below any change
LARGEST_LOG = math.log(sys.float_info.max)


def ratio_of(log: float) -> float:
    """e to this power, and where no float is so large the largest."""
    return math.exp(log) if log < LARGEST_LOG else sys.float_info.max


@dataclass(frozen=True)
class Step:
    """What lies between two neighbouring levels."""

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
    """Welch's t (1947) of winsorised levels, for autocorrelated noise.

    The variance of a mean of n values with lag-1 autocorrelation r is (1 + r) / (1 - r) times that of independent ones
    (Bayley and Hammersley, 1946), and the degrees of freedom shrink by as much.
    """
    before, after = before[-WINDOW:], after[:WINDOW]
    first, second = _level(before), _level(after)
    pooled = (first.squares + second.squares) / (first.count + second.count - 2)
    inflation = _inflation(first, second)
    parts = [_variance(level, pooled) / level.count for level in (first, second)]
    error = max(math.sqrt(sum(parts) * inflation), TINIEST)
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
    """The median, and a standard deviation that outliers do not move (0 only where all values are the same)."""
    return _middle_and_spread(logs, np.sort(logs))


def _middle_and_spread(logs: Logs, ordered: Logs) -> tuple[float, float]:
    middle = _middle(ordered)
    away = np.abs(logs - middle)
    # Where more than half of the values are one number its MAD is 0, and the mean deviation speaks instead.
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
    """(1 + r) / (1 - r) of both sides together, r freed of the bias of short series (Marriott and Pope, 1954).

    An estimate from n values about their own mean falls short by (1 + 3 r) / n; both sides together by twice that.
    """
    squares, count = first.squares + second.squares, first.count + second.count
    if squares <= 0:
        return 1.0
    products = sum(float(level.residuals[:-1] @ level.residuals[1:]) for level in (first, second))
    r = (products / squares + 2 / count) / max(1 - 6 / count, 0.2)
    r = min(max(r, 0.0), LARGEST_AUTOCORRELATION)
    return (1 + r) / (1 - r)


def _variance(level: _Level, pooled: float) -> float:
    return (level.squares + BORROWED * pooled) / (level.count - 1 + BORROWED)


def _freedom(parts: list[float], counts: tuple[int, int], inflation: float) -> float:
    """Welch and Satterthwaite's, for variances that borrowed."""
    total = sum(parts)
    if total <= 0:
        return float(sum(counts) - 2)
    spread = sum(part**2 / (count - 1 + BORROWED) for part, count in zip(parts, counts, strict=True))
    return max(total**2 / spread / inflation, 2.0)


def _separation(before: Logs, after: Logs) -> float:
    below = np.searchsorted(before, after, "left") + np.searchsorted(before, after, "right")
    return abs(float(below.sum()) / (len(before) * len(after)) - 1)
