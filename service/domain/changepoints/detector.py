"""Detect the changes of a series: all of them, or one at the newest revision."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np

from service.domain.changepoints.control_variate import adjusted
from service.domain.changepoints.segmentation import Place, places
from service.domain.changepoints.step_test import Logs, middle_and_spread, ratio_of
from service.domain.changepoints.types import Change, HistoryLimits, Level, Seen

HARDLY_OVERLAPPING = 0.8  # Cliff's delta of two levels: nine in ten pairs of values are in the same order
OUTLIER_SIGMAS = 3.5  # standard deviations between the newest revision and those before
WINDOW = 30  # revisions before it from which level and deviation are estimated
MIN_WINDOW = 8
MIN_NEWEST_CHANGE = 0.01  # relative; a single revision cannot show less
DEFAULTS = HistoryLimits()


def changes(seen: Sequence[Seen], limits: HistoryLimits = DEFAULTS) -> list[Change]:
    """Every change of level in a series, oldest first.

    Each epoch (revisions measured with one stack) is analysed separately: no commit caused a change of the stack.

    Raises: ValueError if the revisions are not in order.
    """
    _check_order(seen)
    return [change for epoch in _epochs(seen) for change in _changes_of(epoch, limits)]


def newest(seen: Sequence[Seen], limits: HistoryLimits = DEFAULTS) -> Change | None:
    """The newest revision as a change if it is an outlier; None if it is not, or if its stack has too few revisions.

    Pass the revisions since the last change.  One revision is only a suspicion, so its level is never above NOTIFY.
    """
    if not seen:
        return None
    _check_order(seen)
    level = newest_epoch(seen)
    if len(level) <= MIN_WINDOW:
        return None
    logs = logs_of(level)
    usual, last = logs[-WINDOW - 1 : -1], float(logs[-1])
    middle, sigma = middle_and_spread(usual)
    shift = last - middle
    if abs(shift) <= OUTLIER_SIGMAS * sigma or abs(shift) < math.log1p(max(limits.notify, MIN_NEWEST_CHANGE)):
        return None
    return Change(
        ordinal=level[-1].ordinal,
        before=level[-2].ordinal,
        ratio=ratio_of(shift),
        low=ratio_of(shift - 1.96 * sigma),
        high=ratio_of(shift + 1.96 * sigma),
        level=Level.NOTIFY,
        p=math.erfc(abs(shift) / sigma / math.sqrt(2)) if sigma else 0.0,
    )


def _check_order(seen: Sequence[Seen]) -> None:
    ordinals = [one.ordinal for one in seen]
    if ordinals == sorted(set(ordinals)):
        return
    earlier, later = next((one, other) for one, other in pairwise(ordinals) if one >= other)
    raise ValueError(f"Revision {later} comes after {earlier}: give each revision once, oldest first.")


def _epochs(seen: Sequence[Seen]) -> Iterator[list[Seen]]:
    """Split the series into successive revisions that were measured with one stack."""
    for _, epoch in groupby(seen, key=lambda one: one.stack):
        yield list(epoch)


def newest_epoch(seen: Sequence[Seen]) -> Sequence[Seen]:
    """The last epoch: the newest revisions that were measured with one stack."""
    stacks = [one.stack for one in seen]
    if stacks.count(stacks[-1]) == len(stacks):
        return seen
    return seen[max(place for place, stack in enumerate(stacks) if stack != stacks[-1]) + 1 :]


def logs_of(epoch: Sequence[Seen]) -> Logs:
    value = np.log([one.value for one in epoch])
    if all(one.reference is None for one in epoch):
        return value
    return adjusted(value, np.log([math.nan if one.reference is None else one.reference for one in epoch]))


def _changes_of(epoch: Sequence[Seen], limits: HistoryLimits) -> list[Change]:
    return [_change(epoch, place, limits) for place in places(logs_of(epoch), limits)]


def _change(epoch: Sequence[Seen], place: Place, limits: HistoryLimits) -> Change:
    step = place.step
    apart = 10 if step.separation >= HARDLY_OVERLAPPING else 1
    blocks = step.p <= apart * limits.block_alpha and step.effect >= math.log1p(limits.block)
    low, high = step.interval()
    return Change(
        ordinal=epoch[place.start].ordinal,
        before=epoch[place.start - 1].ordinal,
        ratio=ratio_of(step.shift),
        low=low,
        high=high,
        level=Level.BLOCK if blocks else Level.NOTIFY,
        p=step.p,
    )
