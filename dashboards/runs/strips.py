"""Figures of a run as SVG: the interval of a line, the ticks of a folded group, all cases as dots, rounds.  Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import geometric_mean, median

from markupsafe import Markup

from dashboards.drawing import Figure, Scale, bars, dots, micros, place
from dashboards.runs.lines import KINDS, CaseGroup, CaseLine, LineKind
from kernels.cases import Role
from service.domain.metrics import axis_unit, digits, metric_of
from service.domain.states import Rounds
from service.ledger.reading.brief import CaseSamples

WIDTH = 1000  # of the drawing of a line, which is stretched to its cell
HEIGHT = 22
MIDDLE = HEIGHT / 2
_MOST = 8.0  # a case that takes ten times as long must not hide what the others do
_TICKS_PX = 380  # about the width of the cell
MAX_LINKED = 300  # dots, each of three nodes; a page has at most 3,000
_LINE_MARKS = {LineKind.SLOWER: "slow", LineKind.FASTER: "fast"}


@dataclass(frozen=True)
class RatioAxis:
    """The logarithmic axis that all lines share, and the limits between which changes do not matter."""

    scale: Scale
    ticks: Sequence[float]
    changes: Sequence[float]  # each smallest change of a line: its band has an id
    usual: float  # of the most lines

    @classmethod
    def of(cls, lines: Sequence[CaseLine]) -> "RatioAxis":
        """An axis on which every ratio is seen, and noise never looks like a change."""
        changes = Counter(line.smallest_change for line in lines) or Counter([0.02])
        usual = changes.most_common(1)[0][0]
        ends = [1 / (1 + 2.5 * usual), 1 + 2.5 * usual]
        ends += [ratio for line in lines if (ratio := line.row.ratio)]
        low, high = max(min(ends), 1 / _MOST), min(max(ends), _MOST)
        margin = (high / low) ** 0.02
        scale = Scale(low / margin, high * margin, 0, WIDTH, log=True)
        return cls(scale, _ticks(replace(scale, end=_TICKS_PX), 30), list(changes), usual)

    def band_id(self, change: float) -> str:
        return f"band{self.changes.index(change)}"

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Position as a percentage of the width, and text of each tick."""
        digits_needed = 2 if self.scale.high / self.scale.low < 4 else 1
        return [(f"{self.scale(tick) * 100 / WIDTH:.2f}%", f"{tick:.{digits_needed}f}") for tick in self.ticks]

    @property
    def grid(self) -> str:
        return bars((self.scale(tick), 0, HEIGHT) for tick in self.ticks if tick != 1)

    @property
    def level(self) -> str:
        return bars([(self.scale(1.0), 0, HEIGHT)])

    def band(self, change: float) -> tuple[str, str]:
        """Left end and width of the band of changes that do not matter."""
        left, right = self.scale.within(1 / (1 + change)), self.scale.within(1 + change)
        return place(left), place(right - left)


def _ticks(scale: Scale, gap: float) -> list[float]:
    """1, and what does not touch it: nothing within `gap` px."""
    return sorted({1.0, *(tick for tick in scale.ticks if abs(scale(tick) - scale(1.0)) > gap)})


def interval(line: CaseLine, axis: RatioAxis) -> Figure | None:
    """The interval of a ratio and the ratio as a dot, over the grid."""
    row = line.row
    if row.ratio is None:
        return None
    figure = _over_band(line, axis, f"iv {_LINE_MARKS.get(line.kind, 'flat')}")
    low, high = (end if end is not None else row.ratio for end in (row.low, row.high))
    figure.interval(axis.scale, low, row.ratio, high)
    return figure


def tick_marks(lines: Sequence[CaseLine], axis: RatioAxis, tone: str = "") -> Figure | None:
    """Every ratio of a folded group as a tick on the axis of the lines."""
    found = [(axis.scale.within(ratio), 6.0, HEIGHT - 6.0) for line in lines if (ratio := line.row.ratio)]
    if not found:
        return None
    figure = _over_band(lines[0], axis, f"tk {tone}")
    figure.path("", bars(found))
    return figure


def _over_band(line: CaseLine, axis: RatioAxis, kind: str) -> Figure:
    figure = Figure(WIDTH, HEIGHT, kind=kind, preserveAspectRatio="none")
    figure.add("use", href=f"#{axis.band_id(line.smallest_change)}")
    return figure


def dot_plot(
    lines: Sequence[CaseLine],
    groups: Sequence[CaseGroup],
    width: int,
    height: int,
    said: Iterable[str] = (),
    address: str = "",
) -> Figure | None:
    """All cases on one axis: a column of dots for each px or so, and a label for what moved and what did not.

    `said` are the counts of the verdicts in words.  With the `address` of the run each dot leads to its case; only the
    slowest is a stop of Tab, and arrow keys go on from there.  None where fewer than two have a ratio.
    """
    measured = [line for line in lines if line.row.ratio]
    if len(measured) < 2:
        return None
    wide = width > 600
    axis = RatioAxis.of(measured)
    scale, top, bottom = replace(axis.scale, start=12, end=width - 12), 8.0, height - 26.0
    dot = 4.4 if wide else 3.2
    columns = defaultdict[int, list[CaseLine]](list)
    for line in sorted(measured, key=lambda one: one.kind is not LineKind.STEADY):
        columns[round(scale.within(line.row.ratio or 1.0) / (dot + 1))].append(line)
    step = min(dot + 0.6, (bottom - top) / max(map(len, columns.values())))
    placed = [
        (line, (column * (dot + 1), bottom - height_in * step))
        for column, ones in sorted(columns.items())
        for height_in, line in enumerate(ones)
    ]
    name = f"Ratio of each case: {', '.join(said)}; the table below has the same numbers."
    role = {"role": "group"} if address else {}
    figure = Figure(width, height, name, width="100%", kind="dots" if wide else "dots small", **role)
    left, right = scale.within(1 / (1 + axis.usual)), scale.within(1 + axis.usual)
    figure.add("rect", kind="ax-band", x=left, y=4, width=right - left, height=height - 26)
    figure.path("ax-level", bars([(scale(1.0), 4, height - 22)]))
    figure.columns([(scale(tick), f"{tick:.2f}") for tick in _ticks(scale, 34)], height - 6)
    linked = _linked(measured) if address else set()
    for tone in ("flat", "fast", "slow"):
        of_tone = [(line, at) for line, at in placed if _LINE_MARKS.get(line.kind, "flat") == tone]
        figure.path(f"dot {tone}", dots(at for line, at in of_tone if line.row.key not in linked))
    slowest = max(measured, key=lambda line: line.row.ratio or 0.0)
    for line, at in placed:
        if line.row.key in linked:
            stop = "0" if line is slowest else "-1"
            title = f"{line.row.case} {line.row.provider}: {line.row.ratio:.3f}, {KINDS[line.kind].word}"
            with figure.within("a", title, href=f"{address}/{line.path}", tabindex=stop):
                figure.path(f"dot {_LINE_MARKS.get(line.kind, 'flat')}", dots([at]))
    if wide:
        _label(figure, measured, groups, scale, right)
    return figure


def _linked(lines: Sequence[CaseLine]) -> set[str]:
    """The keys of those that lead to their case: all, or the furthest from 1 where there are too many for a page."""
    furthest = sorted(lines, key=lambda line: -abs(math.log(line.row.ratio or 1.0)))
    return {line.row.key for line in furthest[:MAX_LINKED]}


def _label(
    figure: Figure, lines: Sequence[CaseLine], groups: Sequence[CaseGroup], scale: Scale, band_end: float
) -> None:
    """Label the steady cases next to the band, and those that moved beyond it, as far as there is room."""
    steady = [line.row.ratio or 1.0 for line in lines if line.kind is LineKind.STEADY]
    room = figure.width - band_end
    slower = [group for group in groups if group.kind is LineKind.SLOWER]
    if steady and room > 200:
        figure.text(band_end + 10, 18, f"{len(steady)} steady", "strong flat")
        figure.text(band_end + 10, 33, f"geomean {geometric_mean(steady):.3f}")
    if slower and room > 500:
        ratios = [ratio for group in slower for ratio in group.ratios]
        mean = geometric_mean(ratios)
        start = max(band_end + 150, min(scale(mean), figure.width - 240))
        text = f"geomean {mean:.3f}" + (f", worst {max(ratios):.3f}" if len(ratios) > 1 else "")
        figure.text(start, 18, f"{len(ratios)} slower{_causes(slower)}", "strong slow")
        figure.text(start, 33, text)


def _causes(slower: Sequence[CaseGroup]) -> str:
    if sum(len(group.lines) for group in slower) == 1:
        return ""
    if len(slower) > 1:
        return f", {len(slower)} causes"
    return ", one cause" if one_cause(slower[0]) else ""


def one_cause(group: CaseGroup) -> bool:
    """Whether an incident or a known cause joins the lines of a group."""
    return len(group.lines) > 1 and (group.incident is not None or group.cause is not None)


# -- the rounds of one case


_NAMES = {
    Role.PARENT: "baseline",
    Role.HEAD: "head",
    Role.CONTROL: "A/A copy",
    Role.LAST_GOOD: "last good",
    Role.PINNED: "pinned",
}
_TONES = {Role.HEAD: "head", Role.CONTROL: "copy", Role.SOTA: "sota", Role.RIVAL: "copy"}
_ROUNDS_WIDTH, _LEFT, _TRIAL_PX, _GAP_PX = 460, 96, 6.0, 12.0
_FAR = 1.6  # a contender this many times off the head and its baseline would leave no room for their rounds


def rounds_figure(case: str, contenders: Sequence[CaseSamples]) -> Markup | None:
    """The rounds of contenders with their heading and their medians in the run; None if no rounds were stored."""
    known = [one for one in contenders if _every(one.trials)]
    if not known:
        return None
    order = list(_NAMES)
    known.sort(key=lambda one: (order.index(one.role) if one.role in _NAMES else len(order), one.provider))
    # The median of a run is that of its trials, not of all rounds; what has no valid time has its rounds alone.
    medians = [median(_every(one.trials)) if one.median is None else one.median for one in known]
    # Head and baseline share the axis with who is not far from them.
    own = [middle for one, middle in zip(known, medians, strict=True) if one.role in (Role.HEAD, Role.PARENT)]
    least, most = min(own or medians[:1]) / _FAR, max(own or medians[:1]) * _FAR
    near = {n for n, middle in enumerate(medians) if least <= middle <= most}
    values = [value for n, one in enumerate(known) if n in near for value in _every(one.trials)]
    divisor, unit = axis_unit(max(values), metric_of(case))
    low, high = min(values) / divisor, max(values) / divisor
    margin = max((high - low) * 0.04, abs(high) * 1e-4) or 0.5  # counts may all be 0
    scale = Scale(low - margin, high + margin, _LEFT, _ROUNDS_WIDTH - 12)
    rows = [max(2, len(one.trials)) if n in near else 1 for n, one in enumerate(known)]
    tops = list(accumulate((_TRIAL_PX * some + _GAP_PX for some in rows), initial=6.0))
    middles = [middle / divisor for middle in medians]
    names = [_NAMES.get(one.role, one.provider) for one in known]
    texts = [micros(one) if unit == "µs" else digits(one) for one in middles]  # as the table of cases has them
    said = ", ".join(f"{name} {text} {unit}" for name, text in zip(names, texts, strict=True))
    name = f"Rounds, with the medians of the run: {said}"
    figure = Figure(_ROUNDS_WIDTH, math.ceil(tops[-1] + 20), name, width="100%", kind="rounds")
    span = scale.high - scale.low
    decimals = 0 if span >= 10 else 1 if span >= 1 else 2 if span >= 0.1 else 3
    for n, tick in enumerate(scale.ticks):
        figure.path("ax-grid", bars([(scale(tick), 4, figure.height - 20)]))
        figure.columns([(scale(tick), f"{tick:,.{decimals}f}{'' if n else f' {unit}'}")], figure.height - 6)
    for n, one in enumerate(known):
        y, beyond = tops[n], n not in near
        ticks = [
            (scale(taken / divisor), y + row * _TRIAL_PX, y + row * _TRIAL_PX + 5)
            for row, trial in enumerate(one.trials)
            for taken in trial
            if taken is not None and not beyond
        ]
        places = [x for x, _, _ in ticks] or [_LEFT]
        right = beyond or max(places) < _ROUNDS_WIDTH - 70
        at = _LEFT + 4 if beyond else max(places) + 7 if right else min(places) - 7
        centre = y + rows[n] * _TRIAL_PX / 2 + 3.5
        figure.text(90, centre, names[n][:14], "ink", "end")
        figure.path(f"st {_TONES.get(one.role, 'base')}", bars(ticks))
        text = f"→ {texts[n]}" if beyond else texts[n]
        figure.text(at, centre, text, "strong", "" if right else "end")
    longest = max(len(one.trials) for one in known)
    heading = Markup(
        '<h3>Every round of {} trial{} <span class="quiet">one tick a round, one line a trial; the numbers are the '
        "medians of the run</span></h3>"
    )
    return heading.format(longest, "s" * (longest != 1)) + figure


def _every(trials: Sequence[Rounds]) -> list[float]:
    return [taken for trial in trials for taken in trial if taken is not None]
