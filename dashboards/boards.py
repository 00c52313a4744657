"""The board: cases as a heat map by op, direction and shape, the gaps, and GB/s against columns.  Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dashboards.drawing import Figure, Scale, apart, spread_labels, ticks
from kernels.cases import Direction
from service.domain.case_names import CaseName, case_name
from service.reports.charts.board import BoardCase, BoardCell, cells_of, short_number

_LINE = 5  # cells of a number of rows, from which it has a line of the map for itself
_COLUMNS = 16  # that fit a window; of more, those of few cells are left to the list of single shapes
_LEAST = (
    3  # cells of a number of columns, and of an op and direction, without which it is left out of a map with too many
)


@dataclass(frozen=True)
class HeatRow:
    """A line of the map, by columns.

    Numbers of rows with few cells share a line where their columns differ; each of its cells then names its rows.
    """

    cells: Mapping[int, BoardCell]

    @cached_property
    def most(self) -> int:
        return max(cell.name.rows or 0 for cell in self.cells.values())

    @cached_property
    def shared(self) -> bool:
        return any(cell.name.rows != self.most for cell in self.cells.values())


@dataclass(frozen=True)
class HeatGroup:
    """An op and a direction with the same dtypes; the most rows first.  Groups are sorted by time at stake."""

    family: str
    dtypes: str  # and the provider, where the target has several
    geomean: float | None
    rows: Sequence[HeatRow]
    at_stake: float  # µs of one call of each case that is behind

    @property
    def columns(self) -> Sequence[int]:
        return sorted({number for row in self.rows for number in row.cells})


@dataclass(frozen=True)
class NamedRow:
    """A shape of a model, forward and backward."""

    model: str
    shape: str
    stride: int  # elements between rows; 0 if they are dense
    forward: BoardCell | None
    backward: BoardCell | None


@dataclass(frozen=True)
class Board:
    """All that the page shows of one run."""

    cells: Sequence[BoardCell]
    columns: Sequence[int]
    groups: Sequence[HeatGroup]
    models: Mapping[str, Sequence[NamedRow]]
    few: Sequence[HeatGroup]
    single: Sequence[BoardCell]  # those that the map has no line for
    figures: Mapping[str, Figure]  # GB/s against columns of an op and direction, by its name

    @property
    def compared(self) -> Sequence[BoardCell]:
        return [cell for cell in self.cells if cell.ratio is not None]

    @property
    def ahead(self) -> int:
        return sum((cell.ratio or 1.0) < 1 / 1.02 for cell in self.compared)

    @property
    def behind(self) -> Sequence[BoardCell]:
        """The cases that were judged behind, those with the most time at stake first."""
        return sorted((cell for cell in self.compared if cell.behind), key=lambda cell: -cell.at_stake)

    @property
    def geomean(self) -> float | None:
        return geometric_mean(self.compared)

    @property
    def fastest(self) -> list[tuple[str, int]]:
        """The providers that cells are compared with, and at how many; those of the most first."""
        return Counter(cell.other for cell in self.cells if cell.other).most_common()

    @property
    def small(self) -> Sequence[BoardCell]:
        """The cells of small batches and of single shapes."""
        return [cell for group in self.few for row in group.rows for cell in row.cells.values()] + list(self.single)


def providers(cases: Iterable[BoardCase]) -> list[str]:
    """The other providers, those of the most cases first."""
    return [name for name, _ in Counter(other for case in cases for other in case.others).most_common()]


def dtypes(cases: Iterable[BoardCase]) -> dict[str, int]:
    """The dtypes of the cases, with how many have them, the most first."""
    return dict(Counter(case_name(case.case).dtypes for case in cases).most_common())


def compose(
    cases: Iterable[BoardCase], against: str, sota: str, copy_gb_s: float | None, ours: str, limit: float = 1.05
) -> Board:
    """The board of some cases against a provider, or against the best of all."""
    cells = cells_of(cases, against, sota, copy_gb_s, limit)
    models, few, large, single = _divided(cells)
    swept, rare = _often(large)
    return Board(
        cells,
        sorted({cell.name.columns or 0 for cell in swept}),
        _groups(swept, _shared_lines),
        _models(models),
        _groups(few, _lines),
        [*rare, *single],
        _figures(swept, copy_gb_s, ours),
    )


def _divided(cells: Iterable[BoardCell]) -> tuple[list[BoardCell], list[BoardCell], list[BoardCell], list[BoardCell]]:
    """The cells of models, of small batches, of the map, and those that have no place in any of them."""
    models, few, large, single = list[BoardCell](), list[BoardCell](), list[BoardCell](), list[BoardCell]()
    for cell in cells:
        name = cell.name
        if name.model and name.direction in (Direction.FWD, Direction.BWD):
            models.append(cell)
        elif name.model or name.stride or not name.rows or not name.columns:
            single.append(cell)
        elif name.small:
            few.append(cell)
        else:
            large.append(cell)
    return models, few, large, single


def _often(cells: Iterable[BoardCell]) -> tuple[list[BoardCell], list[BoardCell]]:
    """The cells of the map; and the others, whose number of columns or whose kind has few, where not all have room."""
    some = list(cells)
    columns = Counter(cell.name.columns for cell in some)
    if len(columns) <= _COLUMNS:
        return some, []
    kinds = Counter(cell.kind for cell in some if columns[cell.name.columns] >= _LEAST)
    often, rare = list[BoardCell](), list[BoardCell]()
    for cell in some:
        several = columns[cell.name.columns] >= _LEAST and kinds[cell.kind] >= _LEAST
        (often if several else rare).append(cell)
    return often, rare


def _groups(cells: Iterable[BoardCell], lines: Callable[[Iterable[BoardCell]], list[HeatRow]]) -> list[HeatGroup]:
    by_kind = defaultdict[str, list[BoardCell]](list)
    for cell in cells:
        by_kind[cell.kind].append(cell)
    groups = [
        HeatGroup(
            own[0].name.family,
            f"{own[0].name.dtypes}{own[0].provider}",
            geometric_mean(own),
            lines(own),
            sum(cell.at_stake for cell in own if cell.behind),
        )
        for own in by_kind.values()
    ]
    return sorted(groups, key=lambda group: -group.at_stake)


def _lines(cells: Iterable[BoardCell]) -> list[HeatRow]:
    """A line for each number of rows, the most first."""
    by_rows = defaultdict[int, dict[int, BoardCell]](dict)
    for cell in cells:
        by_rows[cell.name.rows or 0][cell.name.columns or 0] = cell
    return [HeatRow(by_rows[rows]) for rows in sorted(by_rows, reverse=True)]


def _shared_lines(cells: Iterable[BoardCell]) -> list[HeatRow]:
    """The same, but numbers of rows with few cells share lines."""
    shared: list[dict[int, BoardCell]] = []
    for own in (dict(row.cells) for row in _lines(cells)):
        free = (one for one in shared if max(len(one), len(own)) < _LINE and not one.keys() & own.keys())
        if (line_of_several := next(free, None)) is not None:
            line_of_several.update(own)
        else:
            shared.append(own)
    return [HeatRow(one) for one in shared]


def _models(cells: Iterable[BoardCell]) -> dict[str, list[NamedRow]]:
    tables = defaultdict[str, dict[tuple[str, str, int], dict[str, BoardCell]]](dict)
    for cell in cells:
        name = cell.name
        shapes = tables[f"{name.op_words}, {name.dtypes}{cell.provider}"]
        shapes.setdefault((name.model, plain_shape(name), name.stride), {})[name.direction] = cell
    return {
        title: [NamedRow(*shape, found.get("fwd"), found.get("bwd")) for shape, found in shapes.items()]
        for title, shapes in tables.items()
    }


def plain_shape(name: CaseName) -> str:
    """`4,096×512`, without its stride; of an unknown case, its text."""
    return f"{name.rows:,}×{name.columns:,}" if name.rows and name.columns else name.shape


def geometric_mean(cells: Iterable[BoardCell]) -> float | None:
    logs = [math.log(cell.ratio) for cell in cells if cell.ratio]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _figures(cells: Iterable[BoardCell], ceiling: float | None, ours: str) -> dict[str, Figure]:
    """GB/s of every provider, at the most rows of each number of columns."""
    by_kind = defaultdict[str, dict[int, BoardCell]](dict)
    for cell in cells:
        widest = by_kind[cell.kind]
        columns = cell.name.columns or 0
        if cell.case.own.gb_s and (columns not in widest or (widest[columns].name.rows or 0) < (cell.name.rows or 0)):
            widest[columns] = cell
    return {kind: _figure(kind, widest, ceiling, ours) for kind, widest in by_kind.items() if len(widest) >= _LEAST}


def _figure(title: str, widest: Mapping[int, BoardCell], ceiling: float | None, ours: str) -> Figure:
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
    y = Scale(0.0, most * 1.06, 134, 8)
    figure = Figure(300, 160, f"GB/s of {title} against columns; the heat map has the ratios", width="100%")
    figure.rows([(y(value), f"{value:,.0f}") for value in ticks(y.low, y.high, 4)], x.start, x.end)
    figure.columns(spread_labels([(x(value), short_number(value), value) for value in columns]), 150)
    if ceiling:
        figure.across("ceiling", y(ceiling), x.start, x.end)
    ends = apart([y(ones[-1][1]) for ones in speeds.values()], 11)
    for n, (name, ones) in enumerate(speeds.items()):
        figure.series(f"l{n}", [[(x(at), y(speed)) for at, speed in ones]], name, x.end + 6, ends[n])
    return figure
