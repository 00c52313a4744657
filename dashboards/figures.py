"""Figures as Plotly's own JSON.  Pure: a Report or a series in, a figure out.  The page's theme colours them."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from service.ledger.reading import Point
from service.reports import Report, Row, interval, microseconds, percent
from service.verdicts import Outcome

Figure = dict[str, Any]

# Different shapes too: the figure must say the same without colours.
SYMBOLS = {
    Outcome.REGRESSION: "triangle-right",
    Outcome.IMPROVEMENT: "triangle-left",
    Outcome.STEADY: "circle",
    Outcome.INCONCLUSIVE: "circle-open",
    Outcome.INVALID: "x",
    Outcome.FAILED: "x-thin",
    Outcome.NEW: "diamond-open",
}
_ROW_PX = 46
_WIDEST = 3.0  # an interval that reaches further than this many times its ratio is cut: it says "unknown" all the same


def against_parent(report: Report) -> Figure | None:
    """The ratio of times to the parent, case by case, with its interval and the band in which nobody needs to act."""
    rows = [row for outcome in report.counts for row in report.of(outcome) if row.ratio]
    if not rows:
        return None
    change = report.policy.smallest_change
    figure = _frame([(_label(row), row.ratio or 1.0) for row in rows], f"time over {report.baseline or 'the baseline'}")
    for outcome in report.counts:
        picked = [(place, row) for place, row in enumerate(rows) if row.outcome is outcome]
        if picked:
            texts = [
                f"{_label(row)}<br>{percent(row.ratio)}, {interval(row.low, row.high)}"
                f"<br>{_us(row.parent)} → {_us(row.head)}"
                for _, row in picked
            ]
            points = [(place, row.ratio or 1.0, row.low, row.high) for place, row in picked]
            figure["data"].append(_dots(outcome.value, outcome.value, SYMBOLS[outcome], points, texts))
    shapes = [_band(1 / (1 + change), 1 + change), _upright(1.0)]
    return _finish(figure, shapes, [1 / (1 + 2 * change), 1 + 2 * change])


def against_sota(report: Report) -> Figure | None:
    """The ratio of times to the best known, with the limit beyond which a case is behind."""
    rows = [row for row in report.rows if row.sota and row.sota.ratio]
    if not rows:
        return None
    rows.sort(key=lambda row: -((row.sota and row.sota.ratio) or 0))
    limit = 1 + report.policy.behind
    figure = _frame([(_label(row), (row.sota and row.sota.ratio) or 1.0) for row in rows], f"time over {report.sota}")
    for behind, name, tone, symbol in ((True, "behind", "behind", "square"), (False, "not behind", "steady", "circle")):
        picked = [(place, row) for place, row in enumerate(rows) if row.behind is behind]
        if picked:
            points = [(n, r.sota.ratio or 1.0, r.sota.low, r.sota.high) for n, r in picked if r.sota]
            texts = [
                f"{_label(r)}<br>{r.sota.ratio or 0:.2f} times {r.sota.provider}<br>{_us(r.sota.best)} → {_us(r.head)}"
                for _, r in picked
                if r.sota
            ]
            figure["data"].append(_dots(name, tone, symbol, points, texts))
    return _finish(figure, [_upright(1.0), _upright(limit, dash="dot")], [0.95, limit * 1.05])


def series(points: Sequence[Point], provider: str, sota: str) -> Figure | None:
    """What one case took over the mainline, beside the best known, with every change of stack as an upright line."""
    if not any(point.median_us for point in points):
        return None
    texts = [f"{p.revision} {_html(p.subject)}<br>{microseconds(p.median_us)} µs<br>{p.outcome or ''}" for p in points]
    own = _line(provider, "own", "solid", [(p.ordinal, p.median_us) for p in points], texts)
    own["marker"] |= {"symbol": [SYMBOLS[Outcome(p.outcome)] if p.outcome else "circle" for p in points]}
    own["meta"]["tones"] = [p.outcome or "steady" for p in points]
    own["customdata"] = [p.run_id for p in points]
    best = _line(
        sota,
        "steady",
        "dot",
        [(p.ordinal, p.sota_us) for p in points],
        [f"{sota}<br>{microseconds(p.sota_us)} µs" for p in points],
    )
    moves = [p for before, p in pairwise(points) if p.stack_id != before.stack_id]
    places = [p.ordinal for p in points]
    step = max(1, len(points) // 8)
    return {
        "data": [best, own],
        "layout": {
            **_layout(340),
            "showlegend": True,
            "margin": {"l": 52, "r": 12, "t": 36, "b": 64},
            "xaxis": {
                "tickvals": places[::step],
                "ticktext": [p.revision[:10] for p in points][::step],
                "tickangle": -30,
                "zeroline": False,
            },
            "yaxis": {"title": {"text": "µs"}, "rangemode": "tozero", "zeroline": False},
            "shapes": [{**_upright(p.ordinal - 0.5, dash="dash"), "name": "stack"} for p in moves],
            "annotations": [
                {
                    "x": p.ordinal - 0.5,
                    "y": 1,
                    "yref": "paper",
                    "yanchor": "bottom",
                    "text": "stack",
                    "showarrow": False,
                    "font": {"size": 11},
                }
                for p in moves
            ],
        },
    }


def _frame(labelled: Iterable[tuple[str, float]], title: str) -> Figure:
    """Rows from the top, each with its name above its dot: that leaves a phone's width to the numbers."""
    rows = list(labelled)
    annotations = [
        {
            "xref": "paper",
            "x": 0,
            "xanchor": "left",
            "y": place,
            "yanchor": "bottom",
            "yshift": 7,
            "showarrow": False,
            "text": label,
            "font": {"size": 12},
            "align": "left",
        }
        for place, (label, _) in enumerate(rows)
    ]
    return {
        "data": [],
        "layout": {
            **_layout(96 + _ROW_PX * len(rows)),
            "margin": {"l": 8, "r": 8, "t": 34, "b": 46},
            "xaxis": {"title": {"text": title}, "zeroline": False, "nticks": 8, "showgrid": False, "ticks": "outside"},
            "yaxis": {
                "range": [len(rows) - 0.4, -0.85],
                "showticklabels": False,
                "showgrid": True,
                "zeroline": False,
                "tickvals": list(range(len(rows))),
            },
            "annotations": annotations,
        },
    }


def _layout(height: int) -> dict[str, Any]:
    return {
        "height": height,
        "autosize": True,
        "dragmode": False,
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top", "font": {"size": 12}},
        "showlegend": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 12},
    }


def _dots(
    name: str,
    tone: str,
    symbol: str,
    points: Sequence[tuple[int, float, float | None, float | None]],
    texts: Sequence[str],
) -> dict[str, Any]:
    ups = [max(0.0, min(_number(high, ratio), ratio * _WIDEST) - ratio) for _, ratio, _, high in points]
    downs = [max(0.0, ratio - max(_number(low, ratio), ratio / _WIDEST)) for _, ratio, low, _ in points]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [ratio for _, ratio, _, _ in points],
        "y": [place for place, _, _, _ in points],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": ups,
            "arrayminus": downs,
            "thickness": 1.6,
            "width": 5,
        },
        "marker": {"symbol": symbol, "size": 11, "line": {"width": 1.5}},
        "text": list(texts),
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"tone": tone},
    }


def _line(
    name: str, tone: str, dash: str, points: Sequence[tuple[int, float | None]], texts: Sequence[str]
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if dash == "dot" else "lines+markers",
        "name": name,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"dash": dash, "width": 1.6},
        "marker": {"size": 9},
        "text": list(texts),
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"tone": tone},
    }


def _finish(figure: Figure, shapes: list[dict[str, Any]], at_least: Sequence[float]) -> Figure:
    """The range shows every interval, and never so little that noise looks like a change."""
    ends = list(at_least)
    for trace in figure["data"]:
        error = trace["error_x"]
        ends += [x + up for x, up in zip(trace["x"], error["array"], strict=True)]
        ends += [x - down for x, down in zip(trace["x"], error["arrayminus"], strict=True)]
    low, high = min(ends), max(ends)
    axis = figure["layout"]["xaxis"]
    if high / low > 4:
        axis |= {"type": "log", "range": [math.log10(low) - 0.03, math.log10(high) + 0.03], "dtick": "D2"}
    else:
        axis["range"] = [low - 0.04 * (high - low), high + 0.04 * (high - low)]
    figure["layout"]["shapes"] = shapes
    return figure


def _band(low: float, high: float) -> dict[str, Any]:
    across = {"type": "rect", "layer": "below", "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 0}}
    return {**across, "x0": low, "x1": high, "name": "band", "fillcolor": "rgba(128,128,128,0.14)"}


def _upright(x: float, dash: str = "solid") -> dict[str, Any]:
    line = {"width": 1, "dash": dash}
    return {
        "type": "line",
        "layer": "below",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "x0": x,
        "x1": x,
        "line": line,
        "name": "line",
    }


def _label(row: Row) -> str:
    return f"{_html(row.case)} <i>{_html(row.provider)}</i>"


def _us(side: Any) -> str:
    return f"{microseconds(side.median_us if side else None)} µs"


def _html(text: str) -> str:
    """Plotly reads a few tags in texts: names must not bring any."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _number(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
