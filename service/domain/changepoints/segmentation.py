"""Find where the level of a series changes, pruned by the step test; two modes that alternate are no change."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from service.domain.changepoints.step_test import (
    MAX_AUTOCORRELATION,
    MIN_ERROR,
    Logs,
    Step,
    autocorrelation,
    local_noise,
    median,
    step_between,
)

SAME = 1 / 3  # of the distance between the two levels: a nearer level may be the same again
# A commit that is reverted, landed again and reverted again leaves a level twice.  The third time, the machine or the
# memory placement is the cause.
EXCURSIONS = 3


@dataclass(frozen=True)
class Seen:
    """One mainline revision of a series."""

    ordinal: int  # its place on the mainline
    value: float  # in the unit of the metric, > 0
    reference: float | None = None  # SOTA's value of the same session, for the control variate
    stack: int | None = None  # id of the stack; an epoch ends where it changes

    def __post_init__(self) -> None:
        for name, number in (("value", self.value), ("reference", self.reference)):
            if number is not None and not (math.isfinite(number) and number > 0):
                raise ValueError(
                    f"Revision {self.ordinal} has the {name} {number}, which has no logarithm: "
                    "leave out revisions without a positive, finite measurement."
                )


class Level(StrEnum):
    """How certain and how large a change is: NOTIFY lists it, BLOCK may fail a check."""

    NOTIFY = "notify"
    BLOCK = "block"


@dataclass(frozen=True)
class Part:
    """A part of a leak: so far its level had risen at this revision."""

    ordinal: int
    ratio: float  # of the level from here on over that before the leak


@dataclass(frozen=True)
class Change:
    """The level of a series changed between two revisions, and stayed; or it rose by a leak."""

    ordinal: int  # the first revision after the change
    before: int  # the last one before it
    ratio: float  # after over before, of the adjusted values; above 1 is slower, or more
    low: float  # 95 % interval of the ratio
    high: float
    level: Level
    p: float  # of the test at this place; the place was searched for, so p is too small for noise alone
    revisions: int  # that were compared
    course: tuple[Part, ...] = ()  # of a leak, which then began after `before` and passed half of it at `ordinal`

    @property
    def is_leak(self) -> bool:
        return bool(self.course)

    def covers(self, place: int, apart: int) -> bool:
        """Whether a change at `place` may be this one or a part of it."""
        if self.is_leak:
            return self.before < place <= self.course[-1].ordinal
        return abs(self.ordinal - place) <= apart


@dataclass(frozen=True)
class HistoryLimits:
    """Thresholds of a change; docs/measurements/2026-11-21-detect has the reasons for the defaults."""

    notify: float = 0.005  # smallest change of level NOTIFY, relative to the level before
    block: float = 0.02  # smallest change of level BLOCK
    alpha: float = 3e-4  # largest p of a change
    block_alpha: float = 1e-5  # largest p of level BLOCK
    penalty: float = 0.55  # of a change point in the search, times log n
    min_size: int = 5  # revisions of the shortest level

    def __post_init__(self) -> None:
        if not 0 <= self.notify <= self.block < 1:
            raise ValueError(f"notify ({self.notify}) and block ({self.block}) must satisfy 0 <= notify <= block < 1.")
        if not 0 < self.block_alpha <= self.alpha < 1:
            raise ValueError(
                f"alpha ({self.alpha}) and block_alpha ({self.block_alpha}) must satisfy 0 < block_alpha <= alpha < 1."
            )
        if self.penalty <= 0:
            raise ValueError(f"penalty ({self.penalty}) must be above 0.")
        if self.min_size < 2:
            raise ValueError(f"min_size is at least 2 revisions, not {self.min_size}.")


def without_flips(logs: Logs, starts: Sequence[int], r: float, limits: HistoryLimits) -> list[int]:
    """`starts` without the changes between two levels that alternate for at least `EXCURSIONS` excursions.

    A level is the same again if it is near, and the test that finds changes cannot tell it from the visit before:
    commits whose effects are alike are no modes.

    The last excursion need not have ended, unless it is already longer than every stay before it: then a commit that
    was reverted twice may have landed for good.
    """
    visits = [logs[a:b] for a, b in pairwise([0, *starts, len(logs)])]
    levels = [median(visit) for visit in visits]
    kept, first = [], 0
    while first < len(starts):
        last = _alternating(visits, levels, first, r, limits)
        excursions = (last - first) // 2
        if excursions >= EXCURSIONS or (excursions == EXCURSIONS - 1 and _goes_on(len(logs), starts, first, last)):
            first = last
        else:
            kept.append(starts[first])
            first += 1
    return kept


def _goes_on(count: int, starts: Sequence[int], first: int, last: int) -> bool:
    """Whether the changes end within an excursion that is no longer than the longest stay before it."""
    if (last - first) % 2 == 0:
        return False
    *before, newest = np.diff([*starts, count])[first:last].tolist()
    return bool(newest <= max(before))


def _alternating(visits: Sequence[Logs], levels: Sequence[float], first: int, r: float, limits: HistoryLimits) -> int:
    """The last of the visits from `first` on that are in turn to one and to the other of two levels."""
    seen = [levels[first]], [levels[first + 1]]
    for number in range(first + 2, len(levels)):
        same, other = seen[(number - first) % 2], seen[(number - first + 1) % 2]
        here, there = float(np.mean(same)), float(np.mean(other))
        near = abs(levels[number] - here) < SAME * abs(there - here)
        if not near or step_between(visits[number - 2], visits[number], r).p <= limits.alpha:
            return number - 1
        same.append(levels[number])
    return len(levels) - 1


SPAN = 400  # revisions that are searched at a time; the cost of a steady series grows with their square
# Standard deviations of the noise at which two values are 1/e alike.  A width that is measured in the noise sees a step
# of 3 % next to one of 200 % as well as alone.
KERNEL = 3.0
MIN_SIDE = 5  # revisions with which a place is tested without a search
# Twice the log likelihood ratio of a step over a drift.  Of AR(.97) noise with a fifth as much white noise, 5.7 changes
# per 1,000 revisions are found without it and 1.3 with it.
OVER_DRIFT = 10.0
# Times log n: what a change must be worth in twice the log likelihood (modified BIC: Zhang and Siegmund, 2007).
A_CHANGE = 3.0


@dataclass(frozen=True)
class Levels:
    """An epoch, cut into levels."""

    logs: Logs
    starts: tuple[int, ...]  # the first revision of each level but the first
    steps: tuple[Step, ...]  # one at each start
    r: float  # autocorrelation of the noise about the levels

    def step_at(self, start: int) -> Step | None:
        """The step between the revisions before `start` and those from it on, up to other changes of level.

        None if there are fewer than `MIN_SIDE` on a side.
        """
        edges = np.array([0, *self.starts, len(self.logs)])
        before, after = edges[edges < start], edges[edges > start]
        if not (len(before) and len(after)) or min(start - before[-1], after[0] - start) < MIN_SIDE:
            return None
        return step_between(self.logs[before[-1] : start], self.logs[start : after[0]], self.r)


def levels_of(logs: Logs, limits: HistoryLimits) -> Levels:
    """Cut an epoch into levels."""
    starts, r = _settled(logs, _candidates(logs, limits), limits)
    while len(left := without_flips(logs, starts, r, limits)) < len(starts):
        starts = _pruned(logs, left, r, limits)
    return Levels(logs, tuple(starts), tuple(_steps(logs, starts, r)), r)


def _candidates(logs: Logs, limits: HistoryLimits) -> list[int]:
    """Kernel change points (Arlot, Celisse and Harchaoui, 2019) by PELT (Killick, Fearnhead and Eckley, 2012).

    With a Gaussian kernel the cost of one value is at most 1, so an outlier is not a change, and no step hides another.
    """
    if len(logs) < 2 * limits.min_size or np.ptp(logs) == 0:
        return []
    from ruptures import KernelCPD  # not above: it imports scipy.stats, for which every command would wait

    width = KERNEL * max(local_noise(logs), MIN_ERROR)
    search = KernelCPD("rbf", min_size=limits.min_size, params={"gamma": 1 / width**2})
    starts: list[int] = []
    for begin in range(0, max(len(logs) - SPAN // 2, 1), SPAN // 2):
        end = begin + SPAN
        # Spans overlap by half.  Of each only the middle half counts, where it has values on both sides.
        answers = range(begin + SPAN // 4 if begin else 0, end - SPAN // 4 if end < len(logs) else len(logs))
        ends = search.fit(logs[begin:end].reshape(-1, 1)).predict(pen=limits.penalty * math.log(len(logs)))
        for start in (begin + int(place) for place in ends[:-1]):
            if start in answers and (not starts or start - starts[-1] >= limits.min_size):
                starts.append(start)
    return starts


def _settled(logs: Logs, starts: Sequence[int], limits: HistoryLimits) -> tuple[list[int], float]:
    """Prune, measure the autocorrelation about the levels that are left, and repeat while noise explains what falls.

    Steps that were cut out of autocorrelated noise hide its autocorrelation: each that is removed shows more of it.  A
    real step that is removed looks like autocorrelation, too, and would take the others with it.
    """
    r = autocorrelation(logs, starts)
    left = _pruned(logs, starts, r, limits)
    while (more := autocorrelation(logs, left)) > r:
        fewer = _pruned(logs, left, more, limits)
        if len(fewer) < len(left) and _cost(logs, fewer) >= _cost(logs, left):
            break
        left, r = fewer, more
    return left, r


def _cost(logs: Logs, starts: Sequence[int]) -> float:
    """Minus twice the log likelihood of levels with AR(1) noise, and what their changes must be worth."""
    away = np.concatenate([part - median(part) for part in np.split(logs, starts)])
    before, after = away[:-1], away[1:]
    r = min(max(float(before @ after) / max(float(before @ before), MIN_ERROR**2), 0.0), MAX_AUTOCORRELATION)
    variance = max(float(np.mean((after - r * before) ** 2)), MIN_ERROR**2)
    return len(after) * math.log(variance) + A_CHANGE * len(starts) * math.log(len(logs))


def _pruned(logs: Logs, starts: Sequence[int], r: float, limits: HistoryLimits) -> list[int]:
    """Remove the weakest change that fails the test, merge its two levels and test again, until all changes pass.

    A change that is certain between its own two levels is kept, whatever is merged next to it.
    """
    edges, steps = [0, *starts, len(logs)], _steps(logs, starts, r)
    safe = {
        start
        for start, step in zip(starts, steps, strict=True)
        if _holds(step, limits) and step.strict_p <= limits.block_alpha
    }
    while failing := [n for n, step in enumerate(steps) if not _holds(step, limits) and edges[n + 1] not in safe]:
        weakest = max(failing, key=lambda number: (steps[number].p, -abs(steps[number].shift)))
        del edges[weakest + 1], steps[weakest]
        for number in (weakest - 1, weakest):
            if 0 <= number < len(steps):
                a, b, c = edges[number : number + 3]
                steps[number] = step_between(logs[a:b], logs[b:c], r)
    return edges[1:-1]


def _steps(logs: Logs, starts: Sequence[int], r: float) -> list[Step]:
    edges = [0, *starts, len(logs)]
    return [step_between(logs[a:b], logs[b:c], r) for a, b, c in zip(edges, edges[1:], edges[2:], strict=False)]


def _holds(step: Step, limits: HistoryLimits) -> bool:
    return step.p <= limits.alpha and step.over_drift >= OVER_DRIFT and abs(step.shift) >= math.log1p(limits.notify)
