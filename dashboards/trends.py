"""The trend of a series: its levels, changes and marks, and where each of them is drawn.  Pure.

A figure is drawn on the server as SVG, twice: for wide windows and for phones.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import pairwise
from statistics import median

from dashboards.drawing import Scale, area, bars, dots, line, place, time_ticks
from kernels.cases import Metric
from service.domain.metrics import WORDS, axis_unit, percent, signed
from service.domain.states import Outcome, PointState
from service.reports.views import ChangePointView, Point, RegressionView
from service.reports.words import of_point, of_point_reason

_UNDECIDED = frozenset((Outcome.INCONCLUSIVE, Outcome.FAILED, Outcome.INVALID))
_LEAST_FOR_BAND = 8  # points of a level, below which its spread is not drawn
_MOST_DOTS = 1500  # of more points, two for each px at most are drawn
_LANES = 3
_LETTER_PX = 6.1  # of the 11 px text in figures, about


_THINGS = {words.name for words in WORDS.values() if words.thing}


class Unit(StrEnum):
    """What the y axis shows."""

    AMOUNT = "amount"  # µs, bytes of memory, or a count
    GB_S = "gb_s"
    RATIO = "ratio"  # time over the time of SOTA in the same session
    CEILING = "ceiling"  # GB/s as a share of a copy in the same session, in per cent


@dataclass(frozen=True)
class Shown:
    """A revision as the figure shows it; `value` is in the unit of the axis, `at` in seconds since the epoch."""

    point: Point
    at: float
    value: float
    low: float | None
    high: float | None

    @property
    def judged(self) -> bool:
        return self.point.outcome not in _UNDECIDED


@dataclass(frozen=True)
class Change:
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
class Level:
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
    levels: tuple[Level, ...]
    changes: tuple[Change, ...]  # the oldest first
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
) -> tuple[Change, ...]:
    """The changes of a series, the oldest first.  A revision has one: what history found, else what the pair showed."""
    by_ordinal = {point.ordinal: point for point in points}
    opened = {one.run.revision.ordinal: one.row for one in regressions}
    by_id = {row.id: row for row in opened.values()}
    found = dict[int, Change]()
    for point in points:
        if point.outcome in (Outcome.REGRESSION, Outcome.IMPROVEMENT) and point.ratio:
            row = opened.get(point.ordinal)
            found[point.ordinal] = Change(
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
                sota_ratio=_over_sota(point),
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
        found[ordinal] = Change(
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
            sota_ratio=_over_sota(here) if here else None,
            regression_id=row.id if row else step.row.regression_id,
            metric=metric,
        )
    return tuple(found[ordinal] for ordinal in sorted(found))


def trend(
    points: Sequence[Point],
    found: Sequence[Change],
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
            shown.append(Shown(point, at, value, *_whiskers(point, value, unit)))
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
    return Trend(tuple(shown), tuple(Level(tuple(ones)) for ones in levels if ones), tuple(found), label, digits)


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
            return _over_sota(point)
        case Unit.CEILING:
            best = ceilings.get(point.run_id)
            return 100 * point.gb_s / best if point.gb_s and best else None


def _over_sota(point: Point) -> float | None:
    return point.median / point.sota_median if point.median and point.sota_median else None


def _whiskers(point: Point, value: float, unit: Unit) -> tuple[float | None, float | None]:
    """The interval of the comparison with the parent, around this value.  More time is less GB/s."""
    if not (point.ratio and point.low and point.high):
        return None, None
    down, up = point.low / point.ratio, point.high / point.ratio
    return (value * down, value * up) if unit in (Unit.AMOUNT, Unit.RATIO) else (value / up, value / down)


def headline(found: Trend, metric: Metric) -> tuple[str, Change | None]:
    """The verdict of a trend in figures, and the change that it is about."""
    if not found.shown:
        return "Not measured in this unit", None
    open_changes = [change for change in found.changes if not change.closed and _in(change, found.shown)]
    if not open_changes:
        n = len(found.shown)
        if n == 1:
            return f"{found.said(found.shown[0].value)}, measured once", None
        return f"Level over {n:,} revisions", None
    last = open_changes[-1]
    return f"{percent(last.ratio, metric)} since {day(last.at)}", last


def _in(change: Change, shown: Sequence[Shown]) -> bool:
    return shown[0].point.ordinal <= change.ordinal <= shown[-1].point.ordinal


def day(at: float) -> str:
    """`21 Nov 2026`, in UTC."""
    return _calendar_day(int(at // 86_400))


@lru_cache(maxsize=4096)  # a page names the days of hundreds of revisions
def _calendar_day(number: int) -> str:
    moment = datetime.fromtimestamp(number * 86_400, UTC)
    return f"{moment.day} {moment:%b %Y}"


@dataclass(frozen=True)
class Label:
    """A text in the figure."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    kind: str = ""
    href: str = ""
    title: str = ""


@dataclass(frozen=True)
class Drawing:
    """All that a template needs to write one figure; paths are the `d` of SVG."""

    width: int
    height: int
    x: Scale
    left: float
    right: float
    top: float
    bottom: float
    grid: tuple[Label, ...]
    dates: tuple[Label, ...]
    bands: str
    levels: str
    level_labels: tuple[Label, ...]
    steady: str
    worse: str
    better: str
    unsure: tuple[tuple[float, float, float, float], ...]  # x, y, and both ends of the whisker
    sota: str
    others: tuple[tuple[str, Label], ...]
    change_lines: tuple[tuple[str, str], ...]  # path and kind
    change_labels: tuple[Label, ...]
    marks: tuple[Label, ...]
    mark_lines: str
    ends: tuple[Label, ...]
    ratio: "Strip | None"
    chosen: tuple[tuple[float, str], ...]  # x of A and of B
    overview: "Overview | None"


@dataclass(frozen=True)
class Strip:
    """The ratio to SOTA below the figure."""

    top: float
    bottom: float
    path: str
    behind: str
    limit_y: float
    one_y: float
    labels: tuple[Label, ...]


@dataclass(frozen=True)
class Overview:
    """All revisions, with the window that the figure shows."""

    top: float
    bottom: float
    path: str
    start: float
    end: float


@dataclass(frozen=True)
class Mark:
    """Something that happened to the series from outside: its stack changed, an incident was opened."""

    at: float
    text: str
    title: str
    kind: str
    href: str = ""


def draw(
    found: Trend,
    *,
    width: int,
    everything: Sequence[Shown] = (),
    others: Sequence[tuple[str, Sequence[Shown]]] = (),
    marks: Sequence[Mark] = (),
    chosen: Mapping[str, Shown] | None = None,
    behind: float | None = None,
    from_zero: bool = False,
    sota: str = "SOTA",
    with_sota: bool = True,
) -> Drawing:
    """Lay a trend out in a figure of `width` px.  `behind` is the ratio to SOTA above which a series is behind."""
    narrow = width < 700
    left, right = (38.0, width - 58.0) if narrow else (46.0, width - 92.0)
    times = [one.at for one in found.shown] or [0.0]
    low, high = times[0], times[-1]
    margin = max((high - low) * 0.015, 1800.0)
    x = Scale(low - margin, high + margin, left, right)
    placed_marks, mark_lines, lanes = _marks(marks, x, width)
    top = 18.0 + 15 * lanes + (20 if found.changes else 6)
    bottom = top + (170 if narrow else 230)
    y = Scale(*_range(found, others, from_zero, with_sota), bottom, top)
    strip = (bottom + 34, bottom + (80 if narrow else 96))
    ratio_strip = _ratio_strip(found, x, *strip, behind, f"× {sota}" if not narrow else "×")
    below = (ratio_strip.bottom if ratio_strip else bottom) + 18
    over = _overview(everything, found.shown, left, right, below + 10, below + 38)
    dated = time_ticks(x.low, x.high, 4 if narrow else 8)
    picked = [(x(one.at), name) for name, one in (chosen or {}).items()]
    ends, other_lines = _ends(found, others, y, right, "" if narrow else sota, with_sota)
    steps = [change for change in found.changes if x.low <= change.at <= x.high]
    placed = [(one, (x(one.at), y(one.value))) for one in found.shown]
    return Drawing(
        width=width,
        height=int((over.bottom if over else below) + 8),
        x=x,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        grid=tuple(Label(left - 6, y(value), _tick(value, found.digits), "end") for value in y.ticks),
        dates=tuple(Label(x(at), below, text, "middle") for at, text in dated),
        bands=_bands(found, x, y),
        levels="".join(_level(level, x, y) for level in found.levels if len(level.points) > 1),
        level_labels=_level_labels(found, x, y),
        steady=dots(_few(at for one, at in placed if one.judged and not _changed(one))),
        worse=dots(at for one, at in placed if one.point.outcome == Outcome.REGRESSION),
        better=dots(at for one, at in placed if one.point.outcome == Outcome.IMPROVEMENT),
        unsure=tuple(
            (*at, y.within(one.high or one.value), y.within(one.low or one.value))
            for one, at in placed
            if not one.judged
        ),
        sota=_sota_line(found, x, y) if with_sota else "",
        others=tuple(
            (line(_few((x(one.at), y(one.value)) for one in ones if x.low <= one.at <= x.high)), label)
            for (_, ones), label in zip(others, other_lines, strict=True)
            if ones
        ),
        change_lines=tuple((f"M{place(x(one.at))} {place(top - 4)}V{place(bottom)}", _kind(one)) for one in steps),
        change_labels=_change_labels(steps, x, top, right),
        marks=placed_marks,
        mark_lines=mark_lines,
        ends=ends,
        ratio=ratio_strip,
        chosen=tuple(picked),
        overview=over,
    )


def _changed(one: Shown) -> bool:
    return one.point.outcome in (Outcome.REGRESSION, Outcome.IMPROVEMENT)


def _kind(change: Change) -> str:
    return "closed" if change.closed else "slower" if change.slower else "faster"


def _range(
    found: Trend, others: Sequence[tuple[str, Sequence[Shown]]], from_zero: bool, with_sota: bool
) -> tuple[float, float]:
    """The ends of the y axis: all values, and the whiskers as far as half or twice the value."""
    values = [one.value for one in found.shown] + [one.value for _, ones in others for one in ones]
    for one in found.shown:
        if not one.judged and one.low is not None and one.high is not None:
            values += [max(one.low, one.value / 2), min(one.high, one.value * 2)]
        if with_sota and (best := _sota_value(one)) is not None:
            values.append(best)
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    spare = max((high - low) * 0.08, high * 0.004, 1e-12)
    return (0.0 if from_zero else max(0.0, low - spare)), high + spare


def _sota_value(one: Shown) -> float | None:
    """The value of SOTA in the unit of the axis, where that is an amount."""
    point = one.point
    return one.value * point.sota_median / point.median if point.sota_median and point.median else None


def _bands(found: Trend, x: Scale, y: Scale) -> str:
    paths = []
    for level in found.levels:
        if level.spread:
            low, high = level.spread
            ends = (x(level.points[0].at), x(level.points[-1].at))
            paths.append(area([(end, y(high), y(low)) for end in ends]))
    return "".join(paths)


def _level(level: Level, x: Scale, y: Scale) -> str:
    return f"M{place(x(level.points[0].at))} {place(y(level.value))}H{place(x(level.points[-1].at))}"


def _level_labels(found: Trend, x: Scale, y: Scale) -> tuple[Label, ...]:
    """The value of each level that has room for it, above its first points."""
    labels = []
    for level in found.levels[:-1]:
        text = f"{level.value:{found.digits}}"
        start, end = x(level.points[0].at), x(level.points[-1].at)
        if end - start > len(text) * _LETTER_PX:
            top = max(one.value for one in level.points)
            labels.append(Label(start + 4, y(top) - 6, text, kind="strong"))
    return tuple(labels)


def _few(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of very many points those that can be seen: the lowest and the highest of each px."""
    every = list(points)
    if len(every) <= _MOST_DOTS:
        return every
    columns = dict[int, tuple[tuple[float, float], tuple[float, float]]]()
    for one in every:
        low, high = columns.get(round(one[0]), (one, one))
        columns[round(one[0])] = (min(low, one, key=lambda p: p[1]), max(high, one, key=lambda p: p[1]))
    return [one for pair in columns.values() for one in dict.fromkeys(pair)]


def _sota_line(found: Trend, x: Scale, y: Scale) -> str:
    known = [(x(one.at), y(best)) for one in found.shown if (best := _sota_value(one)) is not None]
    return line(_few(known)) if len(known) > 1 else ""


def _ends(
    found: Trend,
    others: Sequence[tuple[str, Sequence[Shown]]],
    y: Scale,
    right: float,
    sota: str,
    with_sota: bool,
) -> tuple[tuple[Label, ...], tuple[Label, ...]]:
    """The lines named at their end: ours, SOTA, and the other series; pushed apart where they would overlap.

    Without a name for SOTA there is room for the values alone.
    """
    wanted = list[Label]()
    if found.shown:
        last = found.shown[-1]
        kind = "slower" if last.point.outcome == Outcome.REGRESSION else "own"
        wanted.append(
            Label(right + 6, y(last.value), f"{'now ' if sota else ''}{last.value:{found.digits}}", kind=kind)
        )
        best = _sota_value(last) if with_sota else None
        if best is not None:
            wanted.append(Label(right + 6, y(best), f"{sota} {best:{found.digits}}".lstrip(), kind="sota"))
    count = len(wanted)
    for number, (_, ones) in enumerate(others, 1):
        at = y(ones[-1].value) if ones else y.start
        wanted.append(Label(right + 6, at, f"{'②③④'[number - 1]} {ones[-1].value:{found.digits}}" if ones else ""))
    apart = _apart(wanted)
    return tuple(apart[:count]), tuple(apart[count:])


def _apart(labels: Sequence[Label]) -> list[Label]:
    """Move labels in one column down until no two are closer than a line."""
    moved = dict[int, Label]()
    last = -math.inf
    for index in sorted(range(len(labels)), key=lambda n: labels[n].y):
        last = max(labels[index].y, last + 13)
        moved[index] = replace(labels[index], y=last)
    return [moved[index] for index in range(len(labels))]


def _change_labels(found: Sequence[Change], x: Scale, top: float, right: float) -> tuple[Label, ...]:
    """The sizes of changes above their lines; the largest first, so that it always has its place."""
    taken = list[tuple[float, float]]()
    labels = []
    for change in sorted(found, key=lambda one: -abs(math.log(one.ratio))):
        length = (len(change.size) + 1) * _LETTER_PX
        start = min(x(change.at), right + 80 - length)
        if any(start < end and begin < start + length for begin, end in taken):
            continue
        taken.append((start, start + length))
        labels.append(Label(start, top - 8, change.size, kind=_kind(change), title=change.subject))
    return tuple(labels)


def _marks(marks: Sequence[Mark], x: Scale, width: int) -> tuple[tuple[Label, ...], str, int]:
    """Marks in lanes above the figure, from the left; one that finds no room keeps its line and its title."""
    ends = [-math.inf] * _LANES
    placed, lines, used = [], [], 0
    for mark in sorted(marks, key=lambda one: one.at):
        if not x.low <= mark.at <= x.high:
            continue
        at = x(mark.at)
        length = len(mark.text) * _LETTER_PX + 12
        lane = next((n for n in range(_LANES) if ends[n] <= at and at + length < width), None)
        text = mark.text if lane is not None else ""
        row = lane if lane is not None else 0
        ends[row] = max(ends[row], at + (length if lane is not None else 8))
        used = max(used, row + 1)
        placed.append(Label(at, 12 + 15 * row, text, kind=mark.kind, href=mark.href, title=mark.title))
        lines.append((at, 14 + 15 * row))
    foot = 18 + 15 * used
    return tuple(placed), bars((at, start, foot) for at, start in lines), used


def _ratio_strip(found: Trend, x: Scale, top: float, bottom: float, behind: float | None, sota: str) -> Strip | None:
    known = [(one.at, ratio) for one in found.shown if (ratio := _over_sota(one.point)) is not None]
    if len(known) < 2:
        return None
    limit = behind or 1.05
    values = [ratio for _, ratio in known]
    y = Scale(min(*values, 0.98), max(*values, limit * 1.01), bottom, top)
    last = values[-1]
    labels = (
        *(Label(x.start - 6, y(value), f"{value:g}", "end") for value in y.ticks[:3]),
        Label(x.end + 6, y(last), f"{last:.2f} {sota}", kind="behind" if last > limit else ""),
    )
    steps = [(x(at), y(ratio)) for at, ratio in known]
    over = _areas_over([(at, min(ratio, y(limit))) for at, ratio in steps], y(limit))
    return Strip(top, bottom, line(_few(steps)), over, y(limit), y(1.0), labels)


def _areas_over(points: Sequence[tuple[float, float]], limit_y: float) -> str:
    """The areas between a line and a limit, where the line is above it; up is less."""
    outside = [0, *(n for n, (_, at) in enumerate(points) if at >= limit_y), len(points) - 1]
    ends = [
        (start, end) for start, end in pairwise(outside) if min(one[1] for one in points[start : end + 1]) < limit_y
    ]
    return "".join(area([(at, top, limit_y) for at, top in points[start : end + 1]]) for start, end in ends)


def _overview(
    everything: Sequence[Shown], shown: Sequence[Shown], left: float, right: float, top: float, bottom: float
) -> Overview | None:
    if len(everything) <= len(shown) or not shown:
        return None
    x = Scale(everything[0].at, everything[-1].at, left, right)
    values = [one.value for one in everything]
    y = Scale(min(values), max(values), bottom - 3, top + 3)
    path = line(_few((x(one.at), y(one.value)) for one in everything))
    return Overview(top, bottom, path, x(shown[0].at), x(shown[-1].at))


def _tick(value: float, digits: str) -> str:
    """A tick with as many digits as values have, without needless zeros."""
    return f"{value:{digits}}".rstrip("0").rstrip(".") if "." in f"{value:{digits}}" else f"{value:{digits}}"


@dataclass(frozen=True)
class Sparkline:
    """A small figure of a trend, with its own range: 200 by 44 px."""

    path: str
    end: tuple[float, float]
    slower: bool


def sparkline(found: Trend) -> Sparkline | None:
    """A trend in one line; None without two values."""
    if len(found.shown) < 2:
        return None
    values = [one.value for one in found.shown]
    x = Scale(found.shown[0].at, found.shown[-1].at, 3, 150)
    y = Scale(min(values), max(values), 40, 4)
    path = line(_few((x(one.at), y(one.value)) for one in found.shown))
    last = found.shown[-1]
    return Sparkline(path, (x(last.at), y(last.value)), last.point.outcome == Outcome.REGRESSION)
