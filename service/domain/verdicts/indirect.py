"""A ratio of two revisions that no session measured together, from ratios that sessions measured.  Pure.

Each session compares in turns, so its ratios are free of what differs between sessions.  Ratios to the same code on the
same stack and machine can be multiplied and divided; the squares of their intervals, as logarithms, add up, so the
result is less certain than any of its parts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Direction = Literal["slower", "faster", "same", "unknown"]
MAX_LINKS = 8  # ratios in a chain; the interval of a longer one says nothing


@dataclass(frozen=True)
class PairedRatio:
    """A ratio that one session measured, with its interval."""

    ratio: float
    low: float
    high: float

    @property
    def inverse(self) -> "PairedRatio":
        return PairedRatio(1 / self.ratio, 1 / self.high, 1 / self.low)

    @property
    def half_width(self) -> float:
        """The larger half of the interval, as a logarithm."""
        return max(math.log(self.high / self.ratio), math.log(self.ratio / self.low), 0.0)


def paired(ratio: float | None, low: float | None, high: float | None) -> PairedRatio | None:
    """None unless all three are known and can be ratios."""
    if ratio is None or low is None or high is None or not 0 < low <= ratio <= high < math.inf:
        return None
    return PairedRatio(ratio, low, high)


def product(links: Sequence[PairedRatio]) -> PairedRatio:
    """The product of independent ratios."""
    ratio = math.prod(one.ratio for one in links)
    half = math.sqrt(sum(one.half_width**2 for one in links))
    return PairedRatio(ratio, ratio * math.exp(-half), ratio * math.exp(half))


def direction(found: PairedRatio, smallest_change: float) -> Direction:
    """`slower` or `faster` if the whole interval says so, `same` if it holds no relevant change, else `unknown`."""
    limit = 1 + smallest_change
    if found.low > limit:
        return "slower"
    if found.high < 1 / limit:
        return "faster"
    return "same" if 1 / limit <= found.low and found.high <= limit else "unknown"
