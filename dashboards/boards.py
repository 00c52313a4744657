"""The board: cases as a heat map by op, direction and shape, the gaps, and GB/s against columns.  Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dashboards.drawing import Scale, dots, line
from dashboards.runs.case_names import CaseName, case_name
from service.ledger.reading.board import BoardCase

BEST = "best"  # of all other providers, case by case
# Upper ends of the steps of colour around 1, finer where decisions are made; the last step has none.
STEPS = (0.60, 0.80, 0.95, 0.98, 1.02, 1.05, 1.10, 1.25)
_SMALL_ROWS = 256
_LEAST = 3  # cells of a number of columns, and of an op and direction, without which neither is worth a line of the map


@dataclass(frozen=True)
class Cell:
    """A case on the board."""

    case: BoardCase
    name: CaseName
    ratio: float | None  # our time over the other's
    share: float | None  # of the ceiling of a copy, in per cent; None in the L2 cache

    @property
    def step(self) -> int:
        """The step of colour."""
        return next((n for n, end in enumerate(STEPS) if (self.ratio or 1.0) <= end), len(STEPS))

    @property
    def at_stake(self) -> float:
        """µs of a call that the other provider does not need."""
        return self.case.own.median * (1 - 1 / self.ratio) if self.ratio else 0.0


@dataclass(frozen=True)
class HeatRow:
    """A number of rows of one op and direction, by columns."""

    rows: int
    cells: Mapping[int, Cell]


@dataclass(frozen=True)
class HeatGroup:
    """An op and a direction with the same dtypes; the most rows first."""

    title: str
    geomean: float | None
    rows: Sequence[HeatRow]


@dataclass(frozen=True)
class NamedRow:
    """A shape of a model, forward and backward."""

    model: str
    shape: str
    forward: Cell | None
    backward: Cell | None


@dataclass(frozen=True)
class SpeedFigure:
    """GB/s against columns of one op and direction: a small figure of 280 by 190 px."""

    title: str
    ceiling_y: float | None
    grid: Sequence[tuple[float, str]]
    columns: Sequence[tuple[float, str]]
    lines: Sequence[tuple[str, str, str, float, float]]  # provider, path, dots, end


@dataclass(frozen=True)
class Board:
    """All that the page shows of one run."""

    cells: Sequence[Cell]
    columns: Sequence[int]
    groups: Sequence[HeatGroup]
    models: Mapping[str, Sequence[NamedRow]]
    few: Sequence[HeatGroup]
    few_columns: Sequence[int]
    single: Sequence[Cell]  # those that the map has no line for
    figures: Sequence[SpeedFigure]

    @property
    def compared(self) -> Sequence[Cell]:
        return [cell for cell in self.cells if cell.ratio is not None]

    @property
    def ahead(self) -> int:
        return sum((cell.ratio or 1.0) < 1 / 1.02 for cell in self.compared)

    @property
    def behind(self) -> Sequence[Cell]:
        """The cases that were judged behind, those with the most time at stake first."""
        return sorted((cell for cell in self.compared if cell.case.behind), key=lambda cell: -cell.at_stake)

    @property
    def geomean(self) -> float | None:
        return _geomean(self.compared)


def providers(cases: Iterable[BoardCase]) -> list[str]:
    """The other providers, those of the most cases first."""
    return [name for name, _ in Counter(other for case in cases for other in case.others).most_common()]


def dtypes(cases: Iterable[BoardCase]) -> dict[str, int]:
    """The dtypes of the cases, with how many have them, the most first."""
    return dict(Counter(case_name(case.case).dtypes for case in cases).most_common())


def compose(cases: Iterable[BoardCase], against: str, sota: str, copy_gb_s: float | None, ours: str) -> Board:
    """The board of some cases against a provider, or against the best of all.

    The ratio to SOTA is the one that was judged; to others it is that of the medians of the session.
    """
    cells = [_cell(case, against, sota, copy_gb_s) for case in cases]
    sized = [cell for cell in cells if cell.name.rows and cell.name.columns]
    models = [cell for cell in sized if cell.name.model]
    few = [cell for cell in sized if not cell.name.model and (cell.name.rows or 0) <= _SMALL_ROWS]
    large = [cell for cell in sized if not cell.name.model and (cell.name.rows or 0) > _SMALL_ROWS]
    swept = _often(large)
    return Board(
        cells,
        sorted({cell.name.columns or 0 for cell in swept}),
        _groups(swept),
        _models(models),
        _groups(few),
        sorted({cell.name.columns or 0 for cell in few}),
        [cell for cell in large if cell not in swept],
        _figures(swept, copy_gb_s, ours),
    )


def _cell(case: BoardCase, against: str, sota: str, copy_gb_s: float | None) -> Cell:
    share = 100 * case.own.gb_s / copy_gb_s if case.own.gb_s and copy_gb_s and not case.in_cache else None
    if against == BEST:
        best = min((other.median for other in case.others.values()), default=None)
    else:
        best = case.others[against].median if against in case.others else None
    ratio = case.ratio if against == sota and case.ratio else case.own.median / best if best else None
    return Cell(case, case_name(case.case), ratio, share)


def _often(cells: Sequence[Cell]) -> list[Cell]:
    """The cells whose number of columns, and whose op and direction, have several."""
    columns = Counter(cell.name.columns for cell in cells)
    kept = [cell for cell in cells if columns[cell.name.columns] >= _LEAST]
    families = Counter((cell.name.family, cell.name.dtypes) for cell in kept)
    return [cell for cell in kept if families[cell.name.family, cell.name.dtypes] >= _LEAST]


def _groups(cells: Iterable[Cell]) -> list[HeatGroup]:
    by_family = defaultdict[tuple[str, str], list[Cell]](list)
    for cell in cells:
        by_family[cell.name.family, cell.name.dtypes].append(cell)
    return [HeatGroup(f"{family}, {dtypes}", _geomean(own), _rows(own)) for (family, dtypes), own in by_family.items()]


def _rows(cells: Iterable[Cell]) -> list[HeatRow]:
    by_rows = defaultdict[int, dict[int, Cell]](dict)
    for cell in cells:
        by_rows[cell.name.rows or 0][cell.name.columns or 0] = cell
    return [HeatRow(rows, by_rows[rows]) for rows in sorted(by_rows, reverse=True)]


def _models(cells: Iterable[Cell]) -> dict[str, list[NamedRow]]:
    tables = defaultdict[str, dict[tuple[str, str], dict[str, Cell]]](dict)
    for cell in cells:
        name = cell.name
        shapes = tables[f"{name.op_words}, {name.dtypes}"]
        shapes.setdefault((name.model, name.shape), {})[name.direction] = cell
    return {
        title: [NamedRow(model, shape, found.get("fwd"), found.get("bwd")) for (model, shape), found in shapes.items()]
        for title, shapes in tables.items()
    }


def _geomean(cells: Iterable[Cell]) -> float | None:
    logs = [math.log(cell.ratio) for cell in cells if cell.ratio]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _figures(cells: Iterable[Cell], ceiling: float | None, ours: str) -> list[SpeedFigure]:
    """GB/s of every provider, at the most rows of each number of columns."""
    by_family = defaultdict[tuple[str, str], dict[int, Cell]](dict)
    for cell in cells:
        widest = by_family[cell.name.family, cell.name.dtypes]
        columns = cell.name.columns or 0
        if cell.case.own.gb_s and (columns not in widest or (widest[columns].name.rows or 0) < (cell.name.rows or 0)):
            widest[columns] = cell
    figures = []
    for (family, dtypes), widest in by_family.items():
        if len(widest) >= 3:
            figures.append(_figure(f"{family}, {dtypes}", widest, ceiling, ours))
    return figures


def _figure(title: str, widest: Mapping[int, Cell], ceiling: float | None, ours: str) -> SpeedFigure:
    columns = sorted(widest)
    speeds = defaultdict[str, list[tuple[int, float]]](list)
    for number in columns:
        cell = widest[number]
        speeds[ours].append((number, cell.case.own.gb_s or 0.0))
        for other, timed in cell.case.others.items():
            if timed.gb_s:
                speeds[other].append((number, timed.gb_s))
    most = max([ceiling or 0.0, *(speed for ones in speeds.values() for _, speed in ones)])
    x = Scale(columns[0], columns[-1], 40, 200, log=True)
    y = Scale(0.0, most * 1.06, 160, 8)
    shown = columns if len(columns) <= 6 else columns[:: math.ceil(len(columns) / 6)]
    ends = dict[str, float]()
    last = -math.inf
    for name in sorted(speeds, key=lambda one: y(speeds[one][-1][1])):
        last = ends[name] = max(y(speeds[name][-1][1]), last + 11)
    return SpeedFigure(
        title,
        y(ceiling) if ceiling else None,
        [(y(value), f"{value:,.0f}") for value in y.ticks],
        [(x(value), short_number(value)) for value in shown],
        [
            (
                name,
                line((x(at), y(speed)) for at, speed in ones),
                dots((x(at), y(speed)) for at, speed in ones),
                x(ones[-1][0]),
                ends[name],
            )
            for name, ones in speeds.items()
        ],
    )


def short_number(value: int) -> str:
    """`4k` is 4,096; a number that is no multiple of 1,024 is written in full."""
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else f"{value:,}"
