"""Figures of a run as SVG: the interval of a line, the ticks of a folded group, all cases as dots, rounds.  Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from dashboards.drawing import Scale, bars, dots, place
from dashboards.runs.lines import CaseGroup, CaseLine, LineKind
from kernels.cases import Role
from service.domain.metrics import axis_unit, digits, metric_of
from service.domain.states import Rounds

WIDTH = 1000  # of the drawing of a line, which is stretched to its cell
HEIGHT = 22
MIDDLE = HEIGHT / 2
_MOST = 8.0  # a case that takes ten times as long must not hide what the others do
_TICKS_PX = 380  # about the width of the cell
_LINE_MARKS = {LineKind.SLOWER: "slow", LineKind.FASTER: "fast"}


@dataclass(frozen=True)
class RatioAxis:
    """The logarithmic axis that all lines share, and the limits between which changes do not matter."""

    scale: Scale
    ticks: tuple[float, ...]
    changes: tuple[float, ...]  # each smallest change of a line: its band has an id

    @classmethod
    def of(cls, lines: Sequence[CaseLine]) -> "RatioAxis":
        """An axis on which every ratio is seen, and noise never looks like a change."""
        changes = tuple(dict.fromkeys(line.smallest_change for line in lines)) or (0.02,)
        usual = Counter(line.smallest_change for line in lines).most_common(1)[0][0] if lines else 0.02
        ends = [1 / (1 + 2.5 * usual), 1 + 2.5 * usual]
        ends += [ratio for line in lines if (ratio := line.row.ratio)]
        low, high = max(min(ends), 1 / _MOST), min(max(ends), _MOST)
        margin = (high / low) ** 0.02
        scale = Scale(low / margin, high * margin, 0, WIDTH, log=True)
        px = Scale(scale.low, scale.high, 0, _TICKS_PX, log=True)
        marks = {tick: px(tick) for tick in px.ticks}
        # 1 is always marked; what would touch it is not.
        ticks = tuple(tick for tick, at in marks.items() if tick == 1 or abs(at - px(1.0)) > 30)
        return cls(scale, tuple(sorted({1.0, *ticks})), changes)

    def band_id(self, change: float) -> str:
        return f"band{self.changes.index(change)}"

    def share(self, ratio: float) -> str:
        """A position as a percentage of the width."""
        return f"{self.scale.within(ratio) * 100 / WIDTH:.2f}%"

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Position and text of each tick."""
        digits_needed = 2 if self.scale.high / self.scale.low < 4 else 1
        return [(self.share(tick), f"{tick:.{digits_needed}f}") for tick in self.ticks]

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


def interval(line: CaseLine, axis: RatioAxis) -> Markup:
    """The interval of a ratio and the ratio as a dot, over the grid."""
    row = line.row
    if row.ratio is None:
        return Markup("")
    at = place(axis.scale.within(row.ratio))
    low, high = (axis.scale.within(end if end is not None else row.ratio) for end in (row.low, row.high))
    tone = _LINE_MARKS.get(line.kind, "flat")
    return Markup(
        '<svg viewBox="0 0 {w} {h}" preserveAspectRatio="none" class="iv {tone}" aria-hidden="true">'
        '<use href="#{band}"/><path d="M{low} {y}H{high}"/><path class="o" d="M{at} {y}h0"/></svg>'
    ).format(
        w=WIDTH, h=HEIGHT, y=place(MIDDLE), tone=tone, band=axis.band_id(line.smallest_change),
        low=place(low), high=place(high), at=at,
    )  # fmt: skip


def tick_marks(lines: Sequence[CaseLine], axis: RatioAxis, tone: str = "") -> Markup:
    """Every ratio of a folded group as a tick on the axis of the lines."""
    found = [(axis.scale.within(ratio), 6.0, HEIGHT - 6.0) for line in lines if (ratio := line.row.ratio)]
    if not found:
        return Markup("")
    return Markup(
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" class="tk {}" aria-hidden="true">'
        '<use href="#{}"/><path d="{}"/></svg>'
    ).format(WIDTH, HEIGHT, tone, axis.band_id(lines[0].smallest_change), bars(found))


# -- all cases as dots


@dataclass(frozen=True)
class DotPlot:
    """All ratios of a run: a column of dots for each px or so, and a label for what moved and what did not."""

    width: int
    height: int
    band: tuple[str, str]
    level: str
    ticks: tuple[tuple[str, str], ...]  # position and text
    paths: tuple[tuple[str, str], ...]  # class and path, what is steady first
    labels: tuple["DotLabel", ...]
    dot: float

    @property
    def base(self) -> float:
        return self.height - 22


@dataclass(frozen=True)
class DotLabel:
    """Two lines of text above the dots that they are about."""

    x: str
    anchor: str
    head: str
    text: str
    tone: str


def dot_plot(lines: Sequence[CaseLine], groups: Sequence[CaseGroup], width: int, height: int) -> DotPlot | None:
    """All cases on one axis; None where fewer than two have a ratio."""
    measured = [line for line in lines if line.row.ratio]
    if len(measured) < 2:
        return None
    axis = RatioAxis.of(measured)
    scale = Scale(axis.scale.low, axis.scale.high, 12, width - 12, log=True)
    bottom, top = height - 26.0, 8.0
    dot = 4.4 if width > 600 else 3.2
    columns = defaultdict[int, list[CaseLine]](list)
    for line in sorted(measured, key=lambda one: one.kind is not LineKind.STEADY):
        columns[round(scale.within(line.row.ratio or 1.0) / (dot + 1))].append(line)
    tallest = max(map(len, columns.values()))
    step = min(dot + 0.6, (bottom - top) / tallest)
    by_tone = defaultdict[str, list[tuple[float, float]]](list)
    for column, members in sorted(columns.items()):
        for height_in, line in enumerate(members):
            by_tone[_LINE_MARKS.get(line.kind, "flat")].append((column * (dot + 1), bottom - height_in * step))
    usual = Counter(line.smallest_change for line in measured).most_common(1)[0][0]
    left, right = scale.within(1 / (1 + usual)), scale.within(1 + usual)
    px = Scale(scale.low, scale.high, 12, width - 12, log=True)
    marked = [tick for tick in px.ticks if tick == 1 or abs(px(tick) - px(1.0)) > 34]
    ticks = tuple((place(scale(tick)), f"{tick:.2f}") for tick in sorted({1.0, *marked}))
    tones = sorted(by_tone, key=("flat", "fast", "slow").index)
    return DotPlot(
        width=width,
        height=height,
        band=(place(left), place(right - left)),
        level=bars([(scale(1.0), 4, height - 22)]),
        ticks=ticks,
        paths=tuple((tone, dots(by_tone[tone])) for tone in tones),
        labels=_labels(measured, groups, scale, width, right) if width > 600 else (),
        dot=dot,
    )


def _labels(
    lines: Sequence[CaseLine], groups: Sequence[CaseGroup], scale: Scale, width: int, band_end: float
) -> tuple[DotLabel, ...]:
    """Label the steady cases next to the band, and those that moved beyond it, as far as there is room."""
    found = []
    steady = [line.row.ratio or 1.0 for line in lines if line.kind is LineKind.STEADY]
    room = width - band_end
    slower = [group for group in groups if group.kind is LineKind.SLOWER]
    if steady and room > 200:
        mean = math.exp(sum(map(math.log, steady)) / len(steady))
        found.append(DotLabel(place(band_end + 10), "start", f"{len(steady)} steady", f"geomean {mean:.3f}", "flat"))
    if slower and room > 500:
        ratios = [ratio for group in slower for ratio in group.ratios]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        causes = _causes(slower)
        text = f"geomean {mean:.3f}" + (f", worst {max(ratios):.3f}" if len(ratios) > 1 else "")
        start = max(band_end + 150, min(scale(mean), width - 240))
        found.append(DotLabel(place(start), "start", f"{len(ratios)} slower{causes}", text, "slow"))
    return tuple(found)


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


@dataclass(frozen=True)
class RoundStrip:
    """The rounds of one contender: a line for each trial, a tick for each round."""

    name: str
    tone: str
    path: str
    top: float
    label_y: str
    label_x: str
    anchor: str
    text: str
    beyond: bool  # too far from the others to be drawn


@dataclass(frozen=True)
class RoundsFigure:
    """All contenders of a case on one axis."""

    width: int
    height: int
    ticks: tuple[tuple[str, str], ...]
    strips: tuple[RoundStrip, ...]
    trials: int
    said: str  # the same in words


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


def rounds_figure(case: str, contenders: Sequence[tuple[Role, str, Sequence[Rounds]]]) -> RoundsFigure | None:
    """The rounds of contenders (role, provider, rounds of each trial); None where nothing was stored."""
    known = [(role, who, trials) for role, who, trials in contenders if _every(trials)]
    if not known:
        return None
    known.sort(key=lambda one: (list(_NAMES).index(one[0]) if one[0] in _NAMES else len(_NAMES), one[1]))
    medians = {n: median(_every(trials)) for n, (_, _, trials) in enumerate(known)}
    near = _near(known, medians)
    values = [value for n, (_, _, trials) in enumerate(known) if n in near for value in _every(trials)]
    divisor, unit = axis_unit(max(values), metric_of(case))
    low, high = min(values) / divisor, max(values) / divisor
    margin = max((high - low) * 0.04, abs(high) * 1e-4) or 0.5  # counts may all be 0
    scale = Scale(low - margin, high + margin, _LEFT, _ROUNDS_WIDTH - 12)
    strips, y = [], 6.0
    for n, (role, who, trials) in enumerate(known):
        strip = _strip(role, who, trials, medians[n] / divisor, divisor, scale, y, beyond=n not in near)
        strips.append(strip)
        y += _TRIAL_PX * (1 if strip.beyond else max(2, len(trials))) + _GAP_PX
    ticks = [(place(scale(tick)), _tick(tick, scale)) for tick in scale.ticks]
    ticks = [(x, f"{text} {unit}" if n == 0 else text) for n, (x, text) in enumerate(ticks)]
    said = ", ".join(f"{strip.name} {strip.text} {unit}" for strip in strips)
    return RoundsFigure(
        _ROUNDS_WIDTH, math.ceil(y + 20), tuple(ticks), tuple(strips), max(len(one[2]) for one in known), said
    )


def _strip(
    role: Role,
    who: str,
    trials: Sequence[Rounds],
    middle: float,
    divisor: float,
    scale: Scale,
    y: float,
    *,
    beyond: bool,
) -> RoundStrip:
    ticks = [
        (scale(taken / divisor), y + n * _TRIAL_PX, y + n * _TRIAL_PX + 5)
        for n, trial in enumerate(trials)
        for taken in trial
        if taken is not None and not beyond
    ]
    rows = 1 if beyond else max(2, len(trials))
    centre = y + rows * _TRIAL_PX / 2 + 3.5
    right_end = max((x for x, _, _ in ticks), default=_LEFT)
    left_end = min((x for x, _, _ in ticks), default=_LEFT)
    fits_right = right_end < _ROUNDS_WIDTH - 70
    return RoundStrip(
        name=_NAMES.get(role, who),
        tone=_TONES.get(role, "base"),
        path=bars(ticks),
        top=y,
        label_y=place(centre),
        label_x=place(_LEFT + 4 if beyond else right_end + 7 if fits_right else left_end - 7),
        anchor="start" if beyond or fits_right else "end",
        text=digits(middle) if middle < 10 or middle >= 1000 else f"{middle:.1f}",
        beyond=beyond,
    )


def _near(known: Sequence[tuple[Role, str, Sequence[Rounds]]], medians: Mapping[int, float]) -> set[int]:
    """The contenders that share the axis: head and baseline, and who is not far from them."""
    own = [medians[n] for n, (role, _, _) in enumerate(known) if role in (Role.HEAD, Role.PARENT)] or [medians[0]]
    low, high = min(own) / _FAR, max(own) * _FAR
    return {n for n, middle in medians.items() if low <= middle <= high}


def _every(trials: Sequence[Rounds]) -> list[float]:
    return [taken for trial in trials for taken in trial if taken is not None]


def _tick(value: float, scale: Scale) -> str:
    span = scale.high - scale.low
    decimals = 0 if span >= 10 else 1 if span >= 1 else 2 if span >= 0.1 else 3
    return f"{value:,.{decimals}f}"
