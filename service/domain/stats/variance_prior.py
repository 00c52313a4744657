"""How much trials vary, learned from all cases of a run together: three trials alone say little of a variance.

Empirical Bayes as in limma's squeezeVar (Smyth 2004): the true variances of the cases of a group are taken to be spread
around a common one, and the estimate of each is pulled to it by as much as the cases of the family are alike.  Where
they are not alike, next to nothing is pulled.  A few cases that vary far more than the rest do not spoil the fit, and
are left to themselves (after Phipson et al. 2016).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, fdtri, gammaincinv

FEWEST = 8  # cases of a group that has a level of its own, and of a metric that has a prior at all
TAILS = (0.05, 0.10)  # of the log-variances, pulled in before the fit; upwards more, since that is where outliers are
# A variance as improbable as this in its group belongs to a case of another kind; it stands alone.
APART = 0.002
# Degrees of freedom that a prior may have; infinite where the cases of a family do not differ at all.
_DFS = np.append(np.geomspace(0.25, 256, 64), np.inf)


@dataclass(frozen=True)
class Prior:
    """A group's usual variance over trials, and to how many degrees of freedom of one's own it is worth."""

    variance: float
    df: float
    pooled: float  # degrees of freedom of all that it was learned from: nothing is known better than that

    def moderate(self, own: float, df: float) -> tuple[float, float]:
        """The variance that a case with its `own` is given, and its degrees of freedom."""
        if self.stranger(own, df):
            return own, df
        if math.isinf(self.df):
            return self.variance, max(self.pooled, df)
        return (self.df * self.variance + df * own) / (self.df + df), min(self.df + df, max(self.pooled, df))

    def stranger(self, own: float, df: float) -> bool:
        """Does a case vary so much more than its group that the group says nothing of it?"""
        return float(fdtrc(df, min(self.df, 1e6), own / self.variance)) < APART


def priors(variances: Sequence[float], groups: Sequence[str], df: int) -> dict[str, Prior]:
    """A prior for each group of one metric, from one variance a case with `df` degrees of freedom each.

    How alike cases are within their groups is learned from the whole metric; the level of the variance from the group
    where it has FEWEST cases, and else from the metric.  Empty where the metric has fewer.  Variances of zero are of
    what does not vary, and are left out.
    """
    seen = [(math.log(own), group) for own, group in zip(variances, groups, strict=True) if own > 0]
    if len(seen) < FEWEST:
        return {}
    everyone = [value for value, _ in seen]
    members = defaultdict[str, list[float]](list)
    for value, group in seen:
        members[group].append(value)
    level_from = {group: own if len(own) >= FEWEST else everyone for group, own in members.items()}
    levels = {group: _winsorised(values)[0] for group, values in level_from.items()}
    estimated = sum(len(own) >= FEWEST for own in members.values()) or 1
    _, spread = _winsorised([value - levels[group] for value, group in seen])
    prior_df, centre = _fit(spread * len(seen) / (len(seen) - estimated), df)
    return {
        group: Prior(math.exp(levels[group] - centre), prior_df, float(df * len(values)))
        for group, values in level_from.items()
    }


def _fit(spread: float, df: int) -> tuple[float, float]:
    """The prior's degrees of freedom at which logs of variances are spread like this, and their mean then.

    The ratio of a case's variance to the prior's has an F distribution; its winsorised moments are tabulated, so what
    winsorising takes from them is taken into account.
    """
    means, spreads = _moments(df)
    place = int(np.searchsorted(-spreads, -spread))  # spreads fall as the prior's degrees of freedom grow
    if place == 0 or place == len(_DFS):
        at = min(place, len(_DFS) - 1)
        return float(_DFS[at]), float(means[at])
    return float(_DFS[place - 1]), float(means[place - 1])  # the smaller one: rather too little is pulled


@cache
def _moments(df: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Winsorised mean and variance of log F(df, d0), for each d0 of _DFS."""
    low, high = TAILS
    chances = np.clip((np.arange(200) + 0.5) / 200, low, 1 - high)
    logs = [
        np.log(gammaincinv(df / 2, chances) * 2 / df) if np.isinf(prior) else np.log(fdtri(df, prior, chances))
        for prior in _DFS
    ]
    return np.array([one.mean() for one in logs]), np.array([one.var() for one in logs])


def _winsorised(values: Sequence[float]) -> tuple[float, float]:
    """Mean and variance (of a sample) after the tails were pulled in."""
    low, high = np.quantile(values, (TAILS[0], 1 - TAILS[1]))
    pulled = np.clip(values, low, high)
    return float(pulled.mean()), float(pulled.var(ddof=1))
