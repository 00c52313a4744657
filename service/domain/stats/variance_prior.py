"""Estimate the variance over trials with a prior from all cases of a run: three trials are too few for one case alone.

Empirical Bayes as in limma's squeezeVar (Smyth 2004): the true variances of a group scatter around a common one, and
each estimate is shrunk towards it, the more so the more similar the cases are.  Cases that vary far more than the rest
neither affect the fit nor are shrunk (after Phipson et al. 2016).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy
from numpy.typing import NDArray

MIN_CASES = 8  # of a group for a level of its own, and of a metric for a prior
TAILS = (0.05, 0.10)  # of the log-variances that are winsorised before the fit; outliers are mostly large
# A variance with a smaller p in its group is an outlier, and is not moderated.
MIN_P = 0.002
# Candidates for the degrees of freedom of a prior; infinite if all cases have the same variance.
_DFS = np.append(np.geomspace(0.25, 256, 64), np.inf)


@dataclass(frozen=True)
class Prior:
    """The prior of a group's variances over trials: its variance, and its weight in degrees of freedom."""

    variance: float
    df: float
    pooled: float  # degrees of freedom of all values it was estimated from, an upper limit for the posterior

    def moderate(self, own: float, df: float) -> tuple[float, float]:
        """The posterior variance of a case with the sample variance `own`, and its degrees of freedom."""
        if self.is_outlier(own, df):
            return own, df
        if math.isinf(self.df):
            return self.variance, max(self.pooled, df)
        return (self.df * self.variance + df * own) / (self.df + df), min(self.df + df, max(self.pooled, df))

    def is_outlier(self, own: float, df: float) -> bool:
        """Whether a case varies so much more than its group that the prior does not apply."""
        return float(scipy.special.fdtrc(df, min(self.df, 1e6), own / self.variance)) < MIN_P


def priors(variances: Sequence[float], groups: Sequence[str], df: int) -> dict[str, Prior]:
    """A prior for each group of one metric, from the variance of each case, with `df` degrees of freedom each.

    The scatter within groups is estimated from the whole metric; the level from the group if it has MIN_CASES cases,
    and else from the metric.  Empty if the metric has fewer.  Variances of zero are left out.
    """
    seen = [(math.log(own), group) for own, group in zip(variances, groups, strict=True) if own > 0]
    if len(seen) < MIN_CASES:
        return {}
    everyone = [value for value, _ in seen]
    members = defaultdict[str, list[float]](list)
    for value, group in seen:
        members[group].append(value)
    level_from = {group: own if len(own) >= MIN_CASES else everyone for group, own in members.items()}
    levels = {group: winsorised(values)[0] for group, values in level_from.items()}
    estimated = sum(len(own) >= MIN_CASES for own in members.values()) or 1
    spread = winsorised([value - levels[group] for value, group in seen])[1]
    prior_df, centre = fit(spread * len(seen) / (len(seen) - estimated), df)
    return {
        group: Prior(math.exp(levels[group] - centre), prior_df, float(df * len(values)))
        for group, values in level_from.items()
    }


def fit(spread: float, df: int) -> tuple[float, float]:
    """The prior's degrees of freedom that give the log-variances this `spread`, and the mean log-variance then.

    The ratio of a case's variance to the prior's has an F distribution.  Its winsorised moments are tabulated, which
    accounts for the winsorising of the data.
    """
    means, spreads = _moments(df)
    place = int(np.searchsorted(-spreads, -spread))  # spreads fall as the prior's degrees of freedom grow
    if place == 0 or place == len(_DFS):
        at = min(place, len(_DFS) - 1)
        return float(_DFS[at]), float(means[at])
    return float(_DFS[place - 1]), float(means[place - 1])  # the smaller one, which shrinks less


@cache
def _moments(df: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Winsorised mean and variance of log F(df, d0), for each d0 of _DFS."""
    low, high = TAILS
    chances = np.clip((np.arange(200) + 0.5) / 200, low, 1 - high)
    logs = [
        np.log(scipy.special.gammaincinv(df / 2, chances) * 2 / df)
        if np.isinf(prior)
        else np.log(scipy.special.fdtri(df, prior, chances))
        for prior in _DFS
    ]
    return np.array([logs_of_case.mean() for logs_of_case in logs]), np.array(
        [logs_of_case.var() for logs_of_case in logs]
    )


def winsorised(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """Mean and sample variance of the winsorised values."""
    low, high = np.quantile(values, (TAILS[0], 1 - TAILS[1]))
    pulled = np.clip(values, low, high)
    return float(pulled.mean()), float(pulled.var(ddof=1))
