"""Detect the changes of a series: steps, one at the newest revisions, or a leak of many small rises.  Pure.

Levels that follow each other upwards may be cut out of one slope.  A slope between two flat parts is fitted to them and
compared with the levels by the Bayesian information criterion (Schwarz, 1978).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise, takewhile

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from service.domain.changepoints.segmentation import (
    MIN_SIDE,
    OVER_DRIFT,
    Change,
    HistoryLimits,
    Level,
    Levels,
    Part,
    Seen,
    levels_of,
)
from service.domain.changepoints.step_test import (
    MIN_ERROR,
    OUTLIER,
    UNKNOWN,
    Logs,
    Slope,
    Step,
    adjusted,
    median,
    middle_and_spread,
    ratio_of,
    running_median,
    spread,
    step_between,
    unpredicted,
)

LONGEST = 120  # revisions before the end of a slope that are compared
SHORTEST = 40  # revisions that can show a slope
MIN_RISING = 16  # revisions of a slope; a shorter one is a step
SLOPE_PARAMETERS = 4  # both ends, the level before and the rise
MAX_AUTOCORRELATION = 0.95
NEAR = 8  # revisions on both sides of a place that show what happens there
MAX_STEP = 0.5  # of the rise at one place; with more it is a step
FLAT = 0.7  # of the smallest rise; means of `NEAR` revisions that are not so far apart hide none, and need no fit
GRID = 4  # revisions between two slopes that are tried


@dataclass(frozen=True)
class Rise:
    """A rise in the logs of an epoch, as indices of its revisions."""

    begin: int  # the last revision before the rise
    half: int  # at which half of the rise has passed
    end: int  # the last revision of the rise
    rise: float
    error: float
    freedom: float
    p: float  # two-sided, for no rise; valid for correlated noise
    revisions: int  # that were compared
    parts: tuple[int, ...]  # the changes of level that it explains

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Bounds of after over before, as ratios."""
        reach = float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.error
        return ratio_of(self.rise - reach), ratio_of(self.rise + reach)


def rises(levels: Levels, limits: HistoryLimits) -> list[Rise]:
    """The leaks of an epoch, oldest first: of levels that follow each other upwards, as many as one slope explains.

    A level alone may hide a leak that is too slow to be cut into levels.
    """
    rises = list[Rise]()
    edges = [0, *levels.starts, len(levels.logs)]
    first = 0
    while first < len(edges) - 1:
        following = first + 1
        for last in range(_highest(levels, first), first - 1, -1):
            if some := _rises_between(levels, edges[first], edges[last + 1], limits):
                rises += some
                following = last + 1
                break
        first = following
    return rises


def _highest(levels: Levels, first: int) -> int:
    """The last of the levels from `first` on that each are above the one before."""
    return first + len(list(takewhile(lambda step: step.shift > 0, levels.steps[first:])))


def _rises_between(levels: Levels, begin: int, end: int, limits: HistoryLimits) -> list[Rise]:
    """The leaks between two revisions, oldest first, in windows from the newest on."""
    rises = list[Rise]()
    while end - begin >= SHORTEST:
        rise = _rise(levels, max(begin, end - LONGEST), end, limits)
        if rise is not None:  # once more with all of it in the window
            rise = _rise(levels, max(begin, rise.end + 1 - LONGEST), rise.end + 1, limits) or rise
            rises.insert(0, rise)
        end = rise.begin if rise is not None else end - (LONGEST - SHORTEST)
    return rises


def _rise(levels: Levels, begin: int, end: int, limits: HistoryLimits) -> Rise | None:
    """The rise of the revisions from `begin` to `end`; None unless a slope explains them better than levels do."""
    begin += (end - begin) % NEAR  # so that few shapes are kept
    means, least = levels.logs[begin:end].reshape(-1, NEAR).mean(axis=1), math.log1p(limits.block)
    if means.max() - means.min() < FLAT * least:
        return None
    logs = _pulled_in(levels.logs[begin:end])
    fit = _fit(logs)
    if fit.rise < least or fit.p > limits.alpha or fit.over_drift < OVER_DRIFT:
        return None
    parts = tuple(start for start in levels.starts if begin < start < end)
    step, steps = _best_step(logs), [part - begin for part in parts]
    if max(_jump(logs, place) for place in (step, *steps)) > MAX_STEP * fit.rise:
        return None
    if any(_is_certain(fit.left, place, limits) for place in steps):
        return None
    stepped = min(_criterion(_about_levels(logs, at), 2 * len(at) + 1, fit.r) for at in ([step], steps))
    if stepped <= _criterion(fit.left, SLOPE_PARAMETERS, fit.r):
        return None
    half = begin + (fit.begin + fit.end) // 2
    last = begin + min(fit.end, len(logs) - 1)
    return Rise(
        begin=begin + fit.begin,
        half=half,
        end=last,
        rise=fit.rise,
        error=fit.error,
        freedom=fit.freedom,
        p=fit.p,
        revisions=len(logs),
        parts=parts,
    )


@dataclass(frozen=True)
class _Fit:
    """The slope that leaves the least squares."""

    begin: int
    end: int
    rise: float
    error: float
    freedom: float
    p: float
    over_drift: float  # twice the log likelihood ratio of a slope over a drift
    r: float  # autocorrelation of what is left
    left: Logs


def _fit(logs: Logs) -> _Fit:
    begins, ends, shapes, squares = _shapes(len(logs))
    away = logs - logs.mean()
    rising = shapes @ away / squares
    best = int(np.argmax(rising * np.abs(rising) * squares))
    rise = float(rising[best])
    left = away - rise * shapes[best]
    count, unexplained = len(logs), float(left @ left) + MIN_ERROR**2
    r = float(left[:-1] @ left[1:]) / unexplained
    # Each fitted parameter takes about 1/n from the estimate (Marriott and Pope, 1954, have it for the mean).
    r = (r * count + SLOPE_PARAMETERS) / (count - 3 * SLOPE_PARAMETERS)
    r = min(max(r, 0.0), MAX_AUTOCORRELATION)
    freedom = max((count - SLOPE_PARAMETERS) * (1 - r) / (1 + r), 1.0)
    error = math.sqrt(unexplained / freedom / float(squares[best]))
    over_drift = (count - 1) * math.log(unpredicted(away) / unpredicted(left))
    p = 2 * float(stdtr(freedom, -abs(rise) / error))
    return _Fit(
        begin=int(begins[best]),
        end=int(ends[best]),
        rise=rise,
        error=error,
        freedom=freedom,
        p=p,
        over_drift=over_drift,
        r=r,
        left=left,
    )


@lru_cache(maxsize=LONGEST)
def _shapes(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], Logs]:
    """Every slope between two flat parts, from 0 to 1, about its mean."""
    ends_of = [(begin, end) for begin in range(0, count, GRID) for end in range(begin + MIN_RISING, count + 1, GRID)]
    begins, ends = np.array(ends_of).T
    shapes = np.clip((np.arange(count) - begins[:, None]) / (ends - begins)[:, None], 0, 1)
    shapes -= shapes.mean(axis=1)[:, None]
    return begins, ends, shapes, np.einsum("ij,ij->i", shapes, shapes)


def _pulled_in(logs: Logs) -> Logs:
    """The values, none further from its neighbours than outliers are."""
    usual = running_median(logs)
    limit = OUTLIER * max(spread(np.abs(logs - usual)), MIN_ERROR)
    return np.clip(logs, usual - limit, usual + limit)


def _best_step(logs: Logs) -> int:
    """The place of the one step that leaves the least squares."""
    counts = np.arange(1, len(logs))
    sums = np.cumsum(logs - logs.mean())[:-1]
    return int(np.argmax(sums**2 / (counts * (len(logs) - counts)))) + 1


def _jump(logs: Logs, place: int) -> float:
    """The rise at one place."""
    return median(logs[place : place + NEAR]) - median(logs[max(place - NEAR, 0) : place])


def _is_certain(left: Logs, place: int, limits: HistoryLimits) -> bool:
    """Whether a place has a step that blocks by itself, in addition to the slope."""
    before, after = left[max(place - NEAR, 0) : place], left[place : place + NEAR]
    if min(len(before), len(after)) < MIN_SIDE:
        return False
    step = step_between(before, after)
    return step.shift >= math.log1p(limits.block) and step.strict_p <= limits.block_alpha


def _about_levels(logs: Logs, starts: Sequence[int]) -> Logs:
    return np.concatenate([logs[a:b] - logs[a:b].mean() for a, b in pairwise([0, *starts, len(logs)])])


def _criterion(left: Logs, parameters: int, r: float) -> float:
    """The Bayesian information criterion, in which correlated values count as fewer: less is better."""
    count = len(left)
    return count * (1 - r) / (1 + r) * math.log(float(left @ left) + MIN_ERROR**2) + parameters * math.log(count)


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
        ordinals = [revision.ordinal for revision in self.seen]
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
    return Change(
        ordinal=ordinal,
        before=before,
        ratio=ratio_of(step.shift),
        low=low,
        high=high,
        level=level,
        p=step.p,
        revisions=step.revisions,
    )


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
    ordinals = [revision.ordinal for revision in seen]
    if ordinals == sorted(set(ordinals)):
        return
    earlier, later = next((ordinal, other) for ordinal, other in pairwise(ordinals) if ordinal >= other)
    raise ValueError(f"Revision {later} comes after {earlier}: give each revision once, oldest first.")


def _parts(seen: Sequence[Seen]) -> Iterator[list[Seen]]:
    """Split the series into successive revisions that were measured with one stack."""
    for _, epoch in groupby(seen, key=lambda revision: revision.stack):
        yield list(epoch)


def newest_epoch(seen: Sequence[Seen]) -> Sequence[Seen]:
    """The last epoch: the newest revisions that were measured with one stack."""
    stacks = [revision.stack for revision in seen]
    if stacks.count(stacks[-1]) == len(stacks):
        return seen
    return seen[max(place for place, stack in enumerate(stacks) if stack != stacks[-1]) + 1 :]


def logs_of(epoch: Sequence[Seen], device: Slope = UNKNOWN) -> Logs:
    """The logs of the values, without what they share with SOTA."""
    value = np.log([revision.value for revision in epoch])
    if all(revision.reference is None for revision in epoch):
        return value
    return adjusted(
        value, np.log([math.nan if revision.reference is None else revision.reference for revision in epoch]), device
    )
