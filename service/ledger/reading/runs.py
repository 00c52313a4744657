"""Runs that fit a filter, and what one of them measured and decided, part by part."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import ColumnElement, func, not_, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, selectinload, undefer

from kernels.cases import Metric
from service.db.models import Measurement, Revision, Run, Target, VerdictRow, storable, unpack
from service.db.paging import ResultPage, paged, paged_rows
from service.domain.metrics import metric_of
from service.domain.states import BaselineKind, CellState, Purpose, Rounds, RunState, TargetKind
from service.domain.text import listed as in_words
from service.errors import NotFound
from service.ledger.reading import queries
from service.ledger.reading.contents import VERDICTS
from service.reports.report import Report


@dataclass(frozen=True)
class RunFilter:
    """Which runs; None and empty do not limit."""

    target: Target | None = None
    device: str | None = None
    states: Collection[RunState] = ()
    purpose: Purpose | None = None
    pull: int | None = None
    revision: str | None = None  # a sha or its beginning, or a version
    since: float | None = None  # when they were queued
    until: float | None = None  # queued before

    def conditions(self) -> list[ColumnElement[bool]]:
        """Conditions on the columns of runs; the revision needs a join."""
        limits = {Run.device: self.device, Run.purpose: self.purpose, Run.pull: self.pull}
        wanted = [column == value for column, value in limits.items() if value is not None]
        if self.target is not None:
            wanted.append(Run.target_id == self.target.id)
        if self.states:
            wanted.append(Run.state.in_(self.states))
        if self.since is not None:
            wanted.append(Run.created_at >= self.since)
        if self.until is not None:
            wanted.append(Run.created_at < self.until)
        return wanted


@dataclass(frozen=True)
class CaseFilter:
    """Which cases of which providers; None does not limit."""

    provider: str | None = None
    op: str | None = None
    metric: Metric | None = None
    case: str | None = None  # with * and ? as in file names

    def on(self, table: type[Measurement | VerdictRow]) -> tuple[ColumnElement[bool], ...]:
        """Conditions for a query of measurements or verdicts."""
        return tuple(self._conditions(table.provider, table.case))

    def _conditions(
        self, provider: InstrumentedAttribute[str], case: InstrumentedAttribute[str]
    ) -> Iterator[ColumnElement[bool]]:
        if self.provider is not None:
            yield provider == self.provider
        if self.op is not None:
            yield case.startswith(f"{self.op}.", autoescape=True)
        if self.metric is not None:
            yield _has_metric(case, self.metric)
        if self.case is not None:
            yield case.like(_pattern(self.case), escape="\\")

    def fits(self, provider: str, case: str) -> bool:
        """The same for a case that was read already."""
        return (
            self.provider in (None, provider)
            and (self.op is None or case.startswith(f"{self.op}."))
            and (self.metric is None or metric_of(case) is self.metric)
            and (self.case is None or fnmatchcase(case, self.case.replace("[", "[[]")))
        )


def _has_metric(case: InstrumentedAttribute[str], metric: Metric) -> ColumnElement[bool]:
    """The metric is the end of a printed case, except *kernel*."""
    if metric is not Metric.KERNEL:
        return case.endswith(f".{metric.value}")
    return not_(or_(*(case.endswith(f".{other.value}") for other in Metric if other is not Metric.KERNEL)))


def _pattern(glob: str) -> str:
    """`rmsnorm.*.bf16` as LIKE has it."""
    escaped = re.sub(r"([\\%_])", r"\\\1", glob)
    return escaped.replace("*", "%").replace("?", "_")


MIN_SHA = 4  # as for git
WHOLE_SHA = 40


def listed(
    session: Session,
    which: RunFilter,
    cursor: str | None = None,
    limit: int = 50,
    *,
    where: Collection[ColumnElement[bool]] = (),
) -> ResultPage[Run]:
    """The runs that fit, the newest first, each with its target and revision."""
    names = (selectinload(Run.target), selectinload(Run.revision))
    statement = select(Run).options(*names).where(*which.conditions(), *where)
    if which.revision is not None:
        named = is_revision(which.target, which.revision)
        statement = statement.join(Revision, Revision.id == Run.revision_id).where(named)
    return paged(session, statement, (Run.id,), cursor, limit)


def is_revision(target: Target | None, revision: str) -> ColumnElement[bool]:
    """Match a commit by a prefix, as git does, and a version exactly: 1.1 is not 1.10."""
    named = str(storable(revision))
    exactly = Revision.sha == named
    if len(named) < MIN_SHA or (target is not None and target.kind is not TargetKind.GIT):
        return exactly
    prefix = named.lower()
    # As a range as well, which an index finds.  The digits of a sha are smaller than "g".
    beginning = Revision.sha.startswith(prefix, autoescape=True) & Revision.sha.between(prefix, prefix + "g")
    return beginning if target is not None else exactly | (beginning & (func.length(Revision.sha) >= WHOLE_SHA))


@dataclass(frozen=True)
class MeasuredPage:
    """A page of measurements, and the telemetry of their session."""

    page: ResultPage[Measurement]
    telemetry: Mapping[str, Any] | None


def measurements(
    session: Session,
    run_id: int,
    which: CaseFilter,
    *,
    role: str | None = None,
    state: CellState | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> MeasuredPage:
    """What a run measured, in the order in which it was stored.  Raises NotFound."""
    run = _run(session, run_id)
    statement = select(Measurement).where(Measurement.run_id == run.id, *which.on(Measurement))
    if role is not None:
        statement = statement.where(Measurement.role == role)
    if state is not None:
        statement = statement.where(Measurement.state == state)
    return MeasuredPage(paged(session, statement, (Measurement.id,), cursor, limit, ascending=True), run.telemetry)


def verdicts(
    session: Session,
    run_id: int,
    which: CaseFilter,
    *,
    outcomes: Collection[str] = (),
    baseline_kind: BaselineKind | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> tuple[ResultPage[VerdictRow], Report]:
    """What a run decided, in the order in which it was stored, and the report that explains it.  Raises NotFound."""
    report = queries.found_in(session, run_id)
    statement = VERDICTS.params(run_id=run_id).where(*which.on(VerdictRow))
    if outcomes:
        statement = statement.where(VerdictRow.outcome.in_(outcomes))
    if baseline_kind is not None:
        statement = statement.where(VerdictRow.baseline_kind == baseline_kind)
    return paged_rows(session, statement, (VerdictRow.id,), cursor, limit, ascending=True), report


@dataclass(frozen=True)
class Samples:
    """What one contender took at one case, trial by trial, in the unit of the case."""

    measurement: Measurement
    screening: list[Rounds]
    confirmation: list[Rounds]
    apart: list[Rounds]


def samples(session: Session, run_id: int, contender: str, case: str) -> Samples:
    """The raw samples of a contender at a case; none where it was not measured.  Raises NotFound."""
    run = _run(session, run_id)
    asked = (Measurement.run_id == run.id, Measurement.contender == str(storable(contender)))
    row = session.scalar(
        select(Measurement).where(*asked, Measurement.case == str(storable(case))).options(undefer(Measurement.samples))
    )
    if row is None:
        contenders = session.scalars(
            select(Measurement.contender).where(Measurement.run_id == run.id).distinct().order_by(Measurement.contender)
        ).all()
        hint = f"Its contenders are {in_words(contenders)}." if contenders else "It measured nothing."
        raise NotFound(f"measurement of {contender!r} at {case!r} in run", run_id, hint)
    return Samples(row, *(unpack(row.samples) if row.samples else ([], [], [])))


def _run(session: Session, run_id: int) -> Run:
    run = session.get(Run, run_id, options=[undefer(Run.telemetry)])
    if run is None:
        raise NotFound("run", run_id)
    return run
