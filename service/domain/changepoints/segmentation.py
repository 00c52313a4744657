"""Find where the level of a series changes, pruned by the step test; two modes that alternate are no change."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from service.domain.changepoints.step_test import (
    MIN_ERROR,
    MIN_SIDE,
    OUTLIER,
    Logs,
    Step,
    local_noise,
    median,
    step_between,
)

FLIPS = 5  # changes between two levels: a commit that is reverted, landed again and reverted again makes four


@dataclass(frozen=True)
class Seen:
    """One mainline revision of a series."""

    ordinal: int  # its place on the mainline
    value: float  # in the unit of the metric, > 0
    reference: float | None = None  # SOTA's value of the same session, for the control variate
    stack: int | None = None  # id of the stack; an epoch ends where it changes
    at: float | None = None  # when it was measured, in seconds since the epoch

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
    p: float  # of the test at this place, corrected for the places among which it was chosen
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
    """Thresholds of a change."""

    notify: float = 0.005  # smallest change of level NOTIFY, relative to the level before
    block: float = 0.02  # smallest change of level BLOCK
    fdr: float = 0.01  # share of false changes among those of a series
    block_alpha: float = 1e-3  # probability of any false change of level BLOCK in a series

    def __post_init__(self) -> None:
        if not 0 <= self.notify <= self.block < 1:
            raise ValueError(f"notify ({self.notify}) and block ({self.block}) must satisfy 0 <= notify <= block < 1.")
        if not 0 < self.block_alpha <= self.fdr < 1:
            raise ValueError(
                f"fdr ({self.fdr}) and block_alpha ({self.block_alpha}) must satisfy 0 < block_alpha <= fdr < 1."
            )


SPAN = 400  # revisions that are searched at a time; the cost of a steady series grows with their square
PENALTY = 0.55  # of a change point in the search, times log n


@dataclass(frozen=True)
class Levels:
    """An epoch, cut into levels."""

    logs: Logs
    starts: tuple[int, ...] = ()  # the first revision of each level but the first
    steps: tuple[Step, ...] = ()  # one at each start
    certain: frozenset[int] = frozenset()  # the starts whose steps may block
    candidates: tuple[int, ...] = ()  # the starts that were tested

    def step_at(self, start: int) -> Step | None:
        """The step between the revisions before `start` and those from it on, up to other changes of level.

        None if there are fewer than `MIN_SIDE` on a side.
        """
        edges = np.array([0, *self.starts, len(self.logs)])
        before, after = edges[edges < start], edges[edges > start]
        if not (len(before) and len(after)) or min(start - before[-1], after[0] - start) < MIN_SIDE:
            return None
        return step_between(self.logs[before[-1] : start], self.logs[start : after[0]])


def levels_of(logs: Logs, limits: HistoryLimits) -> Levels:
    """Cut an epoch into levels."""
    starts = candidates = _candidates(logs)
    while True:
        starts = _pruned(logs, starts, limits, len(candidates))
        turns = changes_in_turn(logs, starts, limits)
        if max(turns, default=0) < FLIPS:
            break
        starts = [start for start, count in zip(starts, turns, strict=True) if count < FLIPS]
    steps = tuple(_steps(logs, starts))
    largest_p = limits.block_alpha / max(len(candidates), 1)
    certain = frozenset(
        start
        for start, step, count in zip(starts, steps, turns, strict=True)
        if step.searched_p <= largest_p and count == 1
    )
    return Levels(logs, tuple(starts), steps, certain, tuple(candidates))


def _candidates(logs: Logs) -> list[int]:
    """Kernel change points (Arlot, Celisse and Harchaoui, 2019) by PELT (Killick, Fearnhead and Eckley, 2012).

    With a Gaussian kernel the cost of one value is at most 1, so an outlier is not a change, and no step hides another.
    The kernel is as wide as outliers are away: so a step of 3 % is seen next to one of 200 % as well as alone.  A level
    may be of any length here, or a change that a few values show too early would be put where enough values follow.
    """
    if len(logs) < 2 * MIN_SIDE or np.ptp(logs) == 0:
        return []
    from ruptures import KernelCPD  # not above: it imports scipy.stats, for which every command would wait

    width = OUTLIER * max(local_noise(logs), MIN_ERROR)
    search = KernelCPD("rbf", min_size=1, params={"gamma": 1 / width**2})
    starts: list[int] = []
    for begin in range(0, max(len(logs) - SPAN // 2, 1), SPAN // 2):
        end = begin + SPAN
        # Spans overlap by half.  Of each only the middle half counts, where it has values on both sides.
        answers = range(begin + SPAN // 4 if begin else 0, end - SPAN // 4 if end < len(logs) else len(logs))
        ends = search.fit(logs[begin:end].reshape(-1, 1)).predict(pen=PENALTY * math.log(len(logs)))
        starts += [start for place in ends[:-1] if (start := begin + int(place)) in answers]
    return _long_enough(logs, starts)


def _long_enough(logs: Logs, starts: Sequence[int]) -> list[int]:
    """`starts` without levels shorter than `MIN_SIDE`: the shortest first, each joins its most similar neighbour."""
    edges = [0, *starts, len(logs)]
    while len(edges) > 2:
        lengths = [end - begin for begin, end in pairwise(edges)]
        short = lengths.index(min(lengths))
        if lengths[short] >= MIN_SIDE:
            break
        middles = [median(logs[begin:end]) for begin, end in pairwise(edges)]
        neighbours = [number for number in (short - 1, short + 1) if 0 <= number < len(middles)]
        nearest = min(neighbours, key=lambda number: abs(middles[number] - middles[short]))
        del edges[max(short, nearest)]
    return edges[1:-1]


def _pruned(logs: Logs, starts: Sequence[int], limits: HistoryLimits, tested: int) -> list[int]:
    """Remove the weakest change that fails the test, merge its two levels and test again, until all changes pass.

    Of the `tested` changes, those that stay are the ones that the step-up test of Benjamini and Hochberg (1995) keeps.
    """
    edges, steps = [0, *starts, len(logs)], _steps(logs, starts)
    while steps:
        largest_p = limits.fdr * len(steps) / tested
        failing = [
            number
            for number, step in enumerate(steps)
            if step.searched_p > largest_p or abs(step.shift) < math.log1p(limits.notify)
        ]
        if not failing:
            break
        weakest = max(failing, key=lambda number: (steps[number].p, -abs(steps[number].shift)))
        del edges[weakest + 1], steps[weakest]
        for number in (weakest - 1, weakest):
            if 0 <= number < len(steps):
                a, b, c = edges[number : number + 3]
                steps[number] = step_between(logs[a:b], logs[b:c])
    return edges[1:-1]


def _steps(logs: Logs, starts: Sequence[int]) -> list[Step]:
    return [step_between(before, after) for before, after in pairwise(np.split(logs, starts))]


def changes_in_turn(logs: Logs, starts: Sequence[int], limits: HistoryLimits) -> list[int]:
    """Of each change, how many changes there are in a row between its two levels, itself included.

    A level is the same again if the test cannot tell it from the visit before, at a place that was not searched for:
    commits whose effects are alike are no modes.
    """
    visits, counts = np.split(logs, starts), list[int]()
    for end in range(1, len(starts) + 1):
        if end == len(starts) or step_between(visits[end - 1], visits[end + 1]).p <= limits.fdr:
            counts += [end - len(counts)] * (end - len(counts))
    return counts
