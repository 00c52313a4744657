"""Many questions at once, asked several times: what each single answer may cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Stop:
    """A look after so many trials, and the share of an error probability that it may spend."""

    trials: int
    share: float


@lru_cache(maxsize=1024)
def stops(steps: tuple[int, ...], made: int) -> tuple[Stop, ...]:
    """The looks that `made` trials had: at each of `steps`, and at the end where that lies between two.

    What is spent grows in proportion to trials made (Lan & DeMets 1983, Kim & DeMets 1987 with exponent 1), whatever
    the looks were, so one that came early costs nothing.  The increments serve as levels of their own: by the union
    bound all looks together err at most as often as was granted, and no joint distribution of theirs is needed.
    """
    last, spent, found = steps[-1], 0.0, list[Stop]()
    for trials in [*(step for step in steps[:-1] if step < made), made] if made else []:
        share = min(1.0, trials / last)
        found.append(Stop(trials, share - spent))
        spent = share
    return tuple(found)


def benjamini_hochberg(p: Sequence[float], tests: int | None = None) -> list[float]:
    """Each p-value's q: the smallest false discovery rate at which it would be among the discoveries.

    `tests` is the number of hypotheses, where there are more than p-values: those left out have p = 1.

    Benjamini & Hochberg 1995; it holds for independent cases, and for such as share a disturbance that moves them the
    same way (Benjamini & Yekutieli 2001).
    """
    count, least = len(p), 1.0
    q = [1.0] * count
    for rank, place in zip(range(count, 0, -1), sorted(range(count), key=lambda n: -p[n]), strict=True):
        least = min(least, p[place] * max(count, tests or 0) / rank)
        q[place] = least
    return q
