"""Load the measurements of a target and device as `Histories`, and the change points of their series."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Select, Text, cast, func, select
from sqlalchemy.orm import Session, aliased, contains_eager

from kernels.cases import Metric, Role
from service.db.models import WATCHED, ChangePoint, Measurement, Revision, Run, Series, Target
from service.db.paging import ResultPage, paged_rows
from service.domain.changepoints.series_table import Histories, Table
from service.domain.metrics import SeriesKey
from service.domain.states import CellState, PointState, RunState
from service.domain.verdicts.samples import Name
from service.ledger.targets import IS_SERIES
from service.reports.views import ChangePointView

FEW = 100  # series that are selected by name; with more, all are read


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run of the mainline.  If a revision has several, the newest that measured a case counts for it."""

    run_id: int
    revision_id: int
    sha: str
    ordinal: int
    stack: int  # 0 where it is not known
    worker: str | None
    at: float  # when it ended


@dataclass(frozen=True)
class Mainline:
    """The finished runs of a target on a device, ordered by revision, then oldest first.

    The place of a revision is its index in `line`.
    """

    target_id: int
    device: str
    runs: tuple[MeasuredRun, ...]

    @cached_property
    def line(self) -> tuple[MeasuredRun, ...]:
        return tuple({run.ordinal: run for run in self.runs}.values())

    @cached_property
    def place_of(self) -> Mapping[int, int]:
        """By revision."""
        return {run.revision_id: place for place, run in enumerate(self.line)}

    @cached_property
    def place_of_sha(self) -> Mapping[str, int]:
        return {run.sha: place for place, run in enumerate(self.line)}


def mainline(session: Session, target_id: int, device: str) -> Mainline:
    """Load every finished run of the mainline."""
    rows = session.execute(
        select(Run.id, Revision.id, Revision.sha, Revision.ordinal, Run.stack_id, Run.worker, Run.finished_at)
        .join(Revision, Revision.id == Run.revision_id)
        .where(*_counts(target_id, device))
        .order_by(Revision.ordinal, Run.id)
    )
    runs = (
        MeasuredRun(run_id, revision_id, sha, ordinal or 0, stack or 0, worker, at or 0.0)
        for run_id, revision_id, sha, ordinal, stack, worker, at in rows
    )
    return Mainline(target_id, device, tuple(runs))


def _counts(target_id: int, device: str) -> tuple[ColumnElement[bool], ...]:
    of_it = Run.target_id == target_id, Run.device == device, Run.state == RunState.DONE
    return *of_it, WATCHED, Revision.ordinal.is_not(None)


def histories(
    session: Session, measured: Mainline, newest: int | None = None, only: Collection[Name] | None = None
) -> Histories:
    """Load all series or `only` some, at all places or only the `newest`.

    The newest run of a revision that measured the case counts.  SOTA's value is of the same run, and left out where
    SOTA was another provider than today.  Cases that failed, were wrong or not supported are left out, and counts: each
    difference between neighbours is decided without a history.
    """
    first = max(0, len(measured.line) - newest) if newest else 0
    if first >= len(measured.line):
        return _table(measured, 0, (), only)
    return _table(measured, first, _blocks(session, measured, first, only), only)


@dataclass(frozen=True)
class Block:
    """The medians of one provider in one run, joined into text by the database: fetching a million rows is slow."""

    run_id: int
    role: str
    provider: str
    cases: str  # one a line
    medians: str  # in the same order


def _blocks(session: Session, measured: Mainline, first: int, only: Collection[Name] | None) -> Iterator[Block]:
    runs = (
        select(Run.id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(*_counts(measured.target_id, measured.device), Revision.ordinal >= measured.line[first].ordinal)
    )
    whose = (Measurement.run_id, Measurement.role, Measurement.provider)
    statement = (
        select(
            *whose,
            func.aggregate_strings(Measurement.case, "\n"),
            func.aggregate_strings(cast(Measurement.median, Text), "\n"),
        )
        .where(Measurement.run_id.in_(runs), Measurement.role.in_((Role.HEAD.value, Role.SOTA.value)))
        .where(Measurement.state == CellState.MEASURED, Measurement.median > 0)
        .where(*(Measurement.case.not_like(f"%.{metric.value}") for metric in Metric if metric.counts))
        .group_by(*whose)
    )
    if only is not None and len(only) <= FEW:
        statement = statement.where(Measurement.case.in_({case for _, case in only}))
    for row in session.execute(statement):
        yield Block(*row)


def _table(measured: Mainline, first: int, blocks: Iterable[Block], only: Collection[Name] | None) -> Histories:
    """Fill a table with a column for each run, then merge the runs of each place."""
    counted = [run for run in measured.runs if measured.place_of[run.revision_id] >= first]
    column = {run.run_id: number for number, run in enumerate(counted)}
    own, best = _Grid(len(counted)), _Grid(len(counted))
    sota: dict[int, str] = {}
    for block in blocks:
        if block.run_id not in column:
            continue  # it ended after the runs were read; the next scan includes it
        number = column[block.run_id]
        if block.role == Role.SOTA.value:
            best.add("", number, block)
            sota[number] = block.provider
        else:
            own.add(block.provider, number, block)
    if sota:  # values of another provider than today's SOTA are no reference
        today = sota[max(sota)]
        best.forget([number for number, provider in sota.items() if provider != today])
    wanted = None if only is None else set(only)
    names = tuple(sorted(name for name in own.row if wanted is None or name in wanted))
    rows = np.array([own.row[name] for name in names], dtype=np.int64)
    values = own.values()[rows] if names else np.full((0, len(counted)), np.nan)
    references = best.values(tuple(("", case) for _, case in names))
    places = [measured.place_of[run.revision_id] for run in counted]
    return _by_place(names, counted, places, first, values, references)


class _Grid:
    """Medians by series and run, filled block by block."""

    def __init__(self, columns: int) -> None:
        self.row: dict[Name, int] = {}
        self._columns = columns
        self._rows_of: dict[tuple[str, str], NDArray[np.int64]] = {}  # every run has the same cases
        self._cells: list[tuple[NDArray[np.int64], int, Table]] = []

    def add(self, provider: str, column: int, block: Block) -> None:
        if (provider, block.cases) not in self._rows_of:
            names = [(provider, case) for case in block.cases.split("\n")]
            rows = [self.row.setdefault(name, len(self.row)) for name in names]
            self._rows_of[provider, block.cases] = np.array(rows, dtype=np.int64)
        medians = np.array(block.medians.split("\n"), dtype=np.float64)
        self._cells.append((self._rows_of[provider, block.cases], column, medians))

    def forget(self, columns: Collection[int]) -> None:
        self._cells = [cell for cell in self._cells if cell[1] not in columns]

    def values(self, names: Sequence[Name] | None = None) -> Table:
        """A row for each of `names`, or for each series in the order of `row`; NaN where nothing was measured."""
        grid = np.full((len(self.row) + 1, self._columns), np.nan)  # the last row is for unknown names
        for rows, column, medians in self._cells:
            grid[rows, column] = np.where(np.isfinite(medians), medians, np.nan)
        if names is None:
            return grid[:-1]
        return grid[[self.row.get(name, len(self.row)) for name in names]]


def _by_place(
    names: tuple[Name, ...],
    counted: Sequence[MeasuredRun],
    places: Sequence[int],
    first: int,
    values: Table,
    references: Table,
) -> Histories:
    shape = len(names), len(set(places))
    at_place, shared = np.full(shape, np.nan), np.full(shape, np.nan)
    stacks, runs = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    ended = {place: run.at for run, place in zip(counted, places, strict=True)}
    for number, (run, place) in enumerate(zip(counted, places, strict=True)):
        here, at = ~np.isnan(values[:, number]), place - first  # of one revision the newest comes last, and stays
        at_place[here, at], shared[here, at] = values[here, number], references[here, number]
        stacks[here, at], runs[here, at] = run.stack, run.run_id
    return Histories(names, first, at_place, shared, stacks, runs, tuple(ended[place] for place in sorted(ended)))


_NEWEST = (Revision.committed_at, ChangePoint.id)


def points(
    session: Session,
    target: Target | None,
    device: str | None = None,
    state: PointState | None = None,
    *,
    where: Collection[ColumnElement[bool]] = (),
    cursor: str | None = None,
    limit: int = 50,
) -> ResultPage[ChangePointView]:
    """The change points of a target or of all, newest revisions first."""
    which = [*where]
    if target is not None:
        which.append(Series.target_id == target.id)
    if device is not None:
        which.append(Series.device == device)
    if state is not None:
        which.append(ChangePoint.state == state)
    page = paged_rows(session, _with_revisions(*which), _NEWEST, cursor, limit)
    return page.shown_as(lambda row: ChangePointView(*row[:4]))


def points_of(session: Session, target: Target, case: str, provider: str, device: str) -> list[ChangePointView]:
    """The change points of one series, newest first."""
    key = SeriesKey.of(target.id, device, provider, case)
    return [ChangePointView(*row) for row in session.execute(_OF_SERIES, asdict(key))]


def _with_revisions(*which: ColumnElement[bool]) -> Select[ChangePoint, str, Revision, Revision]:
    before = aliased(Revision)
    return (
        select(ChangePoint, Target.name, Revision, before)
        .join(ChangePoint.series)
        .options(contains_eager(ChangePoint.series))
        .join(Target, Target.id == Series.target_id)
        .join(Revision, Revision.id == ChangePoint.revision_id)
        .join(before, before.id == ChangePoint.before_id)
        .where(*which)
    )


_OF_SERIES = _with_revisions(IS_SERIES).order_by(*(key.desc() for key in _NEWEST))  # made once: that takes longest
