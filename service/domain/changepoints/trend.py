"""A leak: a series that rises and rises, in steps too small for any comparison of neighbours.  Pure.

No single place parts a ramp into two levels, so that a detector of steps that knows autocorrelation takes it for one
noisy level.  The test here is the oldest one of trend, that of order (Mann, 1945), on medians of blocks: they must rise
without exception.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np

from service.domain.changepoints import Change, HistoryLimits, Level, Seen
from service.domain.changepoints.detector import logs_of, newest_epoch

WINDOWS = (64, 40)  # newest values that may be a leak
BLOCKS = 8  # in which they must rise without exception: without a trend 1 in 8! orders does
LARGEST_STEP = 0.5  # of the rise: with more in one place it is a step, and no leak


def leak(seen: Sequence[Seen], limits: HistoryLimits, known: Collection[int] = ()) -> Change | None:
    """A rise of the newest values, of one stack, by at least what blocks; placed where half of it is passed.

    Its `before` lies where it begins.  Where one of the `known` places lies in it, it is that one again.
    """
    epoch = newest_epoch(seen) if seen else ()
    logs = logs_of(epoch) if len(epoch) >= min(WINDOWS) else np.empty(0)
    for window in WINDOWS:
        if len(logs) < window:
            continue
        levels = np.median(logs[-window:].reshape(BLOCKS, -1), axis=1)
        rise, steps = float(levels[-1] - levels[0]), np.diff(levels)
        if min(steps) <= 0 or rise < math.log1p(limits.block) or max(steps) > LARGEST_STEP * rise:
            continue
        size = window // BLOCKS
        half = int(np.argmax(levels > levels[0] + rise / 2)) * size
        inside = epoch[-window:]
        again = [place for place in known if inside[size].ordinal <= place <= inside[-1].ordinal]
        noise = float(np.std(logs[-window:] - np.repeat(levels, size))) * math.sqrt(math.pi / size)
        return Change(
            ordinal=max(again, default=inside[half].ordinal),
            before=inside[size - 1].ordinal,
            ratio=math.exp(rise),
            low=math.exp(rise - 1.96 * noise),
            high=math.exp(rise + 1.96 * noise),
            level=Level.NOTIFY,
            p=len(WINDOWS) / math.factorial(BLOCKS),
        )
    return None
