"""Two revisions side by side: the cases in order, with the geometry of their intervals.  Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import geometric_mean

from dashboards.drawing import Figure, Scale
from dashboards.runs.case_names import CaseName, case_name
from service.reports.rows import ComparedCase

WIDTH = 372  # px of the column of intervals
_MOST = 8.0  # larger ratios are drawn at the edge
_ORDER = ("slower", "faster", "unknown", "same")


class Show(StrEnum):
    """Which cases the page lists."""

    CHANGED = "changed"  # slower and faster
    ALL = "all"


class Sort(StrEnum):
    RATIO = "ratio"  # the largest change first
    LOST = "lost"  # the most µs first
    NAME = "name"


@dataclass(frozen=True)
class ComparedLine:
    """A case of the comparison."""

    case: ComparedCase
    name: CaseName
    interval: Figure | None

    @property
    def lost(self) -> float:
        """How much more the head takes, in the unit of the metric."""
        head, base = self.case.head_median, self.case.base_median
        return head - base if head is not None and base is not None else 0.0


@dataclass(frozen=True)
class Compared:
    """The cases by direction, and the axis that their intervals share."""

    lines: Sequence[ComparedLine]  # those that are shown
    counts: dict[str, int]
    geomean: float | None  # of all that have a ratio
    axis: Scale

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Positions in per cent of the column, and texts of the ticks."""
        return [(f"{self.axis(tick) / WIDTH * 100:.1f}%", f"{tick:.2f}") for tick in self.axis.ticks]

    @property
    def one(self) -> str:
        """The position of the ratio 1, in per cent of the column."""
        return f"{self.axis(1.0) / WIDTH * 100:.1f}%"


def compose(
    cases: Sequence[ComparedCase], show: Show = Show.CHANGED, sort: Sort = Sort.RATIO, text: str = ""
) -> Compared:
    """The cases that have every word of `text`; without changed ones all are shown."""
    words = text.lower().split()
    found = [case for case in cases if all(word in f"{case.case} {case.provider}".lower() for word in words)]
    ratios = [case.ratio.ratio for case in found if case.ratio]
    # At least 5 % to both sides, so that noise does not look like a change.
    low, high = max(min([0.95, *ratios]), 1 / _MOST), min(max([1.05, *ratios]), _MOST)
    axis = Scale(low / 1.01, high * 1.01, 0, WIDTH, log=True)
    counts = {word: sum(case.direction == word for case in found) for word in _ORDER}
    shown = found if show is Show.ALL else [case for case in found if case.direction in ("slower", "faster")]
    lines = sorted((_line(case, axis) for case in shown), key=_KEYS[sort])
    return Compared(lines, counts, geometric_mean(ratios) if ratios else None, axis)


def _line(case: ComparedCase, axis: Scale) -> ComparedLine:
    figure = Figure(WIDTH, 22, preserveAspectRatio="none") if case.ratio else None
    if figure and case.ratio:
        figure.interval(axis, case.ratio.low, case.ratio.ratio, case.ratio.high)
    return ComparedLine(case, case_name(case.case), figure)


def _change(line: ComparedLine) -> float:
    return abs(math.log(line.case.ratio.ratio)) if line.case.ratio else 0.0


_KEYS = {
    Sort.RATIO: lambda line: (_ORDER.index(line.case.direction), -_change(line), line.case.case),
    Sort.LOST: lambda line: (_ORDER.index(line.case.direction), -abs(line.lost), line.case.case),
    Sort.NAME: lambda line: (line.name.op, line.name.direction, line.name.columns or 0, line.name.rows or 0),
}
