"""Test the step between two levels: a robust t test for correlated noise, and a test against a drift without a step."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from service.domain.changepoints.noise import OUTLIER, Logs, median, spread

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
    found = []
    for side, middle, own in zip(sides, middles, spreads, strict=True):
        limit = OUTLIER * max(own, sum(spreads) / 2)
        pulled = np.minimum(np.maximum(side, middle - limit), middle + limit)
        mean = float(pulled.sum()) / len(pulled)
        residuals = pulled - mean
        # The variance of a winsorised mean has the values that were kept as its count (Yuen, 1974).
        kept = int(np.count_nonzero(pulled == side))
        squares = float(residuals @ residuals) * (len(side) - 1) / max(kept - 1, 1)
        found.append(_Winsorised(residuals, mean, squares, _inflation(kept, r), kept))
    return found


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
