"""Two revisions, case by case, as a figure to explore.  Pure."""

import math
from collections.abc import Iterator

from kernelwatch.documents.figures import FigureDocument
from service.domain.case_names import trend_path
from service.domain.metrics import amount, metric_of, number_of, ratio_text
from service.domain.text import interval, short
from service.reports.figures.frame import (
    FASTER,
    HAIR,
    OWN,
    QUIET,
    SLOWER,
    Commit,
    axis,
    axis_menu,
    escaped,
    figure,
)
from service.reports.rows import ComparedCase, RevisionsCompared

_LOOKS = {  # of each direction: colour, symbol
    "slower": (SLOWER, "triangle-up"),
    "faster": (FASTER, "triangle-down"),
    "same": (OWN, "circle"),
    "unknown": (QUIET, "circle-open"),
}
_ROW_PX, _REST_PX = 18, 260


def comparison_figure(revisions: RevisionsCompared, target: str, commit: Commit) -> FigureDocument:
    """Draw the ratio of each case that has one with its interval, the largest change at the top."""
    compared = [(one, one.ratio) for one in revisions.cases if one.ratio]
    compared.sort(key=lambda pair: abs(math.log(pair[1].ratio)))
    several = len({one.provider for one, _ in compared}) > 1
    traces = []
    for direction, (colour, symbol) in _LOOKS.items():
        own = [(one, ratio) for one, ratio in compared if one.direction == direction]
        if own:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": f"{direction}: {len(own)}",
                    "x": [ratio.ratio for _, ratio in own],
                    "y": [_row(one, several=several) for one, _ in own],
                    "error_x": {
                        "type": "data",
                        "symmetric": False,
                        "array": [ratio.high - ratio.ratio for _, ratio in own],
                        "arrayminus": [ratio.ratio - ratio.low for _, ratio in own],
                        "thickness": 1,
                    },
                    "marker": {"color": colour, "symbol": symbol, "size": 9},
                    "text": ["<br>".join(_lines(one)) for one, _ in own],
                    "customdata": [
                        [
                            trend_path(target, revisions.device, one.provider, one.case),
                            commit(revisions.head.revision.sha),
                        ]
                        for one, _ in own
                    ],
                    "hovertemplate": "%{text}<extra></extra>",
                }
            )
    without = len(revisions.cases) - len(compared)
    title = f"{revisions.head.revision.short} over {revisions.base.revision.short} on {revisions.device}"
    rows = [_row(one, several=several) for one, _ in compared]
    return figure(
        traces,
        f"{title}, {number_of(without, 'case')} without a ratio" if without else title,
        xaxis=axis("time of the head over that of the base", type="log"),
        yaxis=axis("", type="category", categoryorder="array", categoryarray=rows, tickfont={"size": 10}),
        height=_REST_PX + _ROW_PX * len(rows),
        hovermode="closest",
        shapes=[{"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": HAIR}}],
        updatemenus=axis_menu(logarithmic={"xaxis.type": "log"}, linear={"xaxis.type": "linear"}),
    )


def _row(one: ComparedCase, *, several: bool) -> str:
    return escaped(f"{one.case} by {one.provider}" if several else one.case)


def _lines(one: ComparedCase) -> Iterator[str]:
    """What a hover says of a case."""
    metric = metric_of(one.case)
    yield f"<b>{escaped(one.case)}</b> by {escaped(one.provider)}"
    if one.ratio:
        within = interval(one.ratio.low, one.ratio.high)
        yield f"{ratio_text(one.ratio.ratio, metric)}{f', {within}' * bool(within)}: {one.direction}"
    yield f"{amount(one.base_median, metric)} → {amount(one.head_median, metric)}"
    yield f"{one.method.value}{f' via {escaped(short(one.via))}' if one.via else ''}"
