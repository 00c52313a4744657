"""The labelled series as the service sees them: one revision after the other, with the scans that the ledger makes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.detect.score import MARGIN, Labelled
from service.domain.changepoints import Change, HistoryLimits, Level
from service.domain.changepoints.detector import LONGEST
from service.domain.changepoints.matching import MAX_REFUTED, KnownPoint
from service.domain.changepoints.scan import scan_series, select_series
from service.domain.changepoints.series_table import Histories
from service.domain.changepoints.step_test import NEAR
from service.domain.states import PointState
from service.domain.verdicts.samples import Name

LIMITS = HistoryLimits(notify=0.01, block=0.02)  # of a case above 100 us, by the default policy
NAME: Name = ("labelled", "series")


@dataclass(frozen=True)
class Reported:
    """A change point of a series: where it is, at which revision it was reported, and its state in the end."""

    place: int
    when: int
    ratio: float
    blocks: bool
    refuted: int = 0
    open: bool = True

    def reaches(self, level: str) -> bool:
        return self.blocks or level == Level.NOTIFY

    def again(self, change: Change) -> "Reported":
        return replace(self, refuted=0, blocks=self.blocks or change.level is Level.BLOCK)

    def contradicted(self) -> "Reported":
        return replace(self, refuted=self.refuted + 1, open=self.open and self.refuted + 1 < MAX_REFUTED)


def replayed(values: Sequence[float]) -> list[Reported]:
    """Every point that was ever reported of a series, of which no person decides any."""
    series, points = np.array([values]), list[Reported]()
    limits = {NAME: LIMITS}
    for count in range(1, len(values) + 1):
        known = {
            NAME: [
                KnownPoint(n, one.place, one.ratio, one.refuted, PointState.OPEN if one.open else PointState.CLOSED)
                for n, one in enumerate(points)
            ]
        }
        table = _newest(series[:, :count], NEAR)
        selected = select_series(table, known, limits)
        close = _newest(series[:, :count], LONGEST if selected else 0)
        found = scan_series(close, table, known, limits)
        if NAME not in found:
            continue
        matched = found[NAME].matched
        for number, change in matched.again:
            points[number] = points[number].again(change)
        for number in (*dict(matched.refuted), *matched.lost):
            points[number] = points[number].contradicted()
        for number in matched.kept:
            points[number] = replace(points[number], refuted=0)
        places = {one.place for one in points}
        points += [
            Reported(one.ordinal, count - 1, one.ratio, one.level is Level.BLOCK)
            for one in matched.new
            if one.ordinal not in places
        ]
    return points


def _newest(values: NDArray[np.float64], count: int) -> Histories:
    """The newest revisions of one series as a table; none of it where no series is scanned closely."""
    first = max(0, values.shape[1] - count)
    taken = values[:, first:] if count else values[:0]
    nothing = np.full_like(taken, np.nan)
    runs = np.ones(taken.shape, dtype=np.int64)
    return Histories((NAME,) if count else (), first, taken, nothing, np.zeros_like(runs), runs)


def delays(labelled: Collection[Labelled], reported: dict[str, list[Reported]]) -> list[int]:
    """Revisions from each labelled change to the first point that stands for it, where there is one."""
    found = []
    for one in labelled:
        for mark in one.changes:
            near = [point.when for point in reported[one.name] if abs(point.place - mark) <= MARGIN]
            if near:
                found.append(max(0, min(near) - mark))
    return found
