"""How well predictions agree with labels: one to one within a margin, every false alarm counted once."""

import csv
import gzip
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import linear_sum_assignment

MARGIN = 5  # revisions between a prediction and the label that it may stand for
LARGE = math.log1p(0.02)

Predictions = Mapping[str, Sequence[int]]  # of each series the first revisions of its new levels


@dataclass(frozen=True)
class Labelled:
    """A real series and its labels; who made them is not known."""

    name: str  # project|suite|benchmark
    values: tuple[float, ...]
    changes: tuple[int, ...]
    ambiguous: tuple[int, ...]

    @property
    def project(self) -> str:
        return self.name.partition("|")[0]


@dataclass(frozen=True)
class Score:
    """Counts over a set of series, of all changes or of the large ones."""

    hits: int
    false: int
    missed: int
    points: int

    @property
    def precision(self) -> float:
        return self.hits / max(self.hits + self.false, 1)

    @property
    def recall(self) -> float:
        return self.hits / max(self.hits + self.missed, 1)

    @property
    def f1(self) -> float:
        return 2 * self.hits / max(2 * self.hits + self.false + self.missed, 1)

    @property
    def false_per_1000(self) -> float:
        return 1000 * self.false / max(self.points, 1)


def read(path: Path) -> list[Labelled]:
    """Rows of series, index, value, is_change, is_ambiguous, in any order."""
    rows: dict[str, list[tuple[int, float, bool, bool]]] = defaultdict(list)
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            flags = (row["is_change"] == "1", row["is_ambiguous"] == "1")
            rows[row["series"]].append((int(row["index"]), float(row["value"]), *flags))
    found = []
    for name, points in rows.items():
        points.sort()
        found.append(
            Labelled(
                name,
                tuple(value for _, value, _, _ in points),
                tuple(place for place, (_, _, change, _) in enumerate(points) if change),
                tuple(place for place, (_, _, _, ambiguous) in enumerate(points) if ambiguous),
            )
        )
    return found


def score(labelled: Collection[Labelled], predicted: Predictions, at_least: float = 0.0) -> Score:
    """Every label has at most one prediction, the most possible are matched, and of those matchings the nearest.

    What is left over of the predictions is false, unless it lies within the margin of an ambiguous mark.  With
    `at_least` (a log ratio) only labels of such steps count as hit or missed, and only predictions of such steps as
    false; the size of a step is that of the medians between neighbouring labels, or neighbouring predictions.
    """
    hits = false = missed = 0
    for one in labelled:
        predictions = sorted(predicted[one.name])
        pairs = matched(predictions, one.changes)
        labels, alarms = _sizes(one.values, one.changes), _sizes(one.values, predictions)
        found = {label for _, label in pairs}
        left = set(predictions) - {prediction for prediction, _ in pairs}
        hits += sum(labels[label] >= at_least for label in found)
        missed += sum(labels[label] >= at_least for label in one.changes if label not in found)
        false += sum(alarms[place] >= at_least for place in left if not _near(place, one.ambiguous))
    return Score(hits, false, missed, sum(len(one.values) for one in labelled))


def matched(predictions: Sequence[int], labels: Sequence[int]) -> list[tuple[int, int]]:
    if not (len(predictions) and len(labels)):
        return []
    apart = np.abs(np.subtract.outer(np.array(predictions, float), np.array(labels, float)))
    cost = np.where(apart <= MARGIN, apart - 1000 * MARGIN, 0)
    rows, columns = linear_sum_assignment(cost)
    return [(predictions[a], labels[b]) for a, b in zip(rows, columns, strict=True) if apart[a, b] <= MARGIN]


def _near(place: int, marks: Sequence[int]) -> bool:
    return any(abs(place - mark) <= MARGIN for mark in marks)


def _sizes(values: Sequence[float], places: Sequence[int]) -> dict[int, float]:
    """The step at each place, as an absolute log ratio."""
    levels = [median(values[a:b]) for a, b in pairwise([0, *places, len(values)])] if places else []
    return {place: abs(math.log(b / a)) for place, (a, b) in zip(places, pairwise(levels), strict=True)}
