"""The roofline of a board, and its slope of memory by size: where each case is below what the device allows.  Pure.

All norms have nearly the same intensity, so on the axes of a roofline they are one heap on the slope of memory.  The
first figure has a row for each op instead, with the roof at 100 %; the second spreads the heap by the bytes of a call,
where launches, the L2 cache and memory limit in turn.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dashboards.drawing import Figure, Scale, bars, dots, line, micros, place, ticks
from service.domain.case_names import case_name
from service.domain.roofline import Work, attainable_tflop_s
from service.reports.charts.board import BoardCase, BoardCell, BoardRun, other_time

_LEAST = 3  # cases, below which there is no figure
_CURVE = 24  # parts of the line of the shortest call, which is a curve on these axes
_HEIGHT, _COLUMNS_Y, _NAME_Y = 300, 278, 295
_ROW_PX, _DOT_PX = 42, 5.0  # of an op and direction, and of a dot
_NAMED = 26  # characters of an op and direction, beside which its FLOP per byte have room
_MOST_SHARE = 200.0  # data in the L2 cache come faster than memory allows; more than that is drawn at the end
_SHORTEST_PX = 130  # of the text beside the line of the shortest call
_DASH = 3.5  # px, half of the mark of another provider


@dataclass(frozen=True)
class Rooflines:
    """Both figures, and what their legend says."""

    by_op: Figure
    by_size: Figure
    blocks: bool  # some are drawn
    ridge: float | None  # FLOP per byte from which the product is the limit, where that was measured
    families: Sequence[tuple[str, float, float]]  # name, FLOP per byte, attainable TFLOP/s


@dataclass(frozen=True)
class _Mark:
    """One time of a case in the figure by op, and its share of what the device allows there, in per cent."""

    kind: str  # own, in-cache, other or blocks
    share: float
    shape: str = ""


def draw(cells: Iterable[BoardCell], run: BoardRun, against: str, link: Callable[[BoardCase], str]) -> Rooflines | None:
    """Both figures; None without the ceiling of a copy, or with too few cases.  A case leads to its `link`."""
    placed = [(cell, found) for cell in cells if (found := run.least_work(cell.case.case))]
    if not run.copy_gb_s or len(placed) < _LEAST:
        return None
    copy_gb_s, product = run.copy_gb_s, run.matmul_tflop_s
    intensities = dict[str, float]()
    marks = defaultdict[str, list[_Mark]](list)

    def add(family: str, kind: str, found: Work, median_us: float, shape: str = "") -> None:
        attainable = attainable_tflop_s(found.intensity, copy_gb_s, product)
        marks[family].append(_Mark(kind, 100 * found.flops / median_us / 1e6 / attainable, shape))

    for cell, found in placed:
        family = cell.name.family
        intensities.setdefault(family, found.intensity)
        add(family, "in-cache" if cell.case.in_cache else "own", found, cell.case.own.median, cell.name.shape)
        if other := other_time(cell.case, against):
            add(family, "other", found, other.median)
    blocks = [(one, found) for one in run.blocks if (found := run.least_work(one.case))]
    for one, found in blocks:
        add("Blocks", "blocks", found, one.own.median, case_name(one.case).shape)
    families = [
        (name, at, attainable_tflop_s(at, copy_gb_s, product))
        for name, at in sorted(intensities.items(), key=lambda one: one[1])
    ]
    titles = [f"{name}, {at:.1f} FLOP per byte" if len(name) < _NAMED else name for name, at, _ in families]
    rows = [(title, marks[name]) for title, (name, *_) in zip(titles, families, strict=True)]
    rows += [("Blocks, limited by a matrix product", marks["Blocks"])] if blocks else []
    ridge = product * 1e3 / copy_gb_s if product else None
    return Rooflines(_by_op(rows), _by_size(placed, run, copy_gb_s, against, link), bool(blocks), ridge, families)


def _by_op(rows: Sequence[tuple[str, Sequence[_Mark]]]) -> Figure:
    """A row for each op and direction: dots that stand on each other where cases have the same share."""
    most = max(mark.share for _, marks in rows for mark in marks)
    x = Scale(0.0, max(105.0, min(most * 1.05, _MOST_SHARE)), 10, 408)
    bottom = len(rows) * _ROW_PX + 8
    name = "Each case's share of the TFLOP/s that are attainable at its FLOP per byte, by op and direction"
    figure = Figure(420, bottom + 38, name, kind="roof")
    bases = [8 + (row + 1) * _ROW_PX - 6 for row in range(len(rows))]
    figure.path("grid", bars((x(value), base - 17, base + 4) for value in ticks(x.low, x.high, 6) for base in bases))
    figure.columns([(x(value), f"{value:g}") for value in ticks(x.low, x.high, 6)], bottom + 16)
    figure.columns([((x.start + x.end) / 2, "% of the attainable")], bottom + 33)
    figure.path("ceiling", bars((x(100.0), base - 17, base + 4) for base in bases))
    for base, (title, marks) in zip(bases, rows, strict=True):
        figure.across("floor", base + 4, x.start, x.end)
        figure.text(x.start, base - 23, title, "ink")
        own = [mark for mark in marks if mark.kind != "other"]
        least = min(own, key=lambda mark: mark.share)
        figure.text(x.end, base - 23, f"least {least.share:.0f} %, {least.shape}", anchor="end")
        others = [x.within(mark.share) for mark in marks if mark.kind == "other"]
        figure.path("pt other", bars((at, base - 6, base + 4) for at in others))
        stacks = defaultdict[int, list[str]](list)
        for mark in sorted(own, key=lambda one: one.kind):
            stacks[round(x.within(mark.share) / _DOT_PX)].append(mark.kind)
        step = min(_DOT_PX, 16 / max(map(len, stacks.values())))
        for kind in ("own", "in-cache", "blocks"):
            places = [
                (at * _DOT_PX, base - n * step)
                for at, kinds in stacks.items()
                for n, each in enumerate(kinds)
                if each == kind
            ]
            if places:
                figure.path(f"pt {kind}", dots(places))
    return figure


def _by_size(
    placed: Sequence[tuple[BoardCell, Work]],
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
    at, beside = x(middle), y(middle / shortest / 1e3) + 4
    wide = at - x.start > _SHORTEST_PX
    figure.text(at - 10 if wide else at + 10, beside, text, anchor="end" if wide else "")
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
