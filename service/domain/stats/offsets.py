"""Estimate the offsets of a session from its controls, which compare equal code.

A trial effect is the sum of the true effect, an offset that all trials of the session share, and noise; more trials
average out only the noise.  A copy of the baseline has offsets with the same distribution as the head's.  The variance
of the controls over cases, in excess of their noise, therefore estimates the variance of the offsets: a random-effects
model with mean zero (DerSimonian & Laird 1986), solved as by Paule & Mandel (1982).  What two builds of one source
differ by is estimated in the same way from calibrations, because no copy of the session shows it.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np
import scipy
from numpy.typing import NDArray

from .variance_prior import MIN_CASES

WINSORISED = 0.10  # share of the largest values: a few noisy controls must not widen all intervals
_STEPS = 24  # of the bisection: relative precision 1e-7


@dataclass(frozen=True)
class Control:
    """The control of one case: the log-ratio of copy over original for each trial.

    `variance` is the squared standard error of their mean, with `df` degrees of freedom.
    """

    provider: str
    trials: tuple[float, ...]
    variance: float
    df: float

    @property
    def centre(self) -> float:
        return sum(self.trials) / len(self.trials)


@dataclass(frozen=True)
class Offset:
    """The variances of a session's offsets, of log-ratios.

    `own` is the variance of each case's own offset, with `df` degrees of freedom.  `common` is the variance of the
    offset that all cases of a contender share, estimated from one value for each of `providers`.  `relative` is what a
    noisy case has beyond that, as a multiple of the squared standard error of its first trials.  `learned` offsets are
    mostly known from earlier sessions.  `build` is the part of `own` that two builds differ by.
    """

    own: float
    common: float
    df: float
    providers: int
    relative: float = 0.0
    learned: bool = False
    build: float = 0.0

    def at(self, squared_error: float) -> Self:
        """At a case whose first trials have this squared standard error."""
        added = self.relative * squared_error
        return replace(self, own=self.own + added, relative=0.0, learned=self.learned or added > self.own)

    def of_two_sessions(self) -> Self:
        """Of the mean over two sessions with fresh builds, each of which drew its own offsets."""
        return replace(self, own=self.own / 2, common=self.common / 2, relative=self.relative / 2, build=self.build / 2)

    def with_build(self, build: Self) -> Self:
        """With what two builds differ by beyond the session's offsets."""
        if build.own == 0:
            return self
        own = self.own + build.own
        df = own**2 / (self.own**2 / self.df + build.own**2 / build.df)
        return replace(self, own=own, df=df, build=build.own)

    @property
    def variance(self) -> float:
        return self.own + self.common

    @property
    def sd(self) -> float:
        return math.sqrt(self.variance)


def offset(controls: Sequence[Control]) -> Offset | None:
    """The offsets of a family of controls; None with fewer than MIN_CASES."""
    if len(controls) < MIN_CASES:
        return None
    by_provider = defaultdict[str, list[Control]](list)
    for control in controls:
        by_provider[control.provider].append(control)
    shifts = {provider: _shift(members) for provider, members in by_provider.items()}
    centres = np.array([control.centre - shifts[control.provider][0] for control in controls])
    variances = np.array([control.variance for control in controls])
    own = between(centres**2, variances, float(np.median([control.df for control in controls])))
    common = sum(centre**2 - error for centre, error in shifts.values()) / len(shifts)
    return Offset(own, max(0.0, common), len(controls), len(shifts))


def of_cases(squares: NDArray[np.float64], variances: NDArray[np.float64], df: float) -> tuple[float, float]:
    """The variance of offsets at any case, and what noisy cases have beyond it, as a multiple of their own variance.

    An offset of a placement is as large at a quiet case as at a noisy one; trials that are alike shift a noisy case
    further.  The quieter half of the cases shows the one, and the noisier half what that leaves unexplained.
    """
    half = len(squares) // 2
    if half < MIN_CASES:
        return between(squares, variances, df), 0.0
    quiet, noisy = np.split(np.argsort(variances, kind="stable"), [half])
    own = between(squares[quiet], variances[quiet], df)
    usable = np.maximum(variances[noisy], 1e-30)
    return own, between(squares[noisy] / usable, 1 + own / usable, df)


def degrees_of_freedom(
    own: float, centres: NDArray[np.float64], errors: NDArray[np.float64], sessions: NDArray[np.int64]
) -> float:
    """Those of the estimate `own` of the variance of offsets, from `centres` that have the squared `errors` as well.

    Cases of one session may share their offset.  The means over the cases of each session show how much of the variance
    they share: that part was drawn once for each session, and the rest once for each case (Satterthwaite 1946).  The
    result is at least the number of sessions.
    """
    counts = np.bincount(sessions)
    means = np.bincount(sessions, centres)[counts > 0] / counts[counts > 0]
    count, cases = len(means), len(centres) / len(means)
    if own == 0 or cases == 1:
        return float(count)
    error = float(np.median(errors))
    # Few sessions can show a small shared part by chance, and claiming many degrees of freedom then would count that
    # twice: so what is shared is taken for the mean of its inverse chi-square.
    of_few = count / (count - 2) if count > 2 else math.inf
    common = min(own, max(0.0, of_few * float(np.mean(np.square(means))) - (own + error) / cases))
    of_means = (common + (own - common + error) / cases) ** 2 / count
    of_cases = (own - common + error) ** 2 / (count * (cases - 1))
    return max(float(count), own**2 / (of_means + of_cases))


def _shift(controls: Sequence[Control]) -> tuple[float, float]:
    """The median control of a provider, and its squared standard error over trials."""
    most = max(len(control.trials) for control in controls)
    whole = np.array([control.trials for control in controls if len(control.trials) == most])
    trials = np.median(whole, axis=0)
    error = float(trials.var(ddof=1)) / most if most > 1 else 0.0
    return float(np.median([control.centre for control in controls])), error


def between(squares: NDArray[np.float64], variances: NDArray[np.float64], df: float) -> float:
    """The variance to add to each control's own so that the mean standardised square is as expected by chance.

    The `variances` have `df` degrees of freedom, and their sums with what is added have more (Satterthwaite 1946).
    """
    middle_variance = max(float(np.median(variances)), 1e-30)

    def excess(added: float) -> float:
        ratios = np.sort(squares / np.maximum(variances + added, 1e-30))
        cut = math.ceil(WINSORISED * len(ratios))
        mean = float((ratios[:-cut].sum() + cut * ratios[-cut - 1]) / len(ratios))
        return mean - _expected_square(df * (1 + added / middle_variance) ** 2)

    low, high = 0.0, float(squares.max())
    if high == 0 or excess(0.0) <= 0:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return (low + high) / 2


def _expected_square(df: float) -> float:
    """The mean of a squared t with `df` degrees of freedom, F(1, df), winsorised at its upper tail."""
    dfs, means = _expected_squares()
    return float(np.interp(math.log(df), dfs, means))


@cache
def _expected_squares() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """These means, by the logarithms of degrees of freedom."""
    chances = np.minimum((np.arange(400) + 0.5) / 400, 1 - WINSORISED)
    dfs = np.geomspace(0.25, 1e6, 400)
    return np.log(dfs), np.array([np.mean(scipy.special.fdtri(1, df, chances)) for df in dfs])
