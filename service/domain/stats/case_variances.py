"""Learn from a worker's earlier sessions how much the trials of each case vary: a prior for runs of any size.

On an H200 the variance of a case hardly changes from session to session, and cases differ a hundredfold.  So earlier
comparisons of equal code say how cases compare with each other and how constant they are.  They do not say how noisy
the machine is today: that level is estimated from the run's own trials, of head and control together.  What
trials of a session share grows with that level.  A calibration from a quieter hour therefore hardly narrows intervals.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import scipy  # its special functions are imported where one is called first: readers of a database call none
from numpy.typing import NDArray

from .offsets import Offset, between, degrees_of_freedom, of_cases
from .variance_prior import MIN_CASES, Prior, fit, winsorised

Name = tuple[str, str]  # provider and case

MIN_SESSIONS = 3  # fewer cannot tell how constant a case is
# The scatter of earlier sessions counts like that of so many cases of the run: a run of 200 cases decides by its own.
PAST_WEIGHT = 20
# Head and control are compared with the same baseline: their variances correlate by a fourth, so the mean of two with
# d degrees of freedom has 2 d / 1.25.
TWO_SIDES = 1.6
TOP = 0.10  # share of the largest variances that is pulled in before the level is taken, and at least one
MIN_PULLED = 3  # of fewer variances none is pulled in
# A mean of less similar variances is that of the largest; what it is expected to be would then explain any level away.
MIN_SCATTER_DF = 4.0
FEW = 50  # cases up to which a case has no part in the level that it is judged by
# The degrees of freedom of a variance, by the variance of its logarithm.
_LOG_DFS = np.linspace(math.log(0.25), math.log(1e6), 400)


@lru_cache(1)
def _log_spreads() -> NDArray[np.float64]:
    spreads: NDArray[np.float64] = -np.log(scipy.special.polygamma(1, np.exp(_LOG_DFS) / 2))
    return spreads


@dataclass(frozen=True)
class PastComparison:
    """Equal code at one case in one session: the mean over trials of the log-ratio, and their sample variance."""

    session: Hashable
    name: Name
    centre: float
    variance: float
    df: int
    control: bool = True  # a copy of the baseline; False for two builds of one source, which may differ by more


@dataclass(frozen=True)
class RunVariance:
    """Of one case in the run to be judged: of head over baseline, and of the baseline's copy over it."""

    group: str
    head: float
    control: float | None = None


@dataclass(frozen=True)
class CaseVariances:
    """The usual variance of each case of one metric.

    `usual` is its logarithm and `error` the variance of this logarithm.  `spread` is the winsorised variance of a
    session's log-variance about it, for sample variances of `df` degrees of freedom.  `offset` is what the trials of a
    session share beyond that, for runs of too few cases to show it.  `build` is what two builds of one source differ by
    beyond both, which no control of a session shows; None if too few sessions compared builds.  `first` has the effects
    of all trials of the first session of the comparison that is to be judged, where this is its second one.
    """

    usual: Mapping[Name, float]
    error: Mapping[Name, float]
    spread: float
    df: int
    offset: Offset | None = None
    build: Offset | None = None
    first: Mapping[Name, Sequence[float]] = field(default_factory=dict)

    def priors(self, run: Mapping[Name, RunVariance], df: int) -> dict[Name, Prior]:
        """A prior for each case of the run that is known, from sample variances with `df` degrees of freedom."""
        seen = {name: variance for name, variance in run.items() if name in self.usual and variance.head > 0}
        if not seen or df != self.df:
            return {}
        names = list(seen)
        usual = np.array([self.usual[name] for name in names])
        errors = np.array([self.error[name] for name in names])
        heads = np.array([variance.head for variance in seen.values()]) / np.exp(usual)
        controls = np.array([variance.control or math.nan for variance in seen.values()]) / np.exp(usual)
        groups = _groups([variance.group for variance in seen.values()])
        scatter_df = fit(self._spread(np.log(heads), groups, float(errors.mean())), df)[0]
        weights = _df_of_spread(_spread_of(scatter_df) + errors).tolist()
        priors = {}
        for group in groups:
            levels, level_dfs = self._levels(heads, controls, group, scatter_df)
            for place, level, level_df in zip(group.own, levels, level_dfs, strict=True):
                if level > 0:
                    weight = 1 / (1 / weights[place] + 1 / level_df)
                    priors[names[place]] = Prior(math.exp(usual[place]) * level, weight, math.inf)
        return priors

    def offset_of(self, priors: Iterable[tuple[Name, Prior]]) -> Offset | None:
        """The usual offset at these priors of a run, which `priors` gave.

        It is larger where the run is noisier than earlier sessions were: they may be from a quieter time, in which
        trials also shared less.  It is not smaller where the run is quieter.
        """
        levels = [prior.variance / math.exp(self.usual[name]) for name, prior in priors]
        level = max(1.0, float(np.median(levels))) if levels else 1.0
        return self.offset and replace(self.offset, own=self.offset.own * level)

    def _spread(self, logs: NDArray[np.float64], groups: Sequence["_LevelGroup"], error: float) -> float:
        """The variance of log-variances about the usual ones: in earlier sessions and, by its size, in this run."""
        centred = np.concatenate([logs[group.own] - logs[group.level].mean() for group in groups])
        levels = len({tuple(group.level) for group in groups})
        if len(logs) <= levels + 1:
            return self.spread
        own = max(0.0, winsorised(centred)[1] * len(logs) / (len(logs) - levels) - error)
        return (PAST_WEIGHT * self.spread + len(logs) * own) / (PAST_WEIGHT + len(logs))

    def _levels(
        self, heads: NDArray[np.float64], controls: NDArray[np.float64], group: "_LevelGroup", scatter_df: float
    ) -> tuple[list[float], list[float]]:
        """How noisy the machine is today relative to the usual, for each case of a group, and its degrees of freedom.

        In small runs the head of a case has no part in its own level: it would be counted twice.
        """
        usual_df, df = fit(self.spread, self.df)[0], self.df
        with_control = ~np.isnan(controls)
        means = np.where(with_control, (heads + np.nan_to_num(controls)) / 2, heads)
        dfs = 1 / (1 / np.where(with_control, TWO_SIDES * df, df) + 1 / scatter_df)
        if len(group.level) > FEW:
            level = _mean(means[group.level], TWO_SIDES * df, usual_df)
            return [level] * len(group.own), [float(dfs[group.level].sum())] * len(group.own)
        levels, weights = [], []
        for place in group.own:
            others = group.level[group.level != place]
            values, weight = means[others], float(dfs[others].sum())
            if with_control[place]:
                values, weight = np.append(values, controls[place]), weight + 1 / (1 / df + 1 / scatter_df)
            levels.append(_mean(values, TWO_SIDES * df, usual_df) if len(values) else 0.0)
            weights.append(weight)
        return levels, weights


@dataclass(frozen=True)
class _LevelGroup:
    """The places of the cases of a group, and of those from which their level is taken."""

    own: NDArray[np.int64]
    level: NDArray[np.int64]


def _groups(of: Sequence[str]) -> list[_LevelGroup]:
    """Groups with MIN_CASES cases have a level of their own, the others that of all cases."""
    whole, small = list[_LevelGroup](), list[int]()
    for group in dict.fromkeys(of):
        places = [place for place, name in enumerate(of) if name == group]
        if len(places) >= MIN_CASES:
            whole.append(_LevelGroup(np.array(places), np.array(places)))
        else:
            small += places
    return [*whole, _LevelGroup(np.array(small), np.arange(len(of)))] if small else whole


def _mean(values: NDArray[np.float64], df: float, scatter_df: float) -> float:
    """The mean of variances, of which the largest are pulled in, over what that is for a level of 1."""
    count = len(values)
    cut = max(1, int(TOP * count)) if count >= MIN_PULLED else 0
    pulled = np.minimum(values, np.partition(values, -cut - 1)[-cut - 1]) if cut else values
    return float(pulled.mean()) / _expected(df, min(max(scatter_df, MIN_SCATTER_DF), 1e6), count, cut)


@lru_cache(maxsize=1024)
def _expected(df: float, scatter_df: float, count: int, cut: int) -> float:
    """The mean of `count` values of F(df, scatter_df), of which the `cut` largest are pulled in to the next one."""
    edges, kept = np.linspace(0, 1, 401), count - cut
    chances = (edges[:-1] + edges[1:]) / 2
    weights = scipy.special.bdtr(kept - 1, count - 1, chances) / 400  # of the values that are kept
    if cut:
        weights += cut / count * np.diff(scipy.special.betainc(kept, cut + 1, edges))  # of the largest of them
    return float(scipy.special.fdtri(df, scatter_df, chances) @ weights)


def _spread_of(df: float) -> float:
    """The variance of the log of a variance with these degrees of freedom."""
    return 0.0 if math.isinf(df) else float(scipy.special.polygamma(1, df / 2))


def _df_of_spread(spreads: NDArray[np.float64]) -> NDArray[np.float64]:
    """The degrees of freedom with which the logs of variances have these variances."""
    return np.exp(np.interp(-np.log(np.maximum(spreads, 1e-9)), _log_spreads(), _LOG_DFS))


def learn(past: Iterable[PastComparison], df: int) -> CaseVariances | None:
    """The usual variances of cases, from sample variances with `df` degrees of freedom; others are left out.

    None with fewer than MIN_SESSIONS sessions, with a single case, or if too few cases have several sessions.

    The log-variance of a case in a session is the case's own plus the session's plus scatter.  A case's own is shrunk
    towards the mean of all, by as much as its scatter explains of the differences between cases.
    """
    usable = [comparison for comparison in past if comparison.variance > 0 and comparison.df == df]
    names, sessions = (
        list(dict.fromkeys(comparison.name for comparison in usable)),
        list(dict.fromkeys(comparison.session for comparison in usable)),
    )
    free = len(usable) - len(names) - len(sessions) + 1
    if len(sessions) < MIN_SESSIONS or free < MIN_SESSIONS:
        return None
    logs = np.log([comparison.variance for comparison in usable]) - (
        float(scipy.special.psi(df / 2)) - math.log(df / 2)
    )
    of_name = _places(names, [comparison.name for comparison in usable])
    of_session = _places(sessions, [comparison.session for comparison in usable])
    times = np.bincount(of_name)
    levels = np.zeros(len(sessions))
    for _ in range(5):  # alternating least squares; exact at once if every session has every case
        cases = np.bincount(of_name, logs - levels[of_session]) / times
        levels = np.bincount(of_session, logs - cases[of_name]) / np.bincount(of_session)
        levels -= levels.mean()
    spread = winsorised(logs - levels[of_session] - cases[of_name])[1] * len(usable) / free
    scatter_df = fit(spread, df)[0]
    scatter = (_spread_of(df) + _spread_of(scatter_df)) / times
    between = max(0.0, float(cases.var(ddof=1) - scatter.mean()))
    kept = between / (between + scatter)
    usual = cases.mean() + kept * (cases - cases.mean())
    errors = np.exp(cases[of_name] + levels[of_session]) / (df + 1)
    offset, build = _offsets(usable, errors, scatter_df)
    return CaseVariances(
        dict(zip(names, usual.tolist(), strict=True)),
        dict(zip(names, (kept * scatter).tolist(), strict=True)),
        spread,
        df,
        offset,
        build,
    )


def _offsets(
    comparisons: Sequence[PastComparison], errors: NDArray[np.float64], scatter_df: float
) -> tuple[Offset | None, Offset | None]:
    """The offsets of sessions and of builds at a case: all that is not explained by its trials, and by the former.

    With what all cases of a contender share, which runs of few cases cannot tell from what each has of its own.
    `errors` are squared standard errors of the centres.
    """
    centres = np.array([comparison.centre for comparison in comparisons])
    copies = np.array([comparison.control for comparison in comparisons])
    sessions = _places(
        list(dict.fromkeys(comparison.session for comparison in comparisons)),
        [comparison.session for comparison in comparisons],
    )
    offset, build = None, None
    if copies.any():
        own, relative = of_cases(np.square(centres[copies]), errors[copies], scatter_df)
        df = degrees_of_freedom(own, centres[copies], errors[copies], sessions[copies])
        offset = Offset(own, 0.0, df, 1, relative, learned=True)
    builds = ~copies
    if len(set(sessions[builds].tolist())) >= MIN_SESSIONS:
        of_session = offset.own + offset.relative * errors[builds] if offset else 0.0
        explained = errors[builds] + of_session
        own = between(np.square(centres[builds]), explained, scatter_df)
        build = Offset(own, 0.0, degrees_of_freedom(own, centres[builds], explained, sessions[builds]), 1, learned=True)
    return offset, build


def _places(different: Sequence[Hashable], keys: Sequence[Hashable]) -> NDArray[np.int64]:
    place = {key: number for number, key in enumerate(different)}
    return np.array([place[key] for key in keys], dtype=int)
