"""What some trials say of one effect: its size, how sure that is, and the probabilities that decisions rest on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from scipy.special import stdtr, stdtrit

from .offsets import Offset
from .variance_prior import Prior

CONSTANT = 1e-9  # trials that differ by less do not differ: the last bits of a logarithm


@dataclass(frozen=True)
class Estimate:
    """`centre` is the log of the ratio, `error` its standard error, `df` how well the error itself is known."""

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
        """From one effect a trial; None with fewer than two.

        The variance over trials is moderated by what is known of the family (Smyth 2004), and then not below
        `at_least`.  Without a prior it stands alone, and where it is zero then, the size of the effect alone decides.
        The `offset` of the session is added to the error, as no number of trials averages it out.
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
        """The same with another variance in its error, known with `df` (Satterthwaite 1946)."""
        if added == 0:
            return self
        trials = self.error**2
        both = trials + added
        return self.with_error(math.sqrt(both), both**2 / (trials**2 / self.df + added**2 / df))

    def with_error(self, error: float, df: float) -> Self:
        return type(self)(self.centre, error, df, self.trials)

    def less(self, shift: float) -> Self:
        """The same effect without what all cases have in common."""
        return type(self)(self.centre - shift, self.error, self.df, self.trials)

    def p_no_change(self) -> float:
        """Two-sided: how often equal sides would look at least this different."""
        return 2 * self._tail(-abs(self.centre)) if self.centre else 1.0

    def p_above(self, limit: float) -> float:
        """One-sided: how often an effect of at most `limit` would look at least this large.

        With a limit beyond zero this is the minimum-effect test (TREAT, McCarthy & Smyth 2009).
        """
        return self._tail(limit - self.centre)

    def p_below(self, limit: float) -> float:
        """One-sided: how often an effect of at least `limit` would look at least this small."""
        return self._tail(self.centre - limit)

    def p_within(self, limit: float) -> float:
        """How often an effect of `limit` or more, either way, would look so small: TOST (Schuirmann 1987).

        The larger of two one-sided tests is the one against the limit that is nearer.
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
    """Of a sample of two or more; zero where they differ by nothing but the last bits."""
    if max(effects) - min(effects) <= CONSTANT:
        return 0.0
    centre = sum(effects) / len(effects)
    return sum([(effect - centre) ** 2 for effect in effects]) / (len(effects) - 1)


def pooled_variance(*samples: Sequence[float]) -> float:
    """Of several samples, each around a mean of its own; zero where none has two."""
    whole = [sample for sample in samples if len(sample) > 1]
    df = sum(len(sample) - 1 for sample in whole)
    return sum(variance(sample) * (len(sample) - 1) for sample in whole) / df if df else 0.0
