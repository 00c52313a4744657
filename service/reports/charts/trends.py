"""The trend of a series: its revisions in a unit, its levels and its changes.  Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from kernels.cases import Metric
from service.domain.metrics import WORDS, axis_unit, percent, signed
from service.domain.states import Outcome, PointState
from service.errors import BadInput
from service.reports.views import ChangePointView, Point, RegressionView
from service.reports.words import of_point, of_point_reason

MAX_OTHERS = 3  # series that one figure shows besides its own
_UNDECIDED = frozenset((Outcome.INCONCLUSIVE, Outcome.FAILED, Outcome.INVALID))
_LEAST_FOR_BAND = 8  # points of a level, below which its spread is not drawn
_THINGS = {words.name for words in WORDS.values() if words.thing}


class Unit(StrEnum):
    """What the y axis shows."""

    AMOUNT = "amount"  # µs, bytes of memory, or a count
    GB_S = "gb_s"
    RATIO = "ratio"  # time over the time of SOTA in the same session
    CEILING = "ceiling"  # GB/s as a share of a copy in the same session, in per cent


class Shown(NamedTuple):
    """A revision as the figure shows it; `value` is in the unit of the axis, `at` in seconds since the epoch."""

    point: Point
    at: float
    value: float
    low: float | None
    high: float | None
    sota: float | None  # what SOTA had in the same session; none where the value is a ratio to it

    @property
    def judged(self) -> bool:
        return self.point.outcome not in _UNDECIDED


@dataclass(frozen=True)
class SeriesChange:
    """A step of the series: found in its history, or by the comparison of a revision with its parent."""

    ordinal: int  # of the first revision after it
    at: float
    revision: str
    subject: str
    run_id: int | None
    ratio: float
    low: float | None
    high: float | None
    certain: bool
    closed: bool  # the history says now that there was no step
    state: str
    cause: str
    sota_ratio: float | None  # of the first revision after it
    regression_id: int | None
    metric: Metric = Metric.KERNEL

    @property
    def slower(self) -> bool:
        return self.ratio > 1

    @property
    def size(self) -> str:
        return signed(self.ratio, self.metric)


@dataclass(frozen=True)
class SeriesLevel:
    """The revisions between two changes; `spread` are their 10th and 90th percentile, of at least 8 revisions."""

    points: tuple[Shown, ...]

    @cached_property
    def value(self) -> float:
        return median(one.value for one in self.points)

    @cached_property
    def spread(self) -> tuple[float, float] | None:
        if len(self.points) < _LEAST_FOR_BAND:
            return None
        ordered = sorted(one.value for one in self.points)
        cut = len(ordered) // 10
        return ordered[cut], ordered[-1 - cut]


@dataclass(frozen=True)
class Trend:
    """A series in one unit, in the window that is shown."""

    shown: tuple[Shown, ...]
    levels: tuple[SeriesLevel, ...]
    changes: tuple[SeriesChange, ...]  # the oldest first
    unit: str  # of the axis, for people
    digits: str  # format of a value

    def said(self, value: float) -> str:
        """A value with its unit."""
        one_thing = value == 1 and self.unit in _THINGS
        return f"{value:{self.digits}} {self.unit.removesuffix('s') if one_thing else self.unit}"


def changes(
    points: Sequence[Point],
    steps: Iterable[ChangePointView],
    regressions: Iterable[RegressionView],
    metric: Metric = Metric.KERNEL,
) -> tuple[SeriesChange, ...]:
    """The changes of a series, the oldest first.  A revision has one: what history found, else what the pair showed."""
    by_ordinal = {point.ordinal: point for point in points}
    opened = {one.run.revision.ordinal: one.row for one in regressions}
    by_id = {row.id: row for row in opened.values()}
    found = dict[int, SeriesChange]()
    for point in points:
        if point.outcome in (Outcome.REGRESSION, Outcome.IMPROVEMENT) and point.ratio:
            row = opened.get(point.ordinal)
            found[point.ordinal] = SeriesChange(
                point.ordinal,
                point.committed_at,
                point.revision,
                point.subject,
                point.run_id,
                point.ratio,
                point.low,
                point.high,
                certain=True,
                closed=False,
                state=row.state.value if row else "",
                cause=(row.cause_text or "") if row else "",
                sota_ratio=over_sota(point),
                regression_id=row.id if row else None,
                metric=metric,
            )
    for step in steps:
        ordinal = step.revision.ordinal
        if ordinal is None:
            continue
        pair, here = found.get(ordinal), by_ordinal.get(ordinal)
        row = by_id.get(step.row.regression_id or -1) or opened.get(ordinal)
        if pair is not None and step.row.state is PointState.CLOSED:
            continue
        found[ordinal] = SeriesChange(
            ordinal,
            step.revision.committed_at,
            step.revision.sha,
            step.revision.subject,
            here.run_id if here else None,
            step.row.ratio,
            step.row.low,
            step.row.high,
            certain=step.row.level == "block" or pair is not None,
            closed=step.row.state is PointState.CLOSED,
            state=row.state.value if row else step.row.state.value,
            cause=(row.cause_text or "") if row else (of_point_reason(step.row) or of_point(step.row)),
            sota_ratio=over_sota(here) if here else None,
            regression_id=row.id if row else step.row.regression_id,
            metric=metric,
        )
    return tuple(found[ordinal] for ordinal in sorted(found))


def trend(
    points: Sequence[Point],
    found: Sequence[SeriesChange],
    metric: Metric,
    unit: Unit,
    ceilings: Mapping[int, float] | None = None,
) -> Trend:
    """The points in a unit, by level.  `ceilings` are GB/s of a copy, by run, for shares of the ceiling.

    A point without a value in this unit is left out.
    """
    label, digits, divisor = _unit(points, metric, unit)
    shown = list[Shown]()
    dates = in_order([point.committed_at for point in points])
    for point, at in zip(points, dates, strict=True):
        value = _value(point, unit, divisor, ceilings or {})
        if value is not None:
            shown.append(Shown(point, at, value, *_whiskers(point, value, unit), _sota(point, value, unit)))
    placed = {point.ordinal: at for point, at in zip(points, dates, strict=True)}
    found = [replace(change, at=placed.get(change.ordinal, change.at)) for change in found]
    starts = {change.ordinal for change in found if not change.closed}
    levels = list[list[Shown]]([[]])
    boundaries = sorted(starts)
    passed = 0
    for one in shown:
        while passed < len(boundaries) and boundaries[passed] <= one.point.ordinal:
            passed += 1
            if levels[-1]:
                levels.append([])
        levels[-1].append(one)
    return Trend(tuple(shown), tuple(SeriesLevel(tuple(ones)) for ones in levels if ones), tuple(found), label, digits)


def in_order(dates: Sequence[float]) -> list[float]:
    """The dates of commits in the order of their line, so that none goes back.

    Commits are rebased, and clocks are wrong: the longest sequence of dates that do not go back is kept, and those
    between are spread between their neighbours of it.
    """
    ends, before = list[int](), list[int]()  # the last of the best sequence of each length; the one before each
    for number, date in enumerate(dates):
        length = bisect_right(ends, date, key=dates.__getitem__)
        before.append(ends[length - 1] if length else -1)
        ends[length : length + 1] = [number]
    kept = list[int]()
    last = ends[-1] if ends else -1
    while last >= 0:
        kept.append(last)
        last = before[last]
    if not kept:
        return []
    kept.reverse()
    placed = [dates[kept[0]]] * kept[0]
    for start, end in pairwise(kept):
        step = (dates[end] - dates[start]) / (end - start)
        placed += [dates[start] + step * number for number in range(end - start)]
    return placed + [dates[kept[-1]]] * (len(dates) - kept[-1])


def _unit(points: Sequence[Point], metric: Metric, unit: Unit) -> tuple[str, str, float]:
    """The name of a unit, the format of its values, and by what amounts are divided."""
    match unit:
        case Unit.AMOUNT:
            largest = max((point.median for point in points if point.median is not None), default=1.0)
            divisor, name = axis_unit(largest, metric)
            if metric.counts:
                return name, ",.0f", divisor
            return name, ",.2f" if largest / divisor < 10 else ",.1f" if largest / divisor < 1000 else ",.0f", divisor
        case Unit.GB_S:
            return "GB/s", ",.0f", 1.0
        case Unit.RATIO:
            return "× SOTA", ".3f", 1.0
        case Unit.CEILING:
            return "% of a copy", ".0f", 1.0


def _value(point: Point, unit: Unit, divisor: float, ceilings: Mapping[int, float]) -> float | None:
    match unit:
        case Unit.AMOUNT:
            return None if point.median is None else point.median / divisor
        case Unit.GB_S:
            return point.gb_s
        case Unit.RATIO:
            return over_sota(point)
        case Unit.CEILING:
            best = ceilings.get(point.run_id)
            return 100 * point.gb_s / best if point.gb_s and best else None


def _sota(point: Point, value: float, unit: Unit) -> float | None:
    """What SOTA had where the point has this value.  More time is less GB/s."""
    if not (point.sota_median and point.median) or unit is Unit.RATIO:
        return None
    share = point.sota_median / point.median
    return value * share if unit is Unit.AMOUNT else value / share


def over_sota(point: Point) -> float | None:
    """The time over the time of SOTA in the same session."""
    return point.median / point.sota_median if point.median and point.sota_median else None


def _whiskers(point: Point, value: float, unit: Unit) -> tuple[float | None, float | None]:
    """The interval of the comparison with the parent, around this value.  More time is less GB/s."""
    if not (point.ratio and point.low and point.high):
        return None, None
    down, up = point.low / point.ratio, point.high / point.ratio
    return (value * down, value * up) if unit in (Unit.AMOUNT, Unit.RATIO) else (value / up, value / down)


def headline(found: Trend, metric: Metric) -> tuple[str, SeriesChange | None]:
    """The verdict of a trend in figures, and the change that it is about."""
    if not found.shown:
        return "Not measured in this unit", None
    first, newest = found.shown[0].point.ordinal, found.shown[-1].point.ordinal
    open_changes = [one for one in found.changes if not one.closed and first <= one.ordinal <= newest]
    if not open_changes:
        n = len(found.shown)
        if n == 1:
            return f"{found.said(found.shown[0].value)}, measured once", None
        return f"Level over {n:,} revisions", None
    last = open_changes[-1]
    return f"{percent(last.ratio, metric)} since {day(last.at)}", last


def day(at: float) -> str:
    """`21 Nov 2026`, in UTC."""
    return _calendar_day(int(at // 86_400))


@lru_cache(maxsize=4096)  # a page names the days of hundreds of revisions
def _calendar_day(number: int) -> str:
    moment = datetime.fromtimestamp(number * 86_400, UTC)
    return f"{moment.day} {moment:%b %Y}"


def other_series(named: Iterable[str]) -> tuple[str, ...]:
    """The series that a figure shows besides its own, each once.  Raises BadInput for too many."""
    others = tuple(dict.fromkeys(named))
    if len(others) > MAX_OTHERS:
        raise BadInput(f"A figure shows at most {MAX_OTHERS} more series; take some of the {len(others)} out.")
    return others
