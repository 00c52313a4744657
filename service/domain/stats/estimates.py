"""The effect of trials: size, standard error and p-values, corrected for many cases and repeated tests."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import scipy

from service.domain.stats.offsets import Offset
from service.domain.stats.variance_prior import Prior

CONSTANT = 1e-9  # log-ratios that differ by less are equal but for rounding


@dataclass(frozen=True)
class Estimate:
    """`centre` is the log-ratio, `error` its standard error, and `df` the degrees of freedom of the error."""

    centre: float
    error: float
    df: float
    trials: int

    @classmethod
    def of(
        cls,
        effects: Sequence[float],
        prior: Prior | None = None,
        *,
        at_least: float = 0.0,
        before: Self | None = None,
        offset: Offset | None = None,
    ) -> Self | None:
        """Estimate from one effect for each trial; None with fewer than two.

        The variance over trials is moderated by the `prior` of the family (Smyth 2004), then raised to `at_least`.
        Without a prior it is the sample variance; if that is zero, only the size of the effect decides.  An estimate of
        the session `before` counts as much as this one, because each session has its own offset.  The variance
        of the `offset` is added, because more trials do not average it out.  Its common part counts with the same
        degrees of freedom as the rest, although that is one draw for each provider.
        """
        count = len(effects)
        if count < 2:
            return None
        centre, spread, df = sum(effects) / count, variance(effects), float(count - 1)
        if prior is not None:
            spread, df = prior.moderate(spread, df)
        plain = cls(centre, math.sqrt(max(spread, at_least) / count), df, count)
        if before is not None:
            plain = plain.averaged(before)
        return plain if offset is None else plain.with_variance(offset.variance, offset.df)

    def with_variance(self, added: float, df: float) -> Self:
        """The same with a variance added to the error's, which has `df` degrees of freedom (Satterthwaite 1946)."""
        if added == 0:
            return self
        trials = self.error**2
        both = trials + added
        return self.with_error(math.sqrt(both), both**2 / (trials**2 / self.df + added**2 / df))

    def averaged(self, before: Self) -> Self:
        """The mean with the estimate of another session; the trials are those of this one."""
        mine, theirs = self.error**2, before.error**2
        parts = mine**2 / self.df + theirs**2 / before.df
        df = (mine + theirs) ** 2 / parts if parts else min(self.df, before.df)
        return type(self)((self.centre + before.centre) / 2, math.sqrt(mine + theirs) / 2, df, self.trials)

    def with_error(self, error: float, df: float) -> Self:
        return type(self)(self.centre, error, df, self.trials)

    def less(self, shift: float) -> Self:
        """The same minus a shift that all cases have in common."""
        return type(self)(self.centre - shift, self.error, self.df, self.trials)

    def p_no_change(self) -> float:
        """Two-sided p of no effect."""
        return 2 * self._tail(-abs(self.centre)) if self.centre else 1.0

    def p_above(self, limit: float) -> float:
        """One-sided p of an effect of at most `limit`: the minimum-effect test (TREAT, McCarthy & Smyth 2009)."""
        return self._tail(limit - self.centre)

    def p_below(self, limit: float) -> float:
        """One-sided p of an effect of at least `limit`."""
        return self._tail(self.centre - limit)

    def p_within(self, limit: float) -> float:
        """p of an effect of `limit` or more in either direction: the equivalence test TOST (Schuirmann 1987).

        It is the larger p of two one-sided tests, which is that against the nearer limit.
        """
        return self._tail(abs(self.centre) - limit)

    def interval(self, confidence: float) -> tuple[float, float]:
        half = float(scipy.special.stdtrit(self.df, 0.5 + confidence / 2)) * self.error
        return self.centre - half, self.centre + half

    def _tail(self, distance: float) -> float:
        if self.error == 0:
            return 0.0 if distance < 0 else 1.0
        return float(scipy.special.stdtr(self.df, distance / self.error))


def variance(effects: Sequence[float]) -> float:
    """The variance of two or more values; zero if they are equal but for rounding."""
    if max(effects) - min(effects) <= CONSTANT:
        return 0.0
    centre = sum(effects) / len(effects)
    return sum([(effect - centre) ** 2 for effect in effects]) / (len(effects) - 1)


def pooled_variance(*samples: Sequence[float]) -> float:
    """The pooled variance of samples, each about its own mean; zero if none has two values."""
    whole = [sample for sample in samples if len(sample) > 1]
    df = sum(len(sample) - 1 for sample in whole)
    return sum(variance(sample) * (len(sample) - 1) for sample in whole) / df if df else 0.0


MANY = 16  # trials from which on an array is faster
WINSORISED = 0.2  # share of the rounds at each end, and at least one round


def trial_effect(candidate: Sequence[float | None], baseline: Sequence[float | None]) -> float | None:
    """The winsorised mean over rounds of log(candidate / baseline); None if no round has both sides.

    Both sides of a round ran on the machine in the same state, so they are paired by round; a round that one side lost
    is left out.  Winsorising (Tukey & McLaughlin 1963) limits the influence of a disturbed round, and is more efficient
    than the median of a few rounds.
    """
    logs = [math.log(mine / theirs) for mine, theirs in zip(candidate, baseline, strict=False) if mine and theirs]
    return winsorised_mean(logs) if logs else None


def trial_effects(trials: Sequence[tuple[Sequence[float | None], Sequence[float | None]]]) -> list[float | None]:
    """`trial_effect` of many trials.  Trials without a lost round are computed together, several times as fast."""
    if len(trials) < MANY:
        return [trial_effect(mine, theirs) for mine, theirs in trials]
    effects = list[float | None]([None] * len(trials))
    by_rounds = defaultdict[int, list[int]](list)
    for place, (mine, theirs) in enumerate(trials):
        by_rounds[len(mine) if len(mine) == len(theirs) else 0].append(place)
    for rounds, places in by_rounds.items():
        means = _winsorised([trials[place] for place in places]) if rounds > 2 else [math.nan] * len(places)
        for place, mean in zip(places, means, strict=True):
            effects[place] = mean if math.isfinite(mean) else trial_effect(*trials[place])
    return effects


def _winsorised(trials: Sequence[tuple[Sequence[float | None], Sequence[float | None]]]) -> list[float]:
    """The effects of trials with the same number of rounds; not finite where a round was lost."""
    sides = np.array(trials, dtype=float)  # a lost round is NaN
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.sort(np.log(sides[:, 0] / sides[:, 1]), axis=1)
    rounds = logs.shape[1]
    cut = _cut(rounds)
    means = (logs[:, cut : rounds - cut].sum(1) + cut * (logs[:, cut] + logs[:, -cut - 1])) / rounds
    whole: list[float] = np.where(np.isfinite(logs).all(1), means, np.nan).tolist()
    return whole


def winsorised_mean(values: Sequence[float]) -> float:
    """The mean with the outer fifth at each end set to the nearest inner value; of three or four values the median."""
    ordered, count = sorted(values), len(values)
    if count < 3:
        return sum(ordered) / count
    cut = _cut(count)
    return (sum(ordered[cut : count - cut]) + cut * (ordered[cut] + ordered[-cut - 1])) / count


def _cut(count: int) -> int:
    return max(1, int(WINSORISED * count))


@dataclass(frozen=True)
class Stop:
    """An interim test after `trials` trials, and the share of the error probability that it may spend."""

    trials: int
    share: float


@lru_cache(maxsize=1024)
def stops(steps: tuple[int, ...], made: int) -> tuple[Stop, ...]:
    """The interim tests of `made` trials: at each of `steps`, and after the last trial if that is between two.

    Alpha spending: what is spent in total is proportional to the trials made (Lan & DeMets 1983, Kim & DeMets 1987 with
    exponent 1), so the result does not depend on the number of tests.  Each increment is the level of its test; by the
    union bound the tests together err no more often than granted, without their joint distribution.
    """
    last, spent, stops_at = steps[-1], 0.0, list[Stop]()
    for trials in [*(step for step in steps[:-1] if step < made), made] if made else []:
        share = min(1.0, trials / last)
        stops_at.append(Stop(trials, share - spent))
        spent = share
    return tuple(stops_at)


def benjamini_hochberg(p: Sequence[float], tests: int | None = None) -> list[float]:
    """The q of each p-value: the smallest false discovery rate at which it is a discovery (Benjamini & Hochberg 1995).

    `tests` is the number of hypotheses if there are more than p-values; the others have p = 1.  Valid for independent
    cases and for positively dependent ones (Benjamini & Yekutieli 2001).
    """
    count, least = len(p), 1.0
    q = [1.0] * count
    for rank, place in zip(range(count, 0, -1), sorted(range(count), key=lambda n: -p[n]), strict=True):
        least = min(least, p[place] * max(count, tests or 0) / rank)
        q[place] = least
    return q
