"""The trend of a series as a figure to explore.  Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernels.cases import Metric
from kernelwatch.documents.figures import FigureDocument
from service.domain.metrics import ratio_text
from service.domain.states import Outcome
from service.domain.text import DAY_S, interval, short
from service.reports.charts.trends import SeriesChange, Shown, Trend, over_sota
from service.reports.figures.frame import (
    BUTTON,
    FASTER,
    OTHERS,
    OWN,
    QUIET,
    SLOWER,
    SOTA,
    Commit,
    axis,
    axis_menu,
    escaped,
    figure,
    instant,
)

_WINDOWS = ((1, "day", "1 d"), (7, "day", "7 d"), (30, "day", "30 d"), (110, "day", "110 d"), (1, "year", "1 y"))
_MARKS: Mapping[str, tuple[str, str, int]] = {  # symbol, colour, px
    Outcome.REGRESSION: ("triangle-up", SLOWER, 10),
    Outcome.IMPROVEMENT: ("triangle-down", FASTER, 10),
}


def trend_figure(
    drawn: Trend,
    metric: Metric,
    title: str,
    *,
    sota: str = "SOTA",
    others: Sequence[tuple[str, Sequence[Shown]]] = (),
    days: int | None = None,
    commit: Commit = lambda _: "",
) -> FigureDocument:
    """Draw all revisions; `days` before the newest are shown at first, and `commit` is the address of a revision's.

    The parts of the legend: the series, its intervals, levels with their spread, changes, SOTA, and other series.
    """
    traces = [
        *_levels(drawn),
        _own(drawn, metric, sota, commit),
        *_intervals(drawn),
        *_sota(drawn, sota),
        *_others(drawn, others),
        *_changes(drawn),
    ]
    x = axis("committed, UTC", type="date", hoverformat="%d %b %Y %H:%M", rangeslider={"visible": True})
    buttons = [{"count": n, "step": step, "stepmode": "backward", "label": label} for n, step, label in _WINDOWS]
    x["rangeselector"] = BUTTON | {
        "buttons": [*buttons, {"step": "all", "label": "all"}],
        "y": 1.02,
        "yanchor": "bottom",
    }
    y = axis(drawn.unit, fixedrange=False)  # a slider would keep the rectangle of a zoom as high as the figure
    if days is not None and drawn.shown:
        last = drawn.shown[-1].at
        x["range"] = [instant(last - days * DAY_S), instant(last + days * DAY_S / 50)]
        y["range"] = _range([one for one in drawn.shown if one.at >= last - days * DAY_S])
    return figure(traces, title, xaxis=x, yaxis=y, hovermode="x unified", hoverdistance=40, updatemenus=_menu())


def _menu() -> list[dict[str, Any]]:
    linear = {"yaxis.type": "linear", "yaxis.autorange": True}
    return axis_menu(
        own_range=linear | {"yaxis.rangemode": "normal"},
        from_0=linear | {"yaxis.rangemode": "tozero"},
        logarithmic={"yaxis.type": "log", "yaxis.autorange": True},
    )


def _range(shown: Sequence[Shown]) -> list[float]:
    values = [value for one in shown for value in (one.value, one.sota) if value is not None]
    low, high = min(values), max(values)
    spare = max((high - low) * 0.08, high * 0.004)
    return [max(0.0, low - spare), high + spare]


def _own(drawn: Trend, metric: Metric, sota: str, commit: Commit) -> dict[str, Any]:
    marks = [_MARKS.get(one.point.outcome or "", _mark(one)) for one in drawn.shown]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"median, {escaped(drawn.unit)}",
        "x": [instant(one.at) for one in drawn.shown],
        "y": [one.value for one in drawn.shown],
        "text": ["<br>".join(_lines(one, drawn, metric, sota)) for one in drawn.shown],
        "customdata": [[f"/runs/{one.point.run_id}", commit(one.point.revision)] for one in drawn.shown],
        "hovertemplate": f"<b>%{{y:{drawn.digits}}} {escaped(drawn.unit)}</b> %{{text}}<extra></extra>",
        "marker": {
            "symbol": [symbol for symbol, *_ in marks],
            "color": [colour for _, colour, _ in marks],
            "size": [size for *_, size in marks],
        },
    }


def _mark(one: Shown) -> tuple[str, str, int]:
    return ("circle", OWN, 6) if one.judged else ("circle-open", QUIET, 6)


def _lines(one: Shown, drawn: Trend, metric: Metric, sota: str) -> Iterator[str]:
    """What a hover says of a revision."""
    point = one.point
    yield f"{short(point.revision)} {escaped(point.subject)}"
    yield f"{f'{escaped(point.author)}, ' if point.author else ''}{instant(point.committed_at)[:16]} UTC"
    if point.ratio is not None:
        within = interval(point.low, point.high)
        outcome = f", {point.outcome}" if point.outcome else ""
        yield f"{ratio_text(point.ratio, metric)} to its parent{f', {within}' * bool(within)}{outcome}"
    if (ratio := over_sota(point)) is not None:
        yield f"{ratio:.3f} × {escaped(sota)}{f': {drawn.said(one.sota)}' if one.sota is not None else ''}"
    if point.stack_changes:
        yield f"stack: {escaped('; '.join(point.stack_changes))}"
    yield from (_change_line(change) for change in drawn.changes if change.ordinal == point.ordinal)


def _intervals(drawn: Trend) -> Iterator[dict[str, Any]]:
    """The interval of the comparison with the parent, around each value: shown when it is chosen in the legend."""
    bounded = [(one, one.low, one.high) for one in drawn.shown if one.low is not None and one.high is not None]
    if bounded:
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": "interval of the ratio to the parent",
            "x": [instant(one.at) for one, *_ in bounded],
            "y": [one.value for one, *_ in bounded],
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [high - one.value for one, _, high in bounded],
                "arrayminus": [one.value - low for one, low, _ in bounded],
                "color": QUIET,
                "thickness": 1,
                "width": 2,
            },
            "marker": {"size": 1, "color": QUIET},
            "hoverinfo": "skip",
            "visible": "legendonly",
        }


def _levels(drawn: Trend) -> Iterator[dict[str, Any]]:
    levels = [level for level in drawn.levels if len(level.points) > 1]
    bands = [(level, level.spread) for level in levels if level.spread]
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    if bands:
        xs, ys = list[str | None](), list[float | None]()
        for level, (low, high) in bands:
            start, end = (instant(level.points[n].at) for n in (0, -1))
            xs += [start, end, end, start, start, None]
            ys += [low, low, high, high, low, None]
        filled = {"fill": "toself", "fillcolor": "rgba(0, 114, 178, 0.14)", "line": {"width": 0}}
        yield line | {"name": "10th to 90th percentile of a level", "x": xs, "y": ys, **filled}
    if levels:
        ends = [(instant(level.points[0].at), instant(level.points[-1].at), level.value) for level in levels]
        yield line | {
            "name": "level between changes",
            "x": [at for start, end, _ in ends for at in (start, end, None)],
            "y": [at for *_, value in ends for at in (value, value, None)],
            "line": {"color": OWN, "width": 2},
        }


def _sota(drawn: Trend, sota: str) -> Iterator[dict[str, Any]]:
    compared = [one for one in drawn.shown if one.sota is not None]
    if compared:
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": escaped(sota),
            "x": [instant(one.at) for one in compared],
            "y": [one.sota for one in compared],
            "line": {"color": SOTA, "dash": "dash", "width": 1.5},
            "hoverinfo": "skip",
        }


def _others(drawn: Trend, others: Sequence[tuple[str, Sequence[Shown]]]) -> Iterator[dict[str, Any]]:
    for (name, shown), colour in zip(others, OTHERS, strict=False):
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": escaped(name),
            "x": [instant(one.at) for one in shown],
            "y": [one.value for one in shown],
            "text": [short(one.point.revision) for one in shown],
            "line": {"color": colour, "dash": "dot", "width": 1.5},
            "hovertemplate": f"%{{y:{drawn.digits}}} {escaped(drawn.unit)} {escaped(name)} at %{{text}}<extra></extra>",
        }


def _changes(drawn: Trend) -> Iterator[dict[str, Any]]:
    """The changes of the series, above its revisions; one that was withdrawn is grey."""
    values = {one.point.ordinal: one.value for one in drawn.shown}
    changes = [one for one in drawn.changes if one.ordinal in values]
    if changes:
        colours = [QUIET if one.closed else SLOWER if one.slower else FASTER for one in changes]
        yield {
            "type": "scatter",
            "mode": "markers+text",
            "name": "changes",
            "x": [instant(one.at) for one in changes],
            "y": [values[one.ordinal] for one in changes],
            "text": [one.size for one in changes],
            "textposition": "top center",
            "textfont": {"color": colours},
            "marker": {"symbol": "diamond-open", "size": 14, "color": colours},
            "hoverinfo": "skip",
        }


def _change_line(change: SeriesChange) -> str:
    """A change with its interval and its cause."""
    within = interval(change.low, change.high)
    cause = escaped(change.cause or change.state or "cause not known")
    return f"{'▲' if change.slower else '▼'} {change.size}{f', {within}' * bool(within)}: {cause}"
