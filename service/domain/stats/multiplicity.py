"""Control errors over many cases (false discovery rate) and over repeated tests (alpha spending)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


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
    last, spent, found = steps[-1], 0.0, list[Stop]()
    for trials in [*(step for step in steps[:-1] if step < made), made] if made else []:
        share = min(1.0, trials / last)
        found.append(Stop(trials, share - spent))
        spent = share
    return tuple(found)


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
