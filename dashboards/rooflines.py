"""The roofline of a board, and its slope of memory by size: where each case is below what the device allows.  Pure.

All norms have nearly the same intensity, so in the roofline they are one narrow column on the slope of memory.  The
second figure spreads that column by the bytes of a call, where launches, the L2 cache and memory limit in turn.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dashboards.boards import Cell, other_time
from dashboards.drawing import Scale, dots, line, log_ticks, place, ticks
from service.domain.roofline import Work, attainable_tflop_s, work
from service.ledger.reading.board import BoardCase, BoardRun, Timed

_LEAST = 3  # cases, below which there is no figure
_CURVE = 24  # parts of the line of the shortest call, which is a curve on these axes
_DASH = 3.5  # px, half of the mark of another provider


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of the session; without a product there is no roof."""

    copy_gb_s: float
    matmul_tflop_s: float | None
    l2_bytes: float | None

    @property
    def ridge(self) -> float | None:
        """FLOP per byte from which the product is the limit."""
        return self.matmul_tflop_s * 1e3 / self.copy_gb_s if self.matmul_tflop_s else None


@dataclass(frozen=True)
class Roofline:
    """TFLOP/s against FLOP per byte, 420 by 300 px."""

    roof: str
    ridge: tuple[float, float] | None
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    own: str
    others: str
    blocks: str  # of ours; their products are beyond the ridge
    families: Sequence[tuple[str, float, float]]  # name, FLOP per byte, attainable TFLOP/s
    ceilings: Ceilings


@dataclass(frozen=True)
class SizedDot:
    """A case of ours, with a line to the other provider at the same case."""

    cell: Cell
    own: str
    other: str


@dataclass(frozen=True)
class SizeFigure:
    """GB/s against the least bytes of a call, 780 by 300 px."""

    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    ceiling_y: float
    l2_x: float | None
    floor: str  # the line of the shortest call
    floor_us: float
    floor_at: tuple[float, float]  # of its name
    dots: Sequence[SizedDot]


@dataclass(frozen=True)
class Rooflines:
    """Both figures."""

    by_intensity: Roofline
    by_size: SizeFigure


def draw(cells: Iterable[Cell], run: BoardRun, against: str) -> Rooflines | None:
    """Both figures; None without the ceiling of a copy, or with too few cases."""
    placed = [(cell, found) for cell in cells if (found := work(cell.case.case))]
    if not run.copy_gb_s or len(placed) < _LEAST:
        return None
    ceilings = Ceilings(run.copy_gb_s, run.matmul_tflop_s, run.l2_bytes)
    return Rooflines(_by_intensity(placed, run.blocks, against, ceilings), _by_size(placed, against, ceilings))


def _by_intensity(
    placed: Sequence[tuple[Cell, Work]], blocks: Iterable[BoardCase], against: str, ceilings: Ceilings
) -> Roofline:
    own = [(found.intensity, found.flops / cell.case.own.median / 1e6) for cell, found in placed]
    others = [
        (found.intensity, found.flops / other.median / 1e6)
        for cell, found in placed
        if (other := other_time(cell.case, against))
    ]
    of_blocks = [(found.intensity, found.flops / one.own.median / 1e6) for one in blocks if (found := work(one.case))]
    every = own + others + of_blocks
    right = max([8.0, *(3 * x for x, _ in every), 4 * (ceilings.ridge or 0.0)])
    left = min([0.25, *(x / 2 for x, _ in every)])
    top = attainable_tflop_s(right, ceilings.copy_gb_s, ceilings.matmul_tflop_s)
    x = Scale(left, right, 46, 408, log=True)
    y = Scale(min(value for _, value in every) / 2, max(top, *(value for _, value in every)) * 1.6, 262, 10, log=True)
    ridge = ceilings.ridge if ceilings.ridge and ceilings.ridge < right else None
    corners = [left, *([ridge] if ridge else []), right]
    corners_tflop_s = [attainable_tflop_s(one, ceilings.copy_gb_s, ceilings.matmul_tflop_s) for one in corners]
    # The slope begins where it enters the figure.
    if corners_tflop_s[0] < y.low:
        corners[0], corners_tflop_s[0] = y.low * 1e3 / ceilings.copy_gb_s, y.low
    names = dict[str, float]()
    for cell, found in placed:
        names.setdefault(cell.name.family, found.intensity)
    return Roofline(
        line((x(at), y(tflop_s)) for at, tflop_s in zip(corners, corners_tflop_s, strict=True)),
        (x(ridge), y(ceilings.matmul_tflop_s or top)) if ridge else None,
        [(x(value), f"{value:g}") for value in log_ticks(x.low, x.high, 8)],
        [(y(value), f"{value:,g}") for value in log_ticks(y.low, y.high, 6)],
        dots((x(at), y(tflop_s)) for at, tflop_s in own),
        "".join(_dash(x(at), y(tflop_s)) for at, tflop_s in others),
        dots((x(at), y(tflop_s)) for at, tflop_s in of_blocks),
        [
            (name, at, attainable_tflop_s(at, ceilings.copy_gb_s, ceilings.matmul_tflop_s))
            for name, at in sorted(names.items(), key=lambda one: one[1])
        ],
        ceilings,
    )


def _by_size(placed: Sequence[tuple[Cell, Work]], against: str, ceilings: Ceilings) -> SizeFigure:
    sizes = [found.bytes for _, found in placed]
    compared = [(cell, found, other_time(cell.case, against)) for cell, found in placed]
    times = [time for cell, _, other in compared for time in (cell.case.own.median, other and other.median) if time]
    shortest = min(times)
    speeds = [
        found.bytes / time / 1e3
        for cell, found, other in compared
        for time in (cell.case.own.median, other and other.median)
        if time
    ]
    x = Scale(min(sizes) / 1.5, max([*sizes, ceilings.l2_bytes or 0.0]) * 1.5, 46, 768, log=True)
    y = Scale(0.0, max(ceilings.copy_gb_s, *speeds) * 1.08, 262, 10)
    floor_end = min(x.high, y.high * shortest * 1e3)
    floor = [x.low * (floor_end / x.low) ** (n / _CURVE) for n in range(_CURVE + 1)]
    middle = ceilings.copy_gb_s * shortest * 1e3 * 0.6
    return SizeFigure(
        [(x(value), _bytes(value)) for value in _powers(x.low, x.high)],
        [(y(value), f"{value:,g}") for value in ticks(y.low, y.high, 6)],
        y(ceilings.copy_gb_s),
        x(ceilings.l2_bytes) if ceilings.l2_bytes and ceilings.l2_bytes > x.low else None,
        line((x(at), y(at / shortest / 1e3)) for at in floor),
        shortest,
        (x(middle), y(middle / shortest / 1e3)),
        [_sized_dot(cell, found, other, x, y) for cell, found, other in compared],
    )


def _sized_dot(cell: Cell, found: Work, other: Timed | None, x: Scale, y: Scale) -> SizedDot:
    at, own = x(found.bytes), y(found.bytes / cell.case.own.median / 1e3)
    compared = _dash(at, y(found.bytes / other.median / 1e3), own) if other else ""
    return SizedDot(cell, dots([(at, own)]), compared)


def _dash(x: float, y: float, to: float | None = None) -> str:
    """The mark of another provider, with a line to ours."""
    line_to = f"M{place(x)} {place(y)}V{place(to)}" if to is not None else ""
    return f"M{place(x - _DASH)} {place(y)}h{place(2 * _DASH)}{line_to}"


def _powers(low: float, high: float) -> list[float]:
    """Powers of 4 KiB, 16, 64, …: of two between them there is one label."""
    return [4.0**n for n in range(math.ceil(math.log(low, 4)), math.floor(math.log(high, 4)) + 1)]


def _bytes(value: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:,.0f} {unit}"
    return f"{value:.0f} B"
