"""Runs that fit a filter, and what one of them measured and decided, part by part."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, selectinload, undefer

from service.db.models import Measurement, Revision, Run, Target, VerdictRow, storable, unpack
from service.db.paging import ResultPage, paged
from service.domain import roofline
from service.domain.states import BaselineKind, CellState, Rounds, TargetKind
from service.domain.text import listed as in_words
from service.errors import NotFound
from service.ledger import queries
from service.ledger.reading.filters import CaseFilter, RunFilter
from service.reports.report import Report

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
    """A page of measurements, and the ceilings of their session."""

    page: ResultPage[Measurement]
    ceilings: dict[str, float]


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
    return MeasuredPage(paged(session, statement, (Measurement.id,), cursor, limit, ascending=True), _ceilings(run))


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
    found = queries.found_in(session, run_id)
    statement = select(VerdictRow).where(VerdictRow.run_id == run_id, *which.on(VerdictRow))
    if outcomes:
        statement = statement.where(VerdictRow.outcome.in_(outcomes))
    if baseline_kind is not None:
        statement = statement.where(VerdictRow.baseline_kind == baseline_kind)
    statement = statement.options(selectinload(VerdictRow.policy))
    return paged(session, statement, (VerdictRow.id,), cursor, limit, ascending=True), found


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
        known = session.scalars(
            select(Measurement.contender).where(Measurement.run_id == run.id).distinct().order_by(Measurement.contender)
        ).all()
        hint = f"Its contenders are {in_words(known)}." if known else "It measured nothing."
        raise NotFound(f"measurement of {contender!r} at {case!r} in run", run_id, hint)
    return Samples(row, *(unpack(row.samples) if row.samples else ([], [], [])))


def _run(session: Session, run_id: int) -> Run:
    run = session.get(Run, run_id, options=[undefer(Run.telemetry)])
    if run is None:
        raise NotFound("run", run_id)
    return run


def _ceilings(run: Run) -> dict[str, float]:
    return roofline.ceilings(run.telemetry)
