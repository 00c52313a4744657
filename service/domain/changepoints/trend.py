"""Detect a leak: a series that rises in steps too small for a comparison of neighbours.  Pure.

A ramp has no single step, so the step test, which corrects for autocorrelation, sees one noisy level.  The test here is
Mann's test of trend (1945) on medians of blocks: each must be above the one before.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np

from service.domain.changepoints import Change, HistoryLimits, Level, Seen
from service.domain.changepoints.detector import logs_of, newest_epoch

WINDOWS = (64, 40)  # numbers of newest values that are tested
BLOCKS = 8  # of a window, whose medians must rise; without a trend 1 of 8! orders does
MAX_STEP = 0.5  # of the rise between two blocks; with more it is a step and not a leak


def leak(seen: Sequence[Seen], limits: HistoryLimits, known: Collection[int] = ()) -> Change | None:
    """A rise of the newest values of one stack by at least `limits.block`; None if there is none.

    `ordinal` is where half of the rise is passed, or a `known` place inside the rise; `before` is where it begins.
    """
    epoch = newest_epoch(seen) if seen else ()
    logs = logs_of(epoch) if len(epoch) >= min(WINDOWS) else np.empty(0)
    for window in WINDOWS:
        if len(logs) < window:
            continue
        levels = np.median(logs[-window:].reshape(BLOCKS, -1), axis=1)
        rise, steps = float(levels[-1] - levels[0]), np.diff(levels)
        if min(steps) <= 0 or rise < math.log1p(limits.block) or max(steps) > MAX_STEP * rise:
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
