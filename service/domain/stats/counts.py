"""How counts take part where everything else has ratios.  Pure.

0 is a legal count, so counts have differences and no ratios.  Ratios are stored, chained over revisions and compared
with limits; for that the effect of a count is its difference times `EFFECT`, and the "ratio" of two counts is the
exponential of that.  So ratios that are multiplied add up differences, and a difference can be read off a ratio.
"""

import math
from collections.abc import Sequence
from statistics import median

EFFECT = 0.01  # log-ratio for each unit of difference: 1 more is a "ratio" of 1.01
MAX_DIFFERENCE = 10_000  # larger ones are clipped


def effect(difference: float) -> float:
    """The log-ratio that stands for a difference of counts."""
    return EFFECT * max(-MAX_DIFFERENCE, min(MAX_DIFFERENCE, difference))


def ratio(difference: float) -> float:
    """The ratio that stands for a difference of counts."""
    return math.exp(effect(difference))


def difference(ratio: float) -> int:
    """The difference that a ratio of counts stands for."""
    return round(math.log(ratio) / EFFECT)


def limit(smallest: int) -> float:
    """A relative limit that a difference of `smallest` exceeds and one of `smallest - 1` does not."""
    return math.expm1(EFFECT * (smallest - 0.5))


def smallest(limit: float) -> int:
    """The smallest difference that exceeds a relative limit."""
    return math.floor(math.log1p(limit) / EFFECT) + 1


def trial_effect(candidate: Sequence[float | None], baseline: Sequence[float | None]) -> float | None:
    """The effect of the rounds of a trial; None if one side lost all of them."""
    mine, theirs = ([count for count in side if count is not None] for side in (candidate, baseline))
    return effect(median(mine) - median(theirs)) if mine and theirs else None
