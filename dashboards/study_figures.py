"""The figures of a study: lines over a logarithmic x axis, each with its name at its end.  Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dashboards.boards import short_number, spread_labels
from dashboards.drawing import Scale, dots, line, ticks
from kernels.studies.study import StudyFigure

WIDTH, HEIGHT = 500, 270
LEFT, RIGHT, TOP, BOTTOM = 48.0, 352.0, 10.0, 222.0
_LABEL = 13.0  # px between names
_WIDE = 0.5  # share of the largest value, above which the y axis need not begin at 0

Point = tuple[float, float]


@dataclass(frozen=True)
class ChartLine:
    """One arm: its path and dots, and where its name is."""

    name: str
    path: str
    dots: str
    y: float


@dataclass(frozen=True)
class StudyChart:
    """A figure of WIDTH by HEIGHT px."""

    title: str
    x_label: str
    y_label: str
    columns: Sequence[tuple[float, str]]
    grid: Sequence[tuple[float, str]]
    lines: Sequence[ChartLine]
    limit: tuple[str, float] | None  # its name and y


def chart(figure: StudyFigure) -> StudyChart | None:
    """Draw a figure; None if nothing of it was measured."""
    measured = {name: ys for name, ys in figure.series.items() if any(one is not None for one in ys)}
    if not measured or not figure.xs:
        return None
    x = Scale(min(figure.xs), max(figure.xs), LEFT, RIGHT, log=True)
    y = _y_scale([one for ys in measured.values() for one in ys if one is not None], figure.limit)
    runs = {name: list(_runs(figure.xs, ys, x, y)) for name, ys in measured.items()}
    places = _spread({name: found[-1][-1][1] for name, found in runs.items()})
    return StudyChart(
        figure.title,
        figure.x_label,
        figure.y_label,
        spread_labels([(x(value), _short(value), int(value)) for value in figure.xs]),
        [(y(value), f"{value:,g}") for value in ticks(y.low, y.high, 5)],
        [
            ChartLine(
                name,
                "".join(line(run) for run in found if len(run) > 1),
                dots(point for run in found for point in run),
                places[name],
            )
            for name, found in runs.items()
        ],
        (figure.limit[0], y(figure.limit[1])) if figure.limit else None,
    )


def _y_scale(values: Sequence[float], limit: tuple[str, float] | None) -> Scale:
    """From 0, unless all values are so close to each other that nothing could be seen."""
    every = [*values, limit[1]] if limit else list(values)
    low, high = min(every), max(every)
    if low < _WIDE * high:
        return Scale(min(0.0, low), high * 1.05, BOTTOM, TOP)
    margin = 0.1 * (high - low) or 0.05 * high
    return Scale(low - margin, high + margin, BOTTOM, TOP)


def _runs(xs: Sequence[float], ys: Sequence[float | None], x: Scale, y: Scale) -> Iterator[list[Point]]:
    """The parts of a line between values that are missing."""
    run: list[Point] = []
    for at, value in zip(xs, ys, strict=False):
        if value is not None:
            run.append((x(at), y(value)))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _spread(ends: Mapping[str, float]) -> dict[str, float]:
    """Places of names near the ends of their lines that do not touch."""
    places: dict[str, float] = {}
    last = TOP - _LABEL
    for name in sorted(ends, key=lambda one: ends[one]):
        last = places[name] = max(ends[name], last + _LABEL)
    room = BOTTOM + 4.0
    for name in reversed(places):
        places[name] = room = min(places[name], room)
        room -= _LABEL
    return places


def _short(value: float) -> str:
    return short_number(int(value)) if value == int(value) else f"{value:g}"
