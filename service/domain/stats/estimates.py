"""Estimate an effect from trials: its size, its standard error, and p-values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from scipy.special import stdtr, stdtrit

from .offsets import Offset
from .variance_prior import Prior

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
        offset: Offset | None = None,
    ) -> Self | None:
        """Estimate from one effect for each trial; None with fewer than two.

        The variance over trials is moderated by the `prior` of the family (Smyth 2004), then raised to `at_least`.
        Without a prior it is the sample variance; if that is zero, only the size of the effect decides.  The variance
        of the session's `offset` is added, because more trials do not average it out.  It counts with one degree of
        freedom for each control, its common part too, although that is one draw for each provider.
        """
        count = len(effects)
        if count < 2:
            return None
        centre, spread, df = sum(effects) / count, variance(effects), float(count - 1)
        if prior is not None:
            spread, df = prior.moderate(spread, df)
        plain = cls(centre, math.sqrt(max(spread, at_least) / count), df, count)
        return plain if offset is None else plain.with_variance(offset.variance, offset.cases)

    def with_variance(self, added: float, df: float) -> Self:
        """The same with a variance added to the error's, which has `df` degrees of freedom (Satterthwaite 1946)."""
        if added == 0:
            return self
        trials = self.error**2
        both = trials + added
        return self.with_error(math.sqrt(both), both**2 / (trials**2 / self.df + added**2 / df))

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
        half = float(stdtrit(self.df, 0.5 + confidence / 2)) * self.error
        return self.centre - half, self.centre + half

    def _tail(self, distance: float) -> float:
        if self.error == 0:
            return 0.0 if distance < 0 else 1.0
        return float(stdtr(self.df, distance / self.error))


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
