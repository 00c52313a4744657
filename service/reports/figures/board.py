"""A board and its roofline as figures to explore.  Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from kernelwatch.documents.figures import FigureDocument
from service.domain.case_names import trend_path
from service.domain.roofline import Work, attainable_tflop_s
from service.domain.text import short
from service.reports.charts.board import BEST, BoardCell, BoardRun, other_time
from service.reports.figures.frame import (
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
)

_COLOURS = (OWN, SOTA, FASTER, *OTHERS, SLOWER)
_SYMBOLS = ("circle", "square", "diamond", "cross", "x")  # one for each round of the colours
_BYTES = axis("bytes that a call must at least move", type="log", exponentformat="SI")
_Placed = Sequence[tuple[BoardCell, Work]]


def board_figure(
    cells: Sequence[BoardCell], run: BoardRun, target: str, device: str, against: str, commit: Commit
) -> FigureDocument:
    """Draw the ratio of each case to another provider by its least bytes; a triangle is behind."""
    kinds = defaultdict[str, list[tuple[BoardCell, Work]]](list)
    for cell, least in _placed(cells, run):
        if cell.ratio is not None:
            kinds[cell.kind].append((cell, least))
    traces = []
    for n, (kind, own) in enumerate(kinds.items()):
        turn, colour = divmod(n, len(_COLOURS))
        symbol = _SYMBOLS[turn % len(_SYMBOLS)]
        look = {
            "color": _COLOURS[colour],
            "size": 9,
            "symbol": ["triangle-up" if cell.behind else symbol for cell, _ in own],
        }
        points = [(least.bytes, cell.ratio) for cell, least in own]
        traces.append(_marks(kind, points, look) | _of_cases(own, target, device, against, run, commit))
    return figure(
        traces,
        f"{target} against {_name(against)} on {device}, {short(run.revision)}",
        xaxis=_BYTES,
        yaxis=axis(f"time over that of {_name(against)}", type="log"),
        hovermode="closest",
        shapes=[{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {"color": QUIET}}],
        updatemenus=axis_menu(logarithmic={"yaxis.type": "log"}, linear={"yaxis.type": "linear"}),
    )


def roofline_figure(
    cells: Sequence[BoardCell], run: BoardRun, target: str, device: str, against: str, commit: Commit
) -> FigureDocument:
    """Draw GB/s by the least bytes of a call, and below it TFLOP/s by FLOP per byte; lines are measured ceilings."""
    placed = _placed(cells, run)
    blocks = [(one, least) for one in run.blocks if (least := run.least_work(one.case))]
    others = [(least, one.median) for cell, least in placed if (one := other_time(cell.case, against))]
    traces = list[dict[str, Any]]()
    for cached, name, symbol in ((False, target, "circle"), (True, f"{target}, data in the L2 cache", "circle-open")):
        own = [(cell, least) for cell, least in placed if cell.case.in_cache is cached]
        times = [(least, cell.case.own.median) for cell, least in own]
        hover = _of_cases(own, target, device, against, run, commit)
        look = {"color": OWN, "symbol": symbol, "size": 8}
        traces += [trace | hover for trace in _pair(name, times, look)] if own else []
    if others:
        look = {"color": SOTA, "symbol": "line-ew-open", "size": 9, "line": {"width": 2}}
        traces += [trace | {"hoverinfo": "name+y"} for trace in _pair(_name(against), others, look)]
    if blocks:
        times = [(least, one.own.median) for one, least in blocks]
        _, below = _pair("blocks", times, {"color": SLOWER, "symbol": "square", "size": 8})
        names = [escaped(one.case) for one, _ in blocks]
        traces.append(below | {"text": names, "hovertemplate": "%{text}<extra></extra>", "showlegend": True})
    traces += _ceilings(run, [least for _, least in placed] + [least for _, least in blocks])
    return figure(
        traces,
        f"Roofline of {target} on {device}, {short(run.revision)}",
        xaxis=_BYTES | {"anchor": "y"},
        yaxis=axis("GB/s", domain=[0.58, 1.0], rangemode="tozero"),
        xaxis2=axis("FLOP per byte", type="log", anchor="y2"),
        yaxis2=axis("TFLOP/s", type="log", domain=[0.0, 0.42]),
        height=820,
        hovermode="closest",
        updatemenus=axis_menu(linear={"yaxis.type": "linear"}, logarithmic={"yaxis.type": "log"}),
    )


def _placed(cells: Sequence[BoardCell], run: BoardRun) -> _Placed:
    """The cases of which the least work is known."""
    return [(cell, least) for cell in cells if (least := run.least_work(cell.case.case))]


def _marks(name: str, points: Sequence[tuple[float, float | None]], look: dict[str, Any]) -> dict[str, Any]:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return {"type": "scatter", "mode": "markers", "name": escaped(name), "x": xs, "y": ys, "marker": look}


def _pair(name: str, times: Sequence[tuple[Work, float]], look: dict[str, Any]) -> list[dict[str, Any]]:
    """The same times, in µs, in both parts of the roofline; one name of the legend hides both."""
    above = [(least.bytes, least.bytes / median / 1e3) for least, median in times]
    below = [(least.intensity, least.flops / median / 1e6) for least, median in times]
    second = {"xaxis": "x2", "yaxis": "y2", "showlegend": False}
    return [
        _marks(name, above, look) | {"legendgroup": escaped(name)},
        _marks(name, below, look) | {"legendgroup": escaped(name)} | second,
    ]


def _of_cases(own: _Placed, target: str, device: str, against: str, run: BoardRun, commit: Commit) -> dict[str, Any]:
    """What a hover says of cases, and what a click on them opens."""
    at = commit(run.revision)
    return {
        "text": ["<br>".join(_lines(cell, against)) for cell, _ in own],
        "customdata": [[trend_path(target, device, cell.case.provider, cell.case.case), at] for cell, _ in own],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _lines(cell: BoardCell, against: str) -> Iterator[str]:
    yield f"<b>{escaped(cell.case.case)}</b> by {escaped(cell.case.provider)}"
    yield escaped(cell.label(_name(against)))
    if cell.case.own.gb_s:
        yield f"{cell.case.own.gb_s:,.0f} GB/s"
    if other := other_time(cell.case, against):
        yield f"{escaped(_name(against))}: {other.median:,.2f} µs"


def _name(against: str) -> str:
    return "the fastest other" if against == BEST else against


def _ceilings(run: BoardRun, works: Sequence[Work]) -> Iterator[dict[str, Any]]:
    """A copy of the session, where the L2 cache ends, and the roof of a matrix product."""
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "name"}
    dashed = {"color": QUIET, "dash": "dash", "width": 1.5}
    if not (run.copy_gb_s and works):
        return
    sizes, intensities = [one.bytes for one in works], [one.intensity for one in works]
    copy = f"copy, {run.copy_gb_s:,.0f} GB/s"
    ends = {"x": [min(sizes), max(sizes)], "y": [run.copy_gb_s] * 2}
    yield line | {"name": copy, "line": dashed, **ends, "legendgroup": "ceilings"}
    if run.l2_bytes:
        column = {"x": [run.l2_bytes] * 2, "y": [0, run.copy_gb_s], "line": {"color": QUIET, "dash": "dot"}}
        yield line | {"name": "L2 cache", **column}
    product = run.matmul_tflop_s
    ridge = [product * 1e3 / run.copy_gb_s] if product else []
    corners = sorted([min(intensities) / 2, max(intensities) * 3, *ridge, *(4 * at for at in ridge)])
    roof = {"x": corners, "y": [attainable_tflop_s(at, run.copy_gb_s, product) for at in corners]}
    name = f"roof, {product:,.0f} TFLOP/s" if product else "slope of memory"
    yield line | {"name": name, "line": dashed, "xaxis": "x2", "yaxis": "y2", "legendgroup": "ceilings"} | roof
