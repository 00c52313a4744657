"""The figure of a trend, for wide windows and for phones.  Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

from dashboards.drawing import Figure, Scale, apart, area, bars, dots, line, place, time_ticks, triangles
from service.domain.states import Outcome
from service.reports.charts.trends import SeriesChange, Shown, Trend, over_sota

_MOST_DOTS = 1500  # of more points, two for each px at most are drawn
_LANES = 3
_NARROW_PX = 700  # of a figure, below which its labels are short
_LETTER_PX = 6.1  # of the 11 px text in figures, about


@dataclass(frozen=True)
class Mark:
    """Something that happened to the series from outside: its stack changed, an incident was opened."""

    at: float
    text: str
    title: str
    kind: str
    href: str = ""


def across(found: Trend, width: int) -> Scale:
    """The x axis of a figure of `width` px."""
    times = [one.at for one in found.shown] or [0.0]
    margin = max((times[-1] - times[0]) * 0.015, 1800.0)
    left, right = (38.0, width - 58.0) if width < _NARROW_PX else (46.0, width - 92.0)
    return Scale(times[0] - margin, times[-1] + margin, left, right)


def draw(
    found: Trend,
    name: str = "",
    *,
    width: int,
    everything: Sequence[Shown] = (),
    others: Sequence[tuple[str, Sequence[Shown]]] = (),
    marks: Sequence[Mark] = (),
    chosen: Mapping[str, Shown] | None = None,
    behind: float = 1.05,
    from_zero: bool = False,
    sota: str = "SOTA",
) -> Figure:
    """Draw a trend in a figure of `width` px.  `behind` is the ratio to SOTA above which a series is behind."""
    narrow = width < _NARROW_PX
    x = across(found, width)
    left, right = x.start, x.end
    placed_marks, lanes = _in_lanes(marks, x, width)
    top = 18.0 + 15 * lanes + (20 if found.changes else 6)
    bottom = top + (170 if narrow else 230)
    y = Scale(*_range(found, others, from_zero), bottom, top)
    ratios = [(one.at, ratio) for one in found.shown if (ratio := over_sota(one.point)) is not None]
    strip_end = bottom + (80 if narrow else 96)
    below = (strip_end if len(ratios) > 1 else bottom) + 18
    with_overview = len(everything) > len(found.shown) > 0
    figure = Figure(width, int(below + (46 if with_overview else 8)), name, width="100%", role="group")
    picked = [(x(one.at), letter) for letter, one in (chosen or {}).items()]
    if len(picked) == 2:
        (a, _), (b, _) = picked
        figure.add("rect", kind="region", x=min(a, b), y=top, width=abs(b - a), height=bottom - top)
    figure.rows([(y(value), _tick(value, found.digits)) for value in y.ticks], left, right, gap=6)
    for moment, text in time_ticks(x.low, x.high, 4 if narrow else 8):
        figure.path("grid", bars([(x(moment), top, below - 12)]))
        figure.text(x(moment), below, text, anchor="middle")
    figure.path("spread", _bands(found, x, y))
    steps = [change for change in found.changes if x.low <= change.at <= x.high]
    for one in steps:
        figure.path(f"change {_kind(one)}", bars([(x(one.at), top - 4, bottom)]))
    figure.path("mark-line", bars((x(mark.at), 14 + 15 * lane, 18 + 15 * lanes) for mark, lane, _ in placed_marks))
    for mark, lane, text in placed_marks:
        at, link = x(mark.at), figure.within("a", href=mark.href) if mark.href else nullcontext()
        with link, figure.within("g", mark.title, kind=f"mark {mark.kind}"):
            figure.path("", dots([(at, 8 + 15 * lane)]))
            figure.text(at + 6, 12 + 15 * lane, text)
    known = [(x(shown.at), y(shown.sota)) for shown in found.shown if shown.sota is not None]
    if len(known) > 1:
        figure.path("sota-line", line(_few(known)))
    latest = not everything or not found.shown or found.shown[-1].at >= everything[-1].at
    ends = _ends(found, others, y, "" if narrow else sota, latest=latest)
    for n, (_, ones) in enumerate(others, 1):
        if ones:
            within = (one for one in ones if x.low <= one.at <= x.high)
            figure.path(f"other other-{n}", line(_few((x(one.at), y(one.value)) for one in within)))
            figure.text(right + 6, *ends[n - 1 - len(others)])
    levels = (level for level in found.levels if len(level.points) > 1)
    ends_of = [(x(level.points[0].at), y(level.value), x(level.points[-1].at)) for level in levels]
    figure.path("level", "".join(f"M{place(start)} {place(at)}H{place(end)}" for start, at, end in ends_of))
    _draw_dots(figure, found.shown, x, y)
    _draw_levels(figure, found, x, y)
    _draw_changes(figure, steps, x, top)
    for end in ends[: len(ends) - len(others)]:
        figure.text(right + 6, *end)
    for at, letter in picked:
        figure.path("picked", bars([(at, top, bottom)]))
        figure.text(at, bottom + 14, letter, "picked-name", "middle")
    if len(ratios) > 1:
        _draw_ratios(figure, ratios, x, bottom + 34, strip_end, behind, "×" if narrow else f"× {sota}")
    if with_overview:
        _draw_overview(figure, everything, found.shown, x, below + 10)
    figure.path("cursor", "")
    return figure


def _draw_dots(figure: Figure, shown: Sequence[Shown], x: Scale, y: Scale) -> None:
    """The revisions: those that were judged as dots, the others hollow with their interval."""
    placed = [(one, (x(one.at), y(one.value))) for one in shown]
    changed = (Outcome.IMPROVEMENT, Outcome.REGRESSION)
    figure.path("dot", dots(_few(at for one, at in placed if one.judged and one.point.outcome not in changed)))
    for outcome, worse in zip(changed, (False, True), strict=True):
        kind = "worse" if worse else "better"
        figure.path(kind, triangles((at for one, at in placed if one.point.outcome == outcome), up=worse))
    for one, (at, value) in placed:
        if not one.judged:
            figure.path("whisker", bars([(at, y.within(one.high or one.value), y.within(one.low or one.value))]))
            figure.add("circle", kind="hollow", cx=at, cy=value, r=2.6)


def _kind(change: SeriesChange) -> str:
    return "closed" if change.closed else "slower" if change.slower else "faster"


def _range(found: Trend, others: Sequence[tuple[str, Sequence[Shown]]], from_zero: bool) -> tuple[float, float]:
    """The ends of the y axis: all values, and the whiskers as far as half or twice the value."""
    values = [one.value for one in found.shown] + [one.value for _, ones in others for one in ones]
    for one in found.shown:
        if not one.judged and one.low is not None and one.high is not None:
            values += [max(one.low, one.value / 2), min(one.high, one.value * 2)]
        if one.sota is not None:
            values.append(one.sota)
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    spare = max((high - low) * 0.08, high * 0.004, 1e-12)
    return (0.0 if from_zero else max(0.0, low - spare)), high + spare


def _bands(found: Trend, x: Scale, y: Scale) -> str:
    paths = []
    for level in found.levels:
        if level.spread:
            low, high = level.spread
            ends = (x(level.points[0].at), x(level.points[-1].at))
            paths.append(area([(end, y(high), y(low)) for end in ends]))
    return "".join(paths)


def _draw_levels(figure: Figure, found: Trend, x: Scale, y: Scale) -> None:
    """The value of each level that has room for it, above its first points."""
    for level in found.levels[:-1]:
        text = f"{level.value:{found.digits}}"
        start, end = x(level.points[0].at), x(level.points[-1].at)
        if end - start > len(text) * _LETTER_PX:
            figure.text(start + 4, y(max(one.value for one in level.points)) - 6, text, "strong")


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


def _ends(
    found: Trend,
    others: Sequence[tuple[str, Sequence[Shown]]],
    y: Scale,
    sota: str,
    *,
    latest: bool,
) -> list[tuple[float, str, str]]:
    """The names of the lines at their end, as y, text and kind: ours, SOTA, and the other series.

    Without a name for SOTA there is room for the values alone.  Only the `latest` revision shows how it is now.
    """
    wanted = list[tuple[float, str, str]]()
    if found.shown:
        last = found.shown[-1]
        kind = "slower" if last.point.outcome == Outcome.REGRESSION else "own"
        named = ("now " if latest else "last ") if sota else ""
        wanted.append((y(last.value), f"{named}{last.value:{found.digits}}", kind))
        if last.sota is not None:
            wanted.append((y(last.sota), f"{sota} {last.sota:{found.digits}}".lstrip(), "sota"))
    for mark, (_, ones) in zip("②③④", others, strict=False):
        at = y(ones[-1].value) if ones else y.start
        wanted.append((at, f"{mark} {ones[-1].value:{found.digits}}" if ones else "", ""))
    places = apart([at for at, *_ in wanted], 13)
    return [(at, text, kind) for at, (_, text, kind) in zip(places, wanted, strict=True)]


def _draw_changes(figure: Figure, found: Sequence[SeriesChange], x: Scale, top: float) -> None:
    """The sizes of changes above their lines; the largest first, so that it always has its place."""
    taken = list[tuple[float, float]]()
    for change in sorted(found, key=lambda one: -abs(math.log(one.ratio))):
        length = (len(change.size) + 1) * _LETTER_PX
        start = min(x(change.at), x.end + 80 - length)
        if any(start < end and begin < start + length for begin, end in taken):
            continue
        taken.append((start, start + length))
        figure.text(start, top - 8, change.size, _kind(change), title=change.subject)


def _in_lanes(marks: Sequence[Mark], x: Scale, width: int) -> tuple[list[tuple[Mark, int, str]], int]:
    """Marks with their lane above the figure and their text, from the left; one without room has no text."""
    ends = [-math.inf] * _LANES
    placed = list[tuple[Mark, int, str]]()
    for mark in sorted(marks, key=lambda one: one.at):
        if not x.low <= mark.at <= x.high:
            continue
        at = x(mark.at)
        length = len(mark.text) * _LETTER_PX + 12
        lane = next((n for n in range(_LANES) if ends[n] <= at and at + length < width), None)
        row = lane or 0
        ends[row] = max(ends[row], at + (length if lane is not None else 8))
        placed.append((mark, row, mark.text if lane is not None else ""))
    return placed, max((row + 1 for _, row, _ in placed), default=0)


def _draw_ratios(
    figure: Figure, found: Sequence[tuple[float, float]], x: Scale, top: float, bottom: float, behind: float, sota: str
) -> None:
    """The ratio to SOTA below the figure."""
    values = [ratio for _, ratio in found]
    y = Scale(min(*values, 0.98), max(*values, behind * 1.01), bottom, top)
    steps = [(x(at), y(ratio)) for at, ratio in found]
    limit = y(behind)
    figure.across("grid", y(1.0), x.start, x.end)
    figure.across("limit", limit, x.start, x.end)
    figure.path("behind-area", _areas_over([(at, min(ratio, limit)) for at, ratio in steps], limit))
    figure.path("ratio", line(_few(steps)))
    for value in y.ticks[:3]:
        figure.text(x.start - 6, y(value), f"{value:g}", anchor="end")
    last = values[-1]
    figure.text(x.end + 6, y(last), f"{last:.2f} {sota}", "behind" if last > behind else "")
    wide = f"time over SOTA’s in the same session; above {behind:.2f} it is behind"
    short = f"time over SOTA’s, limit {behind:.2f}"
    figure.text(x.start, top - 6, wide if figure.width > _NARROW_PX else short, "strong")


def _areas_over(points: Sequence[tuple[float, float]], limit_y: float) -> str:
    """The areas between a line and a limit, where the line is above it; up is less."""
    outside = [0, *(n for n, (_, at) in enumerate(points) if at >= limit_y), len(points) - 1]
    ends = [
        (start, end) for start, end in pairwise(outside) if min(one[1] for one in points[start : end + 1]) < limit_y
    ]
    return "".join(area([(at, top, limit_y) for at, top in points[start : end + 1]]) for start, end in ends)


def _draw_overview(figure: Figure, everything: Sequence[Shown], shown: Sequence[Shown], of: Scale, top: float) -> None:
    """All revisions, with the window that the figure shows."""
    x = Scale(everything[0].at, everything[-1].at, of.start, of.end)
    values = [one.value for one in everything]
    y = Scale(min(values), max(values), top + 25, top + 3)
    figure.path("all", line(_few((x(one.at), y(one.value)) for one in everything)))
    start, end = x(shown[0].at), x(shown[-1].at)
    figure.add("rect", kind="window", x=start, y=top, width=max(end - start, 3), height=28)


def _tick(value: float, digits: str) -> str:
    """A tick with as many digits as values have, without needless zeros."""
    return f"{value:{digits}}".rstrip("0").rstrip(".") if "." in f"{value:{digits}}" else f"{value:{digits}}"


def sparkline(found: Trend) -> Figure | None:
    """A trend in one line, with its own range; None without two values."""
    if len(found.shown) < 2:
        return None
    values = [one.value for one in found.shown]
    x = Scale(found.shown[0].at, found.shown[-1].at, 3, 150)
    y = Scale(min(values), max(values), 40, 4)
    last = found.shown[-1]
    figure = Figure(200, 44, width="100%")
    figure.path("all", line(_few((x(one.at), y(one.value)) for one in found.shown)))
    kind = "worse" if last.point.outcome == Outcome.REGRESSION else "own"
    figure.add("circle", kind=kind, cx=x(last.at), cy=y(last.value), r=2.6)
    return figure
