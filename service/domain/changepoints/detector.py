"""Detect the changes of a series: steps, or a leak of many small rises.  Pure.

Levels that follow each other upwards may be cut out of one slope.  A slope between two flat parts is fitted to them and
compared with the levels by the Bayesian information criterion (Schwarz, 1978).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise, takewhile

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from service.domain.changepoints.segmentation import Change, HistoryLimits, Level, Levels, Part, Seen, levels_of
from service.domain.changepoints.step_test import (
    FEW,
    OUTLIER,
    Logs,
    Step,
    adjusted,
    effect,
    local_noise,
    median,
    ratio_of,
    unpredicted,
)
from service.domain.text import DAY_S

LONGEST = 120  # revisions that show a slope, and newest places that are scanned; a third of them may be enough
MAX_STEP = 0.5  # of the rise at one place; with more it is a step
PAUSE_S = 14 * DAY_S  # between two measurements, after which a machine may have drifted
USUAL_PAUSES = 10  # times the usual time between two; who measures once a week makes no pause


@dataclass(frozen=True)
class Rise:
    """A rise in the logs of an epoch, as indices of its revisions."""

    begin: int  # the last revision before the rise
    half: int  # at which half of the rise has passed
    end: int  # the last revision of the rise
    step: Step  # its size and error
    parts: tuple[int, ...]  # the changes of level that it explains, or where there may be some


def rises(levels: Levels, limits: HistoryLimits) -> list[Rise]:
    """The leaks of an epoch, oldest first: of levels that follow each other upwards, as many as one slope explains.

    A level alone may hide a leak that is too slow to be cut into levels.
    """
    rises = list[Rise]()
    edges = [0, *levels.starts, len(levels.logs)]
    first = 0
    while first < len(edges) - 1:
        highest = first + len(list(takewhile(lambda step: step.shift > 0, levels.steps[first:])))
        following = first + 1
        for last in range(highest, first - 1, -1):
            if some := _rises_between(levels, edges[first], edges[last + 1], limits):
                rises += some
                following = last + 1
                break
        first = following
    return rises


def _rises_between(levels: Levels, begin: int, end: int, limits: HistoryLimits) -> list[Rise]:
    """The leaks between two revisions, oldest first, in windows from the newest on."""
    rises = list[Rise]()
    while end - begin >= LONGEST // 3:
        rise = _rise(levels, max(begin, end - LONGEST), end, limits)
        if rise is not None:  # once more with all of it in the window
            rise = _rise(levels, max(begin, rise.end + 1 - LONGEST), rise.end + 1, limits) or rise
            rises.insert(0, rise)
        end = rise.begin if rise is not None else end - (LONGEST - LONGEST // 3)
    return rises


def _rise(levels: Levels, begin: int, end: int, limits: HistoryLimits) -> Rise | None:
    """The rise of the revisions from `begin` to `end`; None unless a slope explains them better than levels do."""
    begin += (end - begin) % FEW  # so that few shapes are kept
    logs = _pulled_in(levels.logs[begin:end])
    begins, ends, shapes, squares = _shapes(len(logs))
    away = logs - logs.mean()
    rising = shapes @ away / squares
    best = int(np.argmax(rising * np.abs(rising) * squares))
    rise = float(rising[best])
    if rise < math.log1p(limits.block):
        return None
    left = away - rise * shapes[best]
    step = effect(away, left, rise, float(squares[best]), parameters=4)  # both ends, the level before and the rise
    parts = [start for start in levels.starts if begin < start < end]
    stepped, places = [_best_step(logs)], [part - begin for part in parts]
    if step.searched_p > limits.fdr or max(_jump(logs, place) for place in stepped + places) > MAX_STEP * rise:
        return None
    if min(_criterion(logs, at) for at in (stepped, places)) <= _information(left, 4):
        return None
    first, last = int(begins[best]), int(ends[best])
    parts = parts or [start for start in levels.candidates if begin < start < end]
    return Rise(begin + first, begin + (first + last) // 2, begin + min(last, len(logs) - 1), step, tuple(parts))


@lru_cache(maxsize=LONGEST)
def _shapes(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], Logs]:
    """Every slope between two flat parts, from 0 to 1, about its mean."""
    ends_of = [(begin, end) for begin in range(0, count, FEW) for end in range(begin + 2 * FEW, count + 1, FEW)]
    begins, ends = np.array(ends_of).T
    shapes = np.clip((np.arange(count) - begins[:, None]) / (ends - begins)[:, None], 0, 1)
    shapes -= shapes.mean(axis=1)[:, None]
    return begins, ends, shapes, np.einsum("ij,ij->i", shapes, shapes)


def _pulled_in(logs: Logs) -> Logs:
    """The values, none further from the median of it and its neighbours than outliers are."""
    usual = np.median(sliding_window_view(np.pad(logs, 1, mode="edge"), 3), axis=1)
    limit = OUTLIER * local_noise(logs)
    return np.clip(logs, usual - limit, usual + limit)


def _best_step(logs: Logs) -> int:
    """The place of the one step that leaves the least squares."""
    counts = np.arange(1, len(logs))
    sums = np.cumsum(logs - logs.mean())[:-1]
    return int(np.argmax(sums**2 / (counts * (len(logs) - counts)))) + 1


def _jump(logs: Logs, place: int) -> float:
    """The rise at one place."""
    return median(logs[place : place + FEW]) - median(logs[max(place - FEW, 0) : place])


def _criterion(logs: Logs, starts: Sequence[int]) -> float:
    """The Bayesian information criterion of levels: less is better."""
    left = np.concatenate([level - level.mean() for level in np.split(logs, starts)])
    return _information(left, 2 * len(starts) + 1)


def _information(left: Logs, parameters: int) -> float:
    """The same of what remains of a model with so many parameters."""
    return len(left) * math.log(unpredicted(left)) + parameters * math.log(len(left))


DEFAULTS = HistoryLimits()


def changes(seen: Sequence[Seen], limits: HistoryLimits = DEFAULTS) -> list[Change]:
    """Every change of level in a series, oldest first.

    Each epoch (revisions measured with one stack) is analysed separately: no commit caused a change of the stack.
    Raises: ValueError if the revisions are not in order.
    """
    return [change for epoch in epochs_of(seen, limits) for change in epoch.changes(limits)]


@dataclass(frozen=True)
class Epoch:
    """Successive revisions that were measured with one stack, cut into levels."""

    seen: Sequence[Seen]
    levels: Levels

    def changes(self, limits: HistoryLimits) -> list[Change]:
        """The steps and leaks, oldest first; a step that is a part of a leak is in its course.

        A step after a pause may be the machine's drift meanwhile, unless SOTA was measured on both sides.
        """
        found = rises(self.levels, limits)
        left_out = {part for rise in found for part in rise.parts} | pauses(self.seen)
        pairs = zip(self.levels.starts, self.levels.steps, strict=True)
        steps = [self._change(start, step, limits) for start, step in pairs if start not in left_out]
        return sorted([*steps, *map(self._leak, found)], key=lambda change: change.ordinal)

    def _leak(self, rise: Rise) -> Change:
        """The leak with its course: the places where its level was higher than ever before."""
        end, course, so_far, highest = self.seen[rise.end].ordinal, list[Part](), 0.0, 0.0
        pieces = np.split(self.levels.logs, rise.parts)
        for start, (before, after) in zip(rise.parts, pairwise(pieces), strict=True):
            so_far += float(after.mean() - before.mean())
            if highest < so_far < rise.step.shift and start < rise.end:
                highest = so_far
                course.append(Part(self.seen[start].ordinal, ratio_of(so_far)))
        leak = change_of(rise.step, self.seen[rise.half].ordinal, self.seen[rise.begin].ordinal, Level.NOTIFY)
        return replace(leak, course=(*course, Part(end, leak.ratio)))

    def steps_near(self, place: int, reach: int) -> list[Step]:
        """The steps at `place` and around it, each up to other changes; none if it has too few revisions on a side."""
        ordinals = [revision.ordinal for revision in self.seen]
        if self.levels.step_at(bisect_left(ordinals, place)) is None:
            return []
        starts = range(bisect_left(ordinals, place - reach), bisect_right(ordinals, place + reach))
        return [step for start in starts if (step := self.levels.step_at(start)) is not None]

    def _change(self, start: int, step: Step, limits: HistoryLimits) -> Change:
        blocks = start in self.levels.certain and abs(step.shift) >= math.log1p(limits.block)
        before, after = self.seen[start - 1].ordinal, self.seen[start].ordinal
        return change_of(step, after, before, Level.BLOCK if blocks else Level.NOTIFY)


def pauses(seen: Sequence[Seen]) -> set[int]:
    """The indices of revisions that follow a pause in the measurements, and that have no SOTA on both sides."""
    gaps = {
        number: after.at - before.at
        for number, (before, after) in enumerate(pairwise(seen), start=1)
        if before.at is not None and after.at is not None
    }
    if not gaps:
        return set()
    longest = max(PAUSE_S, USUAL_PAUSES * float(np.median(list(gaps.values()))))
    return {
        number
        for number, gap in gaps.items()
        if gap > longest and None in (seen[number - 1].reference, seen[number].reference)
    }


def change_of(step: Step, ordinal: int, before: int, level: Level) -> Change:
    """A step as a change between two revisions."""
    low, high = step.interval()
    return Change(
        ordinal=ordinal,
        before=before,
        ratio=ratio_of(step.shift),
        low=low,
        high=high,
        level=level,
        p=step.searched_p,
        revisions=step.revisions,
    )


def epochs_of(seen: Sequence[Seen], limits: HistoryLimits) -> list[Epoch]:
    """Split a series where its stack changes, and cut each part into levels.

    Raises: ValueError if the revisions are not in order.
    """
    _check_order(seen)
    return [Epoch(part, levels_of(logs_of(part), limits)) for part in _parts(seen)]


def _check_order(seen: Sequence[Seen]) -> None:
    ordinals = [revision.ordinal for revision in seen]
    if ordinals == sorted(set(ordinals)):
        return
    earlier, later = next((ordinal, other) for ordinal, other in pairwise(ordinals) if ordinal >= other)
    raise ValueError(f"Revision {later} comes after {earlier}: give each revision once, oldest first.")


def _parts(seen: Sequence[Seen]) -> Iterator[list[Seen]]:
    """Split the series into successive revisions that were measured with one stack."""
    for _, epoch in groupby(seen, key=lambda revision: revision.stack):
        yield list(epoch)


def logs_of(epoch: Sequence[Seen]) -> Logs:
    """The logs of the values, without what they share with SOTA."""
    value = np.log([revision.value for revision in epoch])
    if all(revision.reference is None for revision in epoch):
        return value
    return adjusted(
        value, np.log([math.nan if revision.reference is None else revision.reference for revision in epoch])
    )
