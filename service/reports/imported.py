"""A series that was measured elsewhere: its values, its levels, and which of its changes are worse.  Pure.

Its sessions have no baseline in turns, so nothing is judged: the detector of histories lists changes, for people.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from urllib.parse import quote, urlencode

from service.domain.changepoints.detector import changes
from service.domain.changepoints.segmentation import Change, Seen
from service.domain.ingest import BYTES, COUNT, US
from service.domain.metrics import digits
from service.domain.states import Better, Missing

_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


@dataclass(frozen=True)
class ImportedKey:
    """A series of a target, as it was sent."""

    target_id: int
    target: str
    device: str
    provider: str
    case: str

    @property
    def query(self) -> str:
        return urlencode({"device": self.device, "provider": self.provider, "case": self.case})

    @property
    def path(self) -> str:
        """Of its page."""
        return f"/targets/{quote(self.target, safe='')}/imported/series?{self.query}"

    @property
    def digest(self) -> str:
        """What stands for it in the ids of its feed; the target may be renamed."""
        return hashlib.sha256(self.query.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ImportedPoint:
    """One measurement that was sent; `value` is None where `missing` says why."""

    revision: str
    at: float  # when it was measured, or received
    value: float | None
    unit: str
    better: Better
    missing: Missing | None
    batch_id: int = 0
    tool: str = ""
    machine: str = ""


@dataclass(frozen=True)
class ImportedRevision:
    """A revision with a number: the median of what was sent of it."""

    revision: str
    at: float
    value: float


@dataclass(frozen=True)
class ImportedLevel:
    """The revisions between two changes, by their places."""

    first: int
    last: int
    value: float


@dataclass(frozen=True)
class ImportedSeries:
    """Revisions in the order in which they were measured, in the unit of the newest."""

    revisions: Sequence[ImportedRevision]
    levels: Sequence[ImportedLevel]
    changes: Sequence[Change]  # ordinals are places in `revisions`
    unit: str
    better: Better

    def worse(self, change: Change) -> bool:
        return (change.ratio > 1) is (self.better is Better.SMALLER)


def imported_series(points: Sequence[ImportedPoint]) -> ImportedSeries:
    """The series of at least one point, the oldest first."""
    newest = points[-1]
    values: dict[str, list[ImportedPoint]] = {}
    for point in points:
        if point.value is not None and point.unit == newest.unit:
            values.setdefault(point.revision, []).append(point)
    revisions = [
        ImportedRevision(revision, some[0].at, median(point.value for point in some if point.value is not None))
        for revision, some in values.items()
    ]
    seen = [
        Seen(place, revision.value, at=revision.at) for place, revision in enumerate(revisions) if revision.value > 0
    ]
    steps = changes(seen)
    edges = [0, *(step.ordinal for step in steps), len(revisions)]
    levels = [
        ImportedLevel(first, end - 1, median(one.value for one in revisions[first:end]))
        for first, end in pairwise(edges)
        if first < end
    ]
    return ImportedSeries(revisions, levels, steps, newest.unit, newest.better)


@dataclass(frozen=True)
class ImportedPair:
    """A series at two revisions.  `ratio` is head over base; None where one has no number, or another unit."""

    device: str
    provider: str
    case: str
    base: ImportedPoint
    head: ImportedPoint

    @property
    def ratio(self) -> float | None:
        if not self.base.value or not self.head.value or self.base.unit != self.head.unit:
            return None
        return self.head.value / self.base.value

    @property
    def worse(self) -> float:
        """By which factor it became worse; below 1 it became better, and 1 where nothing can be said."""
        ratio = self.ratio or 1.0
        return ratio if self.head.better is Better.SMALLER else 1 / ratio


def pairs_of(points: Iterable[tuple[tuple[str, str, str], ImportedPoint]], base: str, head: str) -> list[ImportedPair]:
    """The series of both revisions, those that became worst first.  Of one sent repeatedly the last counts.

    `points` have the device, provider and case of their series.
    """
    by_revision: dict[str, dict[tuple[str, str, str], ImportedPoint]] = {base: {}, head: {}}
    for key, point in points:
        by_revision[point.revision][key] = point
    both = by_revision[base].keys() & by_revision[head].keys()
    pairs = [ImportedPair(*key, by_revision[base][key], by_revision[head][key]) for key in sorted(both)]
    return sorted(pairs, key=lambda pair: -pair.worse)


def imported_amount(value: float, unit: str) -> str:
    """A value as people write it: `7.31 µs`, `16.8 MB`, `3 counts`, `812 GB/s`."""
    if value and unit == US:
        return _with_prefix(value, _TIMES)
    if value and unit == BYTES:
        return _with_prefix(value, _SIZES)
    shown = f"{value:,g}" if unit == COUNT else _short(value)
    return shown if unit == COUNT else f"{shown} {unit}"


def _with_prefix(value: float, units: Sequence[tuple[float, str]]) -> str:
    size, symbol = next((unit for unit in units if value >= unit[0]), units[-1])
    return f"{_short(value / size)} {symbol}"


def _short(value: float) -> str:
    return digits(value) if 0.1 <= value < 1e6 else f"{value:.3g}"
