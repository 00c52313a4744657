"""Line charts as plain SVG with a text alternative.  Torch-free, without a library.

Each picture has its own background, light or dark by the reader's system, because a page embeds it as an image.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 480, 310  # of a panel, in pixels
LEFT, RIGHT, TOP, BOTTOM = 58, 92, 44, 46  # of those, around the axes
LABEL_DISTANCE = 13  # pixels between two names at the ends of lines
TICK_DISTANCE = 28
MAX_COLUMNS = 2

# Light and dark; neighbours also differ in lightness, and each line has its own marker.
_COLOURS = (
    ("#0b57d0", "#8ab4f8"),
    ("#b3261e", "#ff8a80"),
    ("#0a7d4b", "#5fd39b"),
    ("#7b3fb8", "#cfa5ff"),
    ("#8a5a00", "#f0bd72"),
    ("#3f4b5b", "#b6c2d1"),
)
_MARKS = (
    '<circle cx="{x}" cy="{y}" r="3.2"/>',
    '<rect x="{x}" y="{y}" width="6" height="6" transform="translate(-3 -3)"/>',
    '<path d="M{x} {y}m0-4l3.8 6.6h-7.6z"/>',
    '<path d="M{x} {y}m0-4.2l4.2 4.2-4.2 4.2-4.2-4.2z"/>',
)

Scale = Callable[[float], float]  # from a value to pixels


@dataclass(frozen=True)
class Panel:
    """One pair of axes.  y is linear from 0; None interrupts the line at a point that was not measured."""

    title: str
    xs: Sequence[float]
    series: Mapping[str, Sequence[float | None]]
    y_label: str
    x_label: str = "columns"
    log_x: bool = True
    limit: tuple[str, float] | None = None  # a horizontal line and its name


def lines(
    path: Path,
    title: str,
    xs: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    y_label: str,
    *,
    x_label: str = "columns",
    log_x: bool = True,
    limit: tuple[str, float] | None = None,
) -> None:
    """Write a picture of one panel.  `series`: by name of the line, a y or None for each x.

    Raises ValueError if the numbers of points differ, or if there is nothing to draw.
    """
    panels(path, title, [Panel("", xs, series, y_label, x_label, log_x, limit)])


def panels(path: Path, title: str, wanted: Sequence[Panel]) -> None:
    """Write a picture of several panels in two columns; a name has the same colour in all of them.

    Raises ValueError as `lines` does.
    """
    path.write_text(svg(title, wanted))


def svg(title: str, wanted: Sequence[Panel]) -> str:
    """The SVG.  Raises ValueError as `lines` does."""
    for panel in wanted:
        _check(panel)
    names = list(dict.fromkeys(name for panel in wanted for name in panel.series))
    columns = min(MAX_COLUMNS, len(wanted))
    width, height = WIDTH * columns, 30 + HEIGHT * math.ceil(len(wanted) / columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(" ".join(map(describe, wanted)))}</desc>',
        f"<style>{_style(len(names))}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text class="title" x="{LEFT}" y="26">{escape(title)}</text>',
    ]
    for number, panel in enumerate(wanted):
        x, y = number % columns * WIDTH, 30 + number // columns * HEIGHT
        parts.append(f'<g transform="translate({x} {y})">')
        parts += _panel(panel, names)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def describe(panel: Panel) -> str:
    """The text alternative of a panel: where each line begins and ends."""
    parts = [f"{panel.title or panel.y_label}, {panel.y_label} against {panel.x_label}:"]
    for name, ys in panel.series.items():
        points = _points(panel, ys)
        if points:
            ends = " to ".join(f"{y:,.4g} at {x:,g}" for x, y in (points[0], points[-1]))
            parts.append(f"{name} {ends};")
    if panel.limit:
        parts.append(f"{panel.limit[0]} {panel.limit[1]:,.4g};")
    return " ".join(parts).rstrip(";") + "."


def spread_out(wanted: Sequence[float], distance: float, lowest: float, highest: float) -> list[float]:
    """Positions near the wanted ones, in the same order, at least `distance` apart and at most `highest`.

    At least `lowest` if all of them fit.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed: dict[int, float] = {}
    next_free = lowest
    for index in order:
        placed[index] = max(wanted[index], next_free)
        next_free = placed[index] + distance
    next_free = highest
    for index in reversed(order):
        placed[index] = min(placed[index], next_free)
        next_free = placed[index] - distance
    return [placed[index] for index in range(len(wanted))]


def steps(highest: float) -> list[float]:
    """Four to six round numbers from 0 to at least `highest`."""
    step = 10.0 ** math.floor(math.log10(highest / 4))
    size = next(factor for factor in (1, 2, 2.5, 5, 10) if highest / (factor * step) <= 5) * step
    return [round(size * number, 10) for number in range(math.ceil(highest / size - 1e-9) + 1)]


# -- one panel -------------------------------------------------------------------------------------------------------


def _panel(panel: Panel, names: Sequence[str]) -> list[str]:
    values = [y for ys in panel.series.values() for y in ys if y is not None]
    ticks = steps(max([*values, panel.limit[1] if panel.limit else 0.0]))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def down(y: float) -> float:
        return round(bottom - y / ticks[-1] * (bottom - TOP), 1)

    across = _across(panel)
    parts = [f'<text class="name" x="{LEFT}" y="22">{escape(panel.title)}</text>'] if panel.title else []
    parts.append(f'<text class="quiet" x="{LEFT}" y="{TOP - 7}">{escape(panel.y_label)}</text>')
    for tick in ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {down(tick)}H{right}"/>')
        parts.append(f'<text class="quiet end" x="{LEFT - 6}" y="{down(tick) + 4}">{tick:,g}</text>')
    last = -math.inf
    for x in panel.xs:
        if across(x) - last >= TICK_DISTANCE:
            last = across(x)
            parts.append(f'<text class="quiet small middle" x="{last}" y="{bottom + 16}">{_short(x)}</text>')
    parts.append(
        f'<text class="quiet middle" x="{(LEFT + right) / 2}" y="{bottom + 34}">{escape(panel.x_label)}</text>'
    )
    ends: list[tuple[str, str, float]] = []  # name, class, wanted place
    if panel.limit:
        name, y = panel.limit
        parts.append(f'<path class="limit" d="M{LEFT} {down(y)}H{right}"/>')
        ends.append((name, "quiet", down(y)))
    for name, ys in panel.series.items():
        number = names.index(name)
        parts += _line(panel, ys, number, across, down)
        if points := _points(panel, ys):
            ends.append((name, f"c{number % len(_COLOURS)}", down(points[-1][1])))
    for (name, kind, _), y in zip(ends, spread_out([end[2] for end in ends], LABEL_DISTANCE, TOP, bottom), strict=True):
        parts.append(f'<text class="label {kind}" x="{right + 8}" y="{round(y + 4, 1)}">{escape(name)}</text>')
    return parts


def _line(panel: Panel, ys: Sequence[float | None], number: int, across: Scale, down: Scale) -> list[str]:
    path = ""
    pen_is_up = True
    marks = []
    for x, y in zip(panel.xs, ys, strict=True):
        if y is not None:
            path += f"{'M' if pen_is_up else 'L'}{across(x)} {down(y)}"
            marks.append(_MARKS[number % len(_MARKS)].format(x=across(x), y=down(y)))
        pen_is_up = y is None
    colour = number % len(_COLOURS)
    return [f'<path class="line c{colour}" d="{path}"/>', f'<g class="c{colour}">{"".join(marks)}</g>'] if path else []


def _across(panel: Panel) -> Scale:
    scale: Scale = math.log2 if panel.log_x else float
    first, last = scale(min(panel.xs)), scale(max(panel.xs))
    return lambda x: round(LEFT + 10 + (scale(x) - first) / ((last - first) or 1) * (WIDTH - RIGHT - LEFT - 20), 1)


def _points(panel: Panel, ys: Sequence[float | None]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(panel.xs, ys, strict=True) if y is not None]


def _short(x: float) -> str:
    """4K for 4096: numbers of columns and rows are often multiples of 1024."""
    return f"{int(x) // 1024}K" if x >= 1024 and x % 1024 == 0 else f"{x:g}"


def _check(panel: Panel) -> None:
    for name, ys in panel.series.items():
        if len(ys) != len(panel.xs):
            raise ValueError(f"{name!r} has {len(ys)} points for {len(panel.xs)} xs")
    if not any(y is not None and y > 0 for ys in panel.series.values() for y in ys):
        raise ValueError(f"{panel.title or panel.y_label!r} has no positive value to draw")


def _style(count: int) -> str:
    light, dark = (
        "".join(f".c{number}{{--c:{_COLOURS[number][theme]}}}" for number in range(min(count, len(_COLOURS))))
        for theme in (0, 1)
    )
    return (
        "svg{--ink:#1b2430;--quiet:#556273;--hair:#dfe4ea;--page:#fff;font:12px system-ui,sans-serif}"
        f"{light}@media(prefers-color-scheme:dark){{"
        f"svg{{--ink:#e3e8ee;--quiet:#9aa7b6;--hair:#2b343f;--page:#12171d}}{dark}}}"
        "text{fill:var(--ink)}.title{font-size:15px;font-weight:600}.name{font-weight:600}.quiet{fill:var(--quiet)}"
        ".small{font-size:11px}.end{text-anchor:end}.middle{text-anchor:middle}.page{fill:var(--page)}.grid{stroke:var(--hair)}"
        ".limit{stroke:var(--quiet);stroke-dasharray:5 4;stroke-width:1.5}"
        "[class^=c]{fill:var(--c)}.line{fill:none;stroke:var(--c);stroke-width:2}"
        '.label[class*=" c"]{fill:var(--c);font-weight:600}'
    )
