"""The board: cases as a heat map by op, direction and shape, the gaps, and GB/s against columns.  Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dashboards.case_names import CaseName, case_name
from dashboards.drawing import Figure, Scale, apart, spread_labels, ticks
from kernels.cases import Direction
from service.domain.text import short
from service.ledger.reading.board import BoardCase, Timed
from service.reports.trends import day

BEST = "best"  # of all other providers, case by case
# Upper ends of the steps of colour around 1, finer where decisions are made; the last step has none.
STEPS = (0.60, 0.80, 0.95, 0.98, 1.02, 1.05, 1.10, 1.25)
_LINE = 5  # cells of a number of rows, from which it has a line of the map for itself
_COLUMNS = 16  # that fit a window; of more, those of few cells are left to the list of single shapes
_LEAST = (
    3  # cells of a number of columns, and of an op and direction, without which it is left out of a map with too many
)


@dataclass(frozen=True)
class Cell:
    """A case on the board."""

    case: BoardCase
    name: CaseName
    ratio: float | None  # our time over the other's
    share: float | None  # of the ceiling of a copy, in per cent; None in the L2 cache
    behind: bool  # as judged against SOTA; against others, by more than the limit of SOTA
    provider: str = ""  # with a comma before it, where the target has several

    @property
    def kind(self) -> str:
        """`RMSNorm forward, bf16`: what cases of one line of the map, and of one figure, have in common."""
        return f"{self.name.family}, {self.name.dtypes}{self.provider}"

    @property
    def step(self) -> int:
        """The step of colour."""
        return next((n for n, end in enumerate(STEPS) if (self.ratio or 1.0) <= end), len(STEPS))

    @property
    def at_stake(self) -> float:
        """µs of a call that the other provider does not need."""
        return self.case.own.median * (1 - 1 / self.ratio) if self.ratio else 0.0

    @property
    def tone(self) -> str:
        """The classes of the cell in a table: its step of colour, and whether it is behind."""
        return (f"s{self.step}" if self.ratio is not None else "plain") + (" behind" if self.behind else "")

    @property
    def ratio_text(self) -> str:
        return f"{self.ratio:.2f}" if self.ratio is not None else "–"

    def percent(self, *, shared: bool = False) -> str:
        """The share of the ceiling, as a cell shows it; in a shared line it has no room after a long number."""
        long = shared and (self.name.rows or 0) % 1024
        return f"{self.share:.0f}" if self.share and not long else ""

    def link_name(self, against: str, *, shared: bool = False) -> str:
        """The name of the link of the cell: it begins with the text that the cell shows."""
        percent, since = self.percent(shared=shared), self.case.behind_since
        rows = f"{short_number(self.name.rows or 0)} " if shared else ""
        what = f"{percent} % of a copy" if percent else f"× {against}"
        behind = f", behind since {day(since.committed_at)}" if since else ", behind"
        return f"{rows}{self.ratio_text} {what}, {self.name.shape}{behind if self.behind else ''}"

    def label(self, against: str) -> str:
        """What the cell says to somebody who hears it: ratio, shape, share of the ceiling, and since when behind."""
        name, since, own = self.name, self.case.behind_since, self.case.own.median
        parts = [
            f"{self.ratio:.2f} × {against}" if self.ratio else f"{against} was not measured",
            f"{name.family} {name.shape} {name.dtypes}",
            f"{own:,.{2 if own < 9.995 else 1}f} µs",
        ]
        if self.case.in_cache:
            parts.append("data in the L2 cache")
        elif self.share:
            parts.append(f"{self.share:.0f} % of a copy")
        if self.behind:
            parts.append(f"behind since {short(since.revision)}" if since else "behind")
        return ", ".join(parts)


@dataclass(frozen=True)
class HeatRow:
    """A line of the map, by columns.

    Numbers of rows with few cells share a line where their columns differ; each of its cells then names its rows.
    """

    cells: Mapping[int, Cell]

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
    forward: Cell | None
    backward: Cell | None


@dataclass(frozen=True)
class Board:
    """All that the page shows of one run."""

    cells: Sequence[Cell]
    columns: Sequence[int]
    groups: Sequence[HeatGroup]
    models: Mapping[str, Sequence[NamedRow]]
    few: Sequence[HeatGroup]
    single: Sequence[Cell]  # those that the map has no line for
    figures: Mapping[str, Figure]  # GB/s against columns of an op and direction, by its name

    @property
    def compared(self) -> Sequence[Cell]:
        return [cell for cell in self.cells if cell.ratio is not None]

    @property
    def ahead(self) -> int:
        return sum((cell.ratio or 1.0) < 1 / 1.02 for cell in self.compared)

    @property
    def behind(self) -> Sequence[Cell]:
        """The cases that were judged behind, those with the most time at stake first."""
        return sorted((cell for cell in self.compared if cell.behind), key=lambda cell: -cell.at_stake)

    @property
    def geomean(self) -> float | None:
        return geometric_mean(self.compared)

    @property
    def small(self) -> Sequence[Cell]:
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
    """The board of some cases against a provider, or against the best of all.

    The ratio to SOTA is the one that was judged; to others it is that of the medians of the session, and above `limit`
    it is behind.
    """
    found = list(cases)
    several = len({case.provider for case in found}) > 1
    cells = [_cell(case, against, sota, copy_gb_s, limit, named=several) for case in found]
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


def _divided(cells: Iterable[Cell]) -> tuple[list[Cell], list[Cell], list[Cell], list[Cell]]:
    """The cells of models, of small batches, of the map, and those that have no place in any of them."""
    models, few, large, single = list[Cell](), list[Cell](), list[Cell](), list[Cell]()
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


def _cell(case: BoardCase, against: str, sota: str, copy_gb_s: float | None, limit: float, *, named: bool) -> Cell:
    share = 100 * case.own.gb_s / copy_gb_s if case.own.gb_s and copy_gb_s and not case.in_cache else None
    other = other_time(case, against)
    ratio = case.ratio if against == sota and case.ratio else case.own.median / other.median if other else None
    behind = case.behind if against == sota else ratio is not None and ratio > limit
    return Cell(case, case_name(case.case), ratio, share, behind, f", {case.provider}" if named else "")


def other_time(case: BoardCase, against: str) -> Timed | None:
    """The time of the provider that the board compares with, or of the fastest of all."""
    if against == BEST:
        return min(case.others.values(), key=lambda one: one.median, default=None)
    return case.others.get(against)


def _often(cells: Iterable[Cell]) -> tuple[list[Cell], list[Cell]]:
    """The cells of the map; and the others, whose number of columns or whose kind has few, where not all have room."""
    some = list(cells)
    columns = Counter(cell.name.columns for cell in some)
    if len(columns) <= _COLUMNS:
        return some, []
    kinds = Counter(cell.kind for cell in some if columns[cell.name.columns] >= _LEAST)
    often, rare = list[Cell](), list[Cell]()
    for cell in some:
        several = columns[cell.name.columns] >= _LEAST and kinds[cell.kind] >= _LEAST
        (often if several else rare).append(cell)
    return often, rare


def _groups(cells: Iterable[Cell], lines: Callable[[Iterable[Cell]], list[HeatRow]]) -> list[HeatGroup]:
    by_kind = defaultdict[str, list[Cell]](list)
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


def _lines(cells: Iterable[Cell]) -> list[HeatRow]:
    """A line for each number of rows, the most first."""
    by_rows = defaultdict[int, dict[int, Cell]](dict)
    for cell in cells:
        by_rows[cell.name.rows or 0][cell.name.columns or 0] = cell
    return [HeatRow(by_rows[rows]) for rows in sorted(by_rows, reverse=True)]


def _shared_lines(cells: Iterable[Cell]) -> list[HeatRow]:
    """The same, but numbers of rows with few cells share lines."""
    shared: list[dict[int, Cell]] = []
    for own in (dict(row.cells) for row in _lines(cells)):
        free = (one for one in shared if max(len(one), len(own)) < _LINE and not one.keys() & own.keys())
        if (line_of_several := next(free, None)) is not None:
            line_of_several.update(own)
        else:
            shared.append(own)
    return [HeatRow(one) for one in shared]


def _models(cells: Iterable[Cell]) -> dict[str, list[NamedRow]]:
    tables = defaultdict[str, dict[tuple[str, str, int], dict[str, Cell]]](dict)
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


def geometric_mean(cells: Iterable[Cell]) -> float | None:
    logs = [math.log(cell.ratio) for cell in cells if cell.ratio]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _figures(cells: Iterable[Cell], ceiling: float | None, ours: str) -> dict[str, Figure]:
    """GB/s of every provider, at the most rows of each number of columns."""
    by_kind = defaultdict[str, dict[int, Cell]](dict)
    for cell in cells:
        widest = by_kind[cell.kind]
        columns = cell.name.columns or 0
        if cell.case.own.gb_s and (columns not in widest or (widest[columns].name.rows or 0) < (cell.name.rows or 0)):
            widest[columns] = cell
    return {kind: _figure(kind, widest, ceiling, ours) for kind, widest in by_kind.items() if len(widest) >= _LEAST}


def _figure(title: str, widest: Mapping[int, Cell], ceiling: float | None, ours: str) -> Figure:
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


def short_number(value: int) -> str:
    """`4k` is 4,096; a number that is no multiple of 1,024 is written in full."""
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else f"{value:,}"
