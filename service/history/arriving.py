"""A series as its revisions arrive: what is settled stays, and calm series cost next to nothing."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from service.history.detection import DEFAULTS, changes_of, check_order, logs_of, newest_epoch
from service.history.steps import middle_and_spread
from service.history.values import Change, HistoryLimits, Level, Seen

TAIL = 400  # newest revisions that are looked at again
SETTLED_AFTER = 60  # revisions that follow a change which stays, whatever comes,
SETTLED_P = 1e-8  # if it is as certain as this;
SETTLED_ANYWAY = 300  # and that follow any that stays
YOUNG = 10  # revisions during which a new change is looked at each time and does not block yet,
YOUNG_P = 1e-3  # and as certain as this it must be to be told: so many looks would find something in any noise
USUAL = 40  # revisions that say what is usual
RECENT = (3, 5, 10, 20)  # newest revisions whose means should lie where all lie
UNUSUAL = 2.5  # standard errors by which such a mean is off
PERIOD = 32  # revisions between two looks at a calm series
PERIOD_OPEN = 8  # and at one with open changes


def changes_since(seen: Sequence[Seen], known: Sequence[Change], limits: HistoryLimits = DEFAULTS) -> list[Change]:
    """`known`, brought up to date with the newest revision; begin a series with `changes`.

    Changes of earlier epochs are settled, and so are certain ones that 60 revisions followed, and all that 300 did.
    The others are open: they may still move, change their level, or be withdrawn.
    """
    if not seen:
        return list(known)
    check_order(seen[-2:])
    if not (_due(seen, known) or _unusual(newest_epoch(seen[-USUAL - max(RECENT) :]), known, limits)):
        return list(known)
    tail = seen[-TAIL:]
    check_order(tail)
    epoch = newest_epoch(tail)
    kept = [change for change in known if _place(change, epoch) == 0 or _settled(change, epoch)]
    taken = [_place(change, epoch) for change in kept]
    found = changes_of(epoch, logs_of(epoch), limits, length=len(seen))
    fresh = [change for change in found if all(abs(_place(change, epoch) - place) > limits.min_size for place in taken)]
    familiar = [_place(change, epoch) for change in known]
    told = [young for change in fresh if (young := _while_young(change, epoch, familiar, limits))]
    return sorted([*kept, *told], key=lambda change: change.ordinal)


def _while_young(change: Change, epoch: Sequence[Seen], told: Sequence[int], limits: HistoryLimits) -> Change | None:
    """`change` as it may be told now; those that were told, at these places, need not prove themselves again."""
    place = _place(change, epoch)
    if len(epoch) - place >= YOUNG:
        return change
    if change.p > YOUNG_P and all(abs(other - place) > limits.min_size for other in told):
        return None
    return replace(change, level=Level.NOTIFY)


def _place(change: Change, epoch: Sequence[Seen]) -> int:
    return bisect_left(epoch, change.ordinal, key=lambda one: one.ordinal)


def _settled(change: Change, seen: Sequence[Seen]) -> bool:
    after = len(seen) - _place(change, seen)
    return after >= SETTLED_ANYWAY or (after >= SETTLED_AFTER and change.p <= SETTLED_P)


def _due(seen: Sequence[Seen], known: Sequence[Change]) -> bool:
    """Is it this series' turn?  Series begin at different values, so that not all have theirs at one revision."""
    if known and len(seen) - _place(known[-1], seen) <= YOUNG:
        return True
    period = PERIOD_OPEN if known and not _settled(known[-1], seen) else PERIOD
    return (len(seen) + hash(seen[0].value)) % period == 0


def _unusual(epoch: Sequence[Seen], known: Sequence[Change], limits: HistoryLimits) -> bool:
    """Do the newest revisions lie off the level that the series has had since its last change?"""
    level = epoch[_place(known[-1], epoch) if known else 0 :]
    if len(level) < 2 * limits.min_size:
        return len(epoch) >= 2 * limits.min_size
    logs = logs_of(level)
    middle, sigma = middle_and_spread(logs)
    lean = np.clip(logs[::-1] - middle, -3 * sigma, 3 * sigma).cumsum()
    return any(abs(lean[count - 1]) > UNUSUAL * sigma * math.sqrt(count) for count in RECENT if 2 * count <= len(logs))
