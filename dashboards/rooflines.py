"""The roofline of a board, and its slope of memory by size: where each case is below what the device allows.  Pure.

All norms have nearly the same intensity, so in the roofline they are one narrow column on the slope of memory.  The
second figure spreads that column by the bytes of a call, where launches, the L2 cache and memory limit in turn.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dashboards.boards import Cell, other_time
from dashboards.drawing import Figure, Scale, bars, dots, line, log_ticks, micros, place, ticks
from service.domain.roofline import Work, attainable_tflop_s, work
from service.ledger.reading.board import BoardCase, BoardRun

_LEAST = 3  # cases, below which there is no figure
_CURVE = 24  # parts of the line of the shortest call, which is a curve on these axes
_HEIGHT, _COLUMNS_Y, _NAME_Y = 300, 278, 295
_DASH = 3.5  # px, half of the mark of another provider


@dataclass(frozen=True)
class Rooflines:
    """Both figures, and what their legend says."""

    by_intensity: Figure
    by_size: Figure
    blocks: bool  # some are drawn; their products are beyond the ridge
    ridge: float | None  # FLOP per byte from which the product is the limit, where that is in the figure
    families: Sequence[tuple[str, float, float]]  # name, FLOP per byte, attainable TFLOP/s


def draw(cells: Iterable[Cell], run: BoardRun, against: str, link: Callable[[BoardCase], str]) -> Rooflines | None:
    """Both figures; None without the ceiling of a copy, or with too few cases.  A case leads to its `link`."""
    placed = [(cell, found) for cell in cells if (found := work(cell.case.case))]
    if not run.copy_gb_s or len(placed) < _LEAST:
        return None
    copy_gb_s, product = run.copy_gb_s, run.matmul_tflop_s
    own = [(found.intensity, found.flops / cell.case.own.median / 1e6) for cell, found in placed]
    others = [
        (found.intensity, found.flops / other.median / 1e6)
        for cell, found in placed
        if (other := other_time(cell.case, against))
    ]
    blocks = [(found.intensity, found.flops / one.own.median / 1e6) for one in run.blocks if (found := work(one.case))]
    every = own + others + blocks
    ridge = product * 1e3 / copy_gb_s if product else 0.0
    right = max([8.0, *(3 * x for x, _ in every), 4 * ridge])
    left = min([0.25, *(x / 2 for x, _ in every)])
    top = attainable_tflop_s(right, copy_gb_s, product)
    x = Scale(left, right, 46, 408, log=True)
    y = Scale(min(value for _, value in every) / 2, max(top, *(value for _, value in every)) * 1.6, 262, 10, log=True)
    corners = [left, *([ridge] if ridge else []), right]
    roof = [(at, attainable_tflop_s(at, copy_gb_s, product)) for at in corners]
    if roof[0][1] < y.low:  # the slope begins where it enters the figure
        roof[0] = (y.low * 1e3 / copy_gb_s, y.low)
    below = " and the roof of a matrix product" if ridge else ""
    name = f"TFLOP/s of each case against its FLOP per byte, below the slope of memory{below}"
    figure = Figure(420, _HEIGHT, name, kind="roof")
    figure.rows([(y(value), f"{value:,g}") for value in log_ticks(y.low, y.high, 6)], x.start, x.end)
    figure.columns([(x(value), f"{value:g}") for value in log_ticks(x.low, x.high, 8)], _COLUMNS_Y)
    figure.columns([((x.start + x.end) / 2, "FLOP per byte")], _NAME_Y)
    figure.path("ceiling", line((x(at), y(tflop_s)) for at, tflop_s in roof))
    if product:
        figure.text(404, y(product) - 6, f"bf16 product {product:,.0f} TFLOP/s", anchor="end")
        figure.text(x(ridge) - 18, y(product) + 38, f"copy {copy_gb_s:,.0f} GB/s")
    figure.path("pt other", "".join(_dash(x(at), y(tflop_s)) for at, tflop_s in others))
    for kind, ones in (("own", own), ("blocks", blocks)):
        figure.path(f"pt {kind}", dots((x(at), y(tflop_s)) for at, tflop_s in ones))
    intensities = dict[str, float]()
    for cell, found in placed:
        intensities.setdefault(cell.name.family, found.intensity)
    families = [
        (name, at, attainable_tflop_s(at, copy_gb_s, product))
        for name, at in sorted(intensities.items(), key=lambda one: one[1])
    ]
    return Rooflines(figure, _by_size(placed, run, copy_gb_s, against, link), bool(blocks), ridge or None, families)


def _by_size(
    placed: Sequence[tuple[Cell, Work]],
    run: BoardRun,
    copy_gb_s: float,
    against: str,
    link: Callable[[BoardCase], str],
) -> Figure:
    """GB/s against the least bytes of a call."""
    sizes = [found.bytes for _, found in placed]
    compared = [(cell, found.bytes, other_time(cell.case, against)) for cell, found in placed]
    taken = [(size, cell.case.own.median) for cell, size, _ in compared]
    taken += [(size, other.median) for _, size, other in compared if other]
    shortest = min(time for _, time in taken)
    x = Scale(min(sizes) / 1.5, max([*sizes, run.l2_bytes or 0.0]) * 1.5, 46, 768, log=True)
    y = Scale(0.0, max(copy_gb_s, *(size / time / 1e3 for size, time in taken)) * 1.08, 262, 10)
    name = "GB/s of each case against its bytes; the heat map has the same cases as a table"
    figure = Figure(780, _HEIGHT, name, kind="sizes", role="group")
    figure.rows([(y(value), f"{value:,g}") for value in ticks(y.low, y.high, 6)], x.start, x.end)
    # Powers of 4 KiB, 16, 64, …: of two between them there is one label.
    powers = [4.0**n for n in range(math.ceil(math.log(x.low, 4)), math.floor(math.log(x.high, 4)) + 1)]
    figure.columns([(x(value), _bytes(value)) for value in powers], _COLUMNS_Y)
    figure.columns([((x.start + x.end) / 2, "bytes that a call must at least move")], _NAME_Y)
    if run.l2_bytes and run.l2_bytes > x.low:
        l2_x = x(run.l2_bytes)
        figure.add("rect", kind="l2", x=x.start, y=y.end, width=l2_x - x.start, height=y.start - y.end)
        figure.text(l2_x - 5, y.start - 6, "fits the L2 cache", anchor="end")
    figure.across("ceiling", y(copy_gb_s), x.start, x.end)
    figure.text(x.end - 2, y(copy_gb_s) - 5, f"copy {copy_gb_s:,.0f} GB/s", anchor="end")
    floor_end = min(x.high, y.high * shortest * 1e3)
    floor = [x.low * (floor_end / x.low) ** (n / _CURVE) for n in range(_CURVE + 1)]
    figure.path("ceiling", line((x(at), y(at / shortest / 1e3)) for at in floor))
    middle = copy_gb_s * shortest * 1e3 * 0.6
    text = f"shortest call, {micros(shortest)} µs"
    figure.text(x(middle) - 10, y(middle / shortest / 1e3) + 4, text, anchor="end")
    for cell, size, other in compared:
        at, own = x(size), y(size / cell.case.own.median / 1e3)
        with figure.within("a", cell.label(against), href=link(cell.case), tabindex="-1"):
            if other:
                there = y(size / other.median / 1e3)
                figure.path("pt other", _dash(at, there) + bars([(at, there, own)]))
            figure.path(f"pt {'in-cache' if cell.case.in_cache else 'own'}", dots([(at, own)]))
    return figure


def _dash(x: float, y: float) -> str:
    """The mark of another provider."""
    return f"M{place(x - _DASH)} {place(y)}h{place(2 * _DASH)}"


def _bytes(value: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:,.0f} {unit}"
    return f"{value:.0f} B"
