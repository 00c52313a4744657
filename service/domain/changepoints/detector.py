"""The changes of a series: all of them, or whether the newest revision is one."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np

from service.domain.changepoints.control_variate import adjusted
from service.domain.changepoints.segmentation import Place, places
from service.domain.changepoints.step_test import Logs, middle_and_spread, ratio_of
from service.domain.changepoints.types import Change, HistoryLimits, Level, Seen

HARDLY_OVERLAPPING = 0.8  # Cliff's delta of two levels: nine in ten pairs of values are in the same order
SUSPECT = 3.5  # deviations by which the newest revision is out of line
USUAL = 30  # revisions before it that say what is usual
MIN_USUAL = 8
FAST_SMALLEST = 0.01  # a single revision is not asked about half a percent
DEFAULTS = HistoryLimits()


def changes(seen: Sequence[Seen], limits: HistoryLimits = DEFAULTS) -> list[Change]:
    """Every change of level in a series, oldest first.

    Epochs (one stack each) are looked at alone: what changed together with the stack is nobody's commit.
    Raises ValueError where the revisions are not in order.
    """
    _check_order(seen)
    return [change for epoch in _epochs(seen) for change in _changes_of(epoch, limits)]


def newest(seen: Sequence[Seen], limits: HistoryLimits = DEFAULTS) -> Change | None:
    """The newest revision as a change, where it is out of line with what was usual: give what follows the last change.

    One revision is a suspicion, never more than NOTIFY: ask for two fresh sessions of it and of its parent.
    None where fewer than eight revisions of its stack came before it.
    """
    if not seen:
        return None
    _check_order(seen)
    level = newest_epoch(seen)
    if len(level) <= MIN_USUAL:
        return None
    logs = logs_of(level)
    usual, last = logs[-USUAL - 1 : -1], float(logs[-1])
    middle, sigma = middle_and_spread(usual)
    shift = last - middle
    if abs(shift) <= SUSPECT * sigma or abs(shift) < math.log1p(max(limits.notify, FAST_SMALLEST)):
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
    """Runs of revisions that were measured with one stack."""
    for _, epoch in groupby(seen, key=lambda one: one.stack):
        yield list(epoch)


def newest_epoch(seen: Sequence[Seen]) -> Sequence[Seen]:
    """The revisions at the end that have one stack."""
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
