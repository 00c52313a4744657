"""Detect the changes of a series: all of them, or one at the newest revisions."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from service.domain.changepoints.control_variate import UNKNOWN, Slope, adjusted
from service.domain.changepoints.noise import Logs, middle_and_spread
from service.domain.changepoints.segmentation import Levels, levels_of
from service.domain.changepoints.step_test import Step, ratio_of
from service.domain.changepoints.trend import Rise, rises
from service.domain.changepoints.types import Change, HistoryLimits, Level, Part, Seen

SUSPECTS = 2  # newest revisions that must all be outliers
OUTLIER_SIGMAS = 3.5  # standard deviations between each of them and those before
WINDOW = 30  # revisions before them from which level and deviation are estimated
MIN_WINDOW = 8
MIN_NEWEST_CHANGE = 0.01  # relative; two revisions cannot show less
DEFAULTS = HistoryLimits()


def changes(seen: Sequence[Seen], limits: HistoryLimits = DEFAULTS, device: Slope = UNKNOWN) -> list[Change]:
    """Every change of level in a series, oldest first.

    Each epoch (revisions measured with one stack) is analysed separately: no commit caused a change of the stack.
    `device` is the slope over SOTA that its series usually have.

    Raises: ValueError if the revisions are not in order.
    """
    return [change for epoch in epochs_of(seen, limits, device) for change in epoch.changes(limits)]


@dataclass(frozen=True)
class Epoch:
    """Successive revisions that were measured with one stack, cut into levels."""

    seen: Sequence[Seen]
    levels: Levels

    def changes(self, limits: HistoryLimits) -> list[Change]:
        """The steps and leaks, oldest first; a step that is a part of a leak is in its course."""
        found = rises(self.levels, limits)
        parts = {part for rise in found for part in rise.parts}
        pairs = zip(self.levels.starts, self.levels.steps, strict=True)
        steps = [self._change(start, step, limits) for start, step in pairs if start not in parts]
        return sorted([*steps, *map(self._leak, found)], key=lambda change: change.ordinal)

    def _leak(self, rise: Rise) -> Change:
        low, high = rise.interval()
        shifts = dict(zip(self.levels.starts, (step.shift for step in self.levels.steps), strict=True))
        so_far = np.cumsum([shifts[part] for part in rise.parts]).tolist()
        parts = [Part(self.seen[at].ordinal, ratio_of(log)) for at, log in zip(rise.parts, so_far, strict=True)]
        ratio = ratio_of(rise.rise)
        return Change(
            ordinal=self.seen[rise.half].ordinal,
            before=self.seen[rise.begin].ordinal,
            ratio=ratio,
            low=low,
            high=high,
            level=Level.NOTIFY,
            p=rise.p,
            revisions=rise.revisions,
            course=(
                *(part for part in parts if part.ordinal < self.seen[rise.end].ordinal),
                Part(self.seen[rise.end].ordinal, ratio),
            ),
        )

    def steps_near(self, place: int, reach: int) -> list[Step]:
        """The steps at `place` and around it, each up to other changes; none if it has too few revisions on a side."""
        ordinals = [one.ordinal for one in self.seen]
        if self.levels.step_at(bisect_left(ordinals, place)) is None:
            return []
        starts = range(bisect_left(ordinals, place - reach), bisect_right(ordinals, place + reach))
        return [step for start in starts if (step := self.levels.step_at(start)) is not None]

    def _change(self, start: int, step: Step, limits: HistoryLimits) -> Change:
        blocks = step.strict_p <= limits.block_alpha and abs(step.shift) >= math.log1p(limits.block)
        before, after = self.seen[start - 1].ordinal, self.seen[start].ordinal
        return change_of(step, after, before, Level.BLOCK if blocks else Level.NOTIFY)


def change_of(step: Step, ordinal: int, before: int, level: Level) -> Change:
    """A step as a change between two revisions."""
    low, high = step.interval()
    return Change(ordinal, before, ratio_of(step.shift), low, high, level, step.p, step.revisions)


def epochs_of(seen: Sequence[Seen], limits: HistoryLimits, device: Slope = UNKNOWN) -> list[Epoch]:
    """Split a series where its stack changes, and cut each part into levels.

    Raises: ValueError if the revisions are not in order.
    """
    _check_order(seen)
    return [Epoch(part, levels_of(logs_of(part, device), limits)) for part in _parts(seen)]


def newest(seen: Sequence[Seen], limits: HistoryLimits = DEFAULTS, device: Slope = UNKNOWN) -> Change | None:
    """The newest revisions as a change if `SUSPECTS` or more in a row are outliers on the same side of those before.

    The change begins at the first of them.  None if they are not, or if their stack has too few revisions.  One odd
    session makes one outlier, so a single one is ignored.  Pass the revisions since the last change.  This is only a
    suspicion, so the level is NOTIFY.
    """
    if not seen:
        return None
    _check_order(seen)
    level = newest_epoch(seen)
    if len(level) < MIN_WINDOW + SUSPECTS:
        return None
    logs = logs_of(level, device)
    usual = logs[-WINDOW - SUSPECTS : -SUSPECTS]
    middle, sigma = middle_and_spread(usual)
    shifts = logs - middle
    sizes = shifts * np.sign(shifts[-1])
    odd = (sizes > OUTLIER_SIGMAS * sigma) & (sizes >= math.log1p(max(limits.notify, MIN_NEWEST_CHANGE)))
    last_usual = int(np.flatnonzero(~odd)[-1])  # there is one: half of those before are not beyond their median
    if last_usual >= len(level) - SUSPECTS:
        return None
    shift = float(shifts[-SUSPECTS:].mean())
    least = float(sizes[-SUSPECTS:].min())
    return Change(
        ordinal=level[last_usual + 1].ordinal,
        before=level[last_usual].ordinal,
        ratio=ratio_of(shift),
        low=ratio_of(shift - 1.96 * sigma),
        high=ratio_of(shift + 1.96 * sigma),
        level=Level.NOTIFY,
        p=math.erfc(least / sigma / math.sqrt(2)) if sigma else 0.0,
        revisions=len(usual) + SUSPECTS,
    )


def _check_order(seen: Sequence[Seen]) -> None:
    ordinals = [one.ordinal for one in seen]
    if ordinals == sorted(set(ordinals)):
        return
    earlier, later = next((one, other) for one, other in pairwise(ordinals) if one >= other)
    raise ValueError(f"Revision {later} comes after {earlier}: give each revision once, oldest first.")


def _parts(seen: Sequence[Seen]) -> Iterator[list[Seen]]:
    """Split the series into successive revisions that were measured with one stack."""
    for _, epoch in groupby(seen, key=lambda one: one.stack):
        yield list(epoch)


def newest_epoch(seen: Sequence[Seen]) -> Sequence[Seen]:
    """The last epoch: the newest revisions that were measured with one stack."""
    stacks = [one.stack for one in seen]
    if stacks.count(stacks[-1]) == len(stacks):
        return seen
    return seen[max(place for place, stack in enumerate(stacks) if stack != stacks[-1]) + 1 :]


def logs_of(epoch: Sequence[Seen], device: Slope = UNKNOWN) -> Logs:
    """The logs of the values, without what they share with SOTA."""
    value = np.log([one.value for one in epoch])
    if all(one.reference is None for one in epoch):
        return value
    return adjusted(value, np.log([math.nan if one.reference is None else one.reference for one in epoch]), device)
