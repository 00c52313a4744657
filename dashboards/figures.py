"""Figures as Plotly JSON, coloured by the theme of the page.  Pure: a Report or a series in, a figure out."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from kernels.cases import Metric
from service.domain.codefacts.measured import Measured
from service.domain.metrics import amount
from service.domain.text import interval
from service.domain.verdicts.judge import Outcome
from service.reports.report import Report
from service.reports.rows import Row

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
    Outcome.REMOVED: "line-ew",
}
_ROW_PX = 46
MAX_ROWS = 60
_WIDEST = 3.0  # an interval that reaches further than this many times its ratio is cut: it says "unknown" all the same


def against_parent(report: Report) -> Figure | None:
    """Plot the ratio to the parent by case, with its interval and the band of changes that do not matter."""
    rows = _shown([row for outcome in report.counts for row in report.of(outcome) if row.ratio])
    if not rows:
        return None
    labelled = [(_label(row), row.ratio or 1.0) for row in rows]
    figure = _frame(labelled, f"{_over(rows)} {report.baseline or 'the baseline'}")
    for outcome in report.counts:
        picked = [(place, row) for place, row in enumerate(rows) if row.outcome is outcome]
        if picked:
            texts = [
                f"{_label(row)}<br>{row.change}, {interval(row.low, row.high)}"
                f"<br>{_taken(row.parent, row)} → {_taken(row.head, row)}"
                for _, row in picked
            ]
            points = [(place, row.ratio or 1.0, row.low, row.high) for place, row in picked]
            figure["data"].append(_dots(outcome.value, outcome.value, SYMBOLS[outcome], points, texts))
    changes = _changes(report, rows)
    bands = [_band(1 / (1 + change), 1 + change, top, end) for top, end, change in changes]
    widest = max(change for *_, change in changes)
    return _finish(figure, [*bands, _upright(1.0)], [1 / (1 + 2 * widest), 1 + 2 * widest])


def against_sota(report: Report) -> Figure | None:
    """Plot the ratio to SOTA by case, with the limit beyond which a case is behind."""
    rows = _shown(sorted((row for row in report.rows if row.sota and row.sota.ratio), key=lambda row: -_gap(row)))
    if not rows:
        return None
    figure = _frame([(_label(row), _gap(row)) for row in rows], f"{_over(rows)} {report.sota}")
    for behind, name, tone, symbol in ((True, "behind", "behind", "square"), (False, "not behind", "steady", "circle")):
        picked = [(place, row) for place, row in enumerate(rows) if row.behind is behind]
        if picked:
            points = [(n, _gap(r), r.sota.low, r.sota.high) for n, r in picked if r.sota]
            texts = [
                f"{_label(r)}<br>{_gap(r):.2f} times {_html(r.sota.provider)}"
                f"<br>{_taken(r.sota.best, r)} → {_taken(r.head, r)}"
                for _, r in picked
                if r.sota
            ]
            figure["data"].append(_dots(name, tone, symbol, points, texts))
    limits = [(top, end, 1 + report.policy.at(case).behind_sota) for top, end, case in _by_metric(rows)]
    lines = [{**_upright(limit, dash="dot"), "yref": "y", "y0": top, "y1": end} for top, end, limit in limits]
    return _finish(figure, [_upright(1.0), *lines], [0.95, 1.05 * max(limit for *_, limit in limits)])


def most_rows(report: Report) -> int:
    """Return the number of rows of the longer figure if all were drawn."""
    return max(
        sum(bool(row.ratio) for row in report.rows), sum(bool(row.sota and row.sota.ratio) for row in report.rows)
    )


def _shown(rows: Sequence[Row]) -> list[Row]:
    """Select the first rows, by metric: a figure of hundreds is unreadable, and the table has all."""
    return sorted(rows[:MAX_ROWS], key=lambda row: list(Metric).index(row.metric))


def _by_metric(rows: Sequence[Row]) -> list[tuple[float, float, str]]:
    """Return the range of each metric on the y axis, and one of its cases."""
    groups = [list(rows) for _, rows in groupby(enumerate(rows), key=lambda placed: placed[1].metric)]
    return [(group[0][0] - 0.8, group[-1][0] + 0.2, group[0][1].case) for group in groups]


def _changes(report: Report, rows: Sequence[Row]) -> list[tuple[float, float, float]]:
    """Return the range on the y axis of each smallest change that matters, and its value."""

    def smallest(placed: tuple[int, Row]) -> tuple[Metric, float]:
        row = placed[1]
        return row.metric, row.smallest_change or report.policy.at(row.case).smallest_change

    groups = [(key, list(placed)) for key, placed in groupby(enumerate(rows), key=smallest)]
    return [(group[0][0] - 0.8, group[-1][0] + 0.2, change) for (_, change), group in groups]


def _over(rows: Sequence[Row]) -> str:
    return "time over" if all(row.metric is not Metric.MEMORY for row in rows) else "head over"


def _gap(row: Row) -> float:
    return (row.sota.ratio if row.sota else None) or 1.0


def _frame(labelled: Iterable[tuple[str, float]], title: str) -> Figure:
    """Lay out rows from the top, each name above its point, so that a phone has room for the numbers."""
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


def _finish(figure: Figure, shapes: list[dict[str, Any]], at_least: Sequence[float]) -> Figure:
    """Set the range: it shows every interval, and is never so small that noise looks like a change."""
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


def _band(low: float, high: float, top: float, end: float) -> dict[str, Any]:
    across = {"type": "rect", "layer": "below", "yref": "y", "y0": top, "y1": end, "line": {"width": 0}}
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


def _taken(side: Measured | None, row: Row) -> str:
    return amount(side.median if side else None, row.metric)


def _html(text: str) -> str:
    """Escape a name: Plotly interprets some tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _number(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
