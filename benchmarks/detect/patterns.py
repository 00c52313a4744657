"""Steps of known size and place, added to stretches of real series in which people saw no change.  Logs throughout."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.detect.score import Labelled

Logs = NDArray[np.float64]

MIN_STRETCH, MAX_STRETCH = 90, 200  # revisions


@dataclass(frozen=True)
class Pattern:
    """The steps of a pattern as parts of a stretch of noise: at each place the level moves by so many sizes."""

    name: str
    moves: tuple[tuple[float, int, float], ...]  # place as a part of the stretch, revisions more, sizes

    def places(self, count: int) -> list[int]:
        return [int(count * part) + more for part, more, _ in self.moves]

    def levels(self, count: int, size: float) -> Logs:
        levels = np.zeros(count)
        for place, (_, _, sizes) in zip(self.places(count), self.moves, strict=True):
            levels[place:] += size * sizes
        return levels


PATTERNS = (
    Pattern("one step", ((1 / 2, 0, 1),)),
    Pattern("plateau of 12", ((1 / 2, 0, 1), (1 / 2, 12, -1))),
    Pattern(
        "slower, fixed; slower again, fixed",
        ((1 / 6, 0, 1), (1 / 6, 20, -1), (1 / 2, 5, 1.15), (1 / 2, 28, -1.15)),
    ),
    Pattern("landed, reverted, twice", ((1 / 4, 0, 1), (1 / 4, 15, -1), (1 / 4, 27, 1), (1 / 4, 45, -1))),
    Pattern("12 sizes faster, then one slower", ((1 / 3, 0, -12), (2 / 3, 0, 1))),
)


def stretches(labelled: Collection[Labelled]) -> Iterator[Logs]:
    """The parts of the series without a label or an ambiguous mark, as logs about their median."""
    for one in labelled:
        edges = sorted({0, len(one.values), *one.changes, *one.ambiguous})
        for begin, end in pairwise(edges):
            values = np.log(one.values[begin + 1 : end])
            if len(values) >= MIN_STRETCH and np.ptp(values) > 0:
                yield values[:MAX_STRETCH] - np.median(values[:MAX_STRETCH])


def in_two_modes(noise: Logs, size: float, random: np.random.Generator) -> tuple[Logs, list[int]]:
    """30 revisions that are three sizes slower in three of five measurements."""
    begin, count = len(noise) // 3, 30
    levels = np.zeros(len(noise))
    levels[begin : begin + count] = np.where(random.random(count) < 0.6, 3 * size, 0)
    return noise + levels, [begin, begin + count]


def leaking(noise: Logs, size: float) -> tuple[Logs, int]:
    """A leak over the newest 64 revisions, by `size` in all; and the place where it begins."""
    begin = len(noise) - 64
    return noise + size * np.clip((np.arange(len(noise)) - begin) / 64, 0, 1), begin
