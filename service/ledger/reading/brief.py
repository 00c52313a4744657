"""A run for a page that shows all of its cases on one screen: without the facts, samples and readings that it folds.

A run of 206 cases stores 1,030 measurements and 350 kB of telemetry, of which such a page needs a third.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import JSON, bindparam, column, func, null, select, true, type_coerce
from sqlalchemy import case as sql_case
from sqlalchemy.orm import Session

from kernels.cases import Role
from service.db.models import Measurement, RegressionRow, Run, storable, unpack
from service.domain.states import BaselineKind, Outcome, Rounds
from service.errors import NotFound
from service.ledger.reading import queries
from service.ledger.reading.contents import (
    MEASUREMENTS,
    OF_MEASUREMENT,
    OF_RUN,
    OF_VERDICT,
    VERDICTS,
    contents,
    decided,
    measured,
)
from service.reports.report import Report, RunContents

OTHERS = (Role.SOTA, Role.RIVAL)  # who is not of the target
_TELEMETRY = ("ceilings", "gpus", "no_sandbox")
_WHY = {"reason", "reason_code", "reason_args", "cause_kind", "cause_args"}
_UNCHANGED = {outcome.value for outcome in (Outcome.STEADY, Outcome.NEW, Outcome.REMOVED)}

_TIMED_APART = BaselineKind.WRONG_PARENT
_MEASUREMENTS, _VERDICTS = MEASUREMENTS.order_by(measured.id), VERDICTS.order_by(decided.id)
_HEADS = _MEASUREMENTS.where(measured.role == Role.HEAD)
_explained = sql_case((measured.case.in_(bindparam("explained", expanding=True)), measured.facts), else_=null())
_PARENTS = (
    select(*(column for column in OF_MEASUREMENT if column.name != "facts"), _explained.label("facts"))
    .where(measured.run_id == OF_RUN, measured.role == Role.PARENT)
    .order_by(measured.id)
)
# Why a ratio to SOTA is as it is, a page of the case says.
_says_why = (decided.baseline_kind != BaselineKind.SOTA) | decided.ratio.is_(None)
_SHOWN = (
    select(
        *(
            sql_case((_says_why, column), else_=null()).label(column.name) if column.name in _WHY else column
            for column in OF_VERDICT
        )
    )
    .where(decided.run_id == OF_RUN, decided.baseline_kind != BaselineKind.BEST)
    .order_by(decided.id)
)
# What the telemetry says of the whole session, without its thousands of readings.  PostgreSQL would read all of it for
# each part: three times 2 ms.
_there = sql_case((func.json_typeof(Run.telemetry) == "object", Run.telemetry))  # and not the null of a run without
_parts = func.json_to_record(_there).table_valued(*(column(key, JSON) for key in _TELEMETRY))
_parts = _parts.render_derived("parts", with_types=True)
_SESSION = {
    "sqlite": select(*(type_coerce(Run.telemetry, JSON)[key] for key in _TELEMETRY)).where(Run.id == OF_RUN),
    "postgresql": select(*_parts.c).select_from(Run).outerjoin(_parts, true()).where(Run.id == OF_RUN),
}


@dataclass(frozen=True)
class CaseSamples:
    """What one contender took at one case, round by round."""

    contender: str
    role: Role
    provider: str
    median: float | None  # of the run, as every page and document has it
    screening: list[Rounds]
    confirmation: list[Rounds]
    apart: list[Rounds]

    @property
    def trials(self) -> list[Rounds]:
        return [*self.screening, *self.confirmation]


@dataclass(frozen=True)
class BriefRun:
    """A run, its report, and the regressions that it opened."""

    run: Run
    report: Report
    regressions: Sequence[RegressionRow]


def brief(session: Session, run_id: int) -> BriefRun:
    """A run and its report, without what other contenders measured and without the best baseline.

    Baselines have facts where a case changed or is not repeatable, and telemetry is that of the session.  Raises
    NotFound.
    """
    run = _run(session, run_id)
    of_run = {"run_id": run_id}
    heads, verdicts = session.execute(_HEADS, of_run).all(), session.execute(_SHOWN, of_run).all()
    explained = {row.case for row in heads if (row.facts or {}).get("repeatable") is False}
    explained |= {row.case for row in verdicts if row.outcome not in _UNCHANGED or row.baseline_kind == _TIMED_APART}
    parents = session.execute(_PARENTS, {**of_run, "explained": sorted(explained)}).all()
    found = _contents(session, run, [*heads, *parents], verdicts)
    return BriefRun(run, queries.report_on(session, run, found), found.regressions)


def of_case(session: Session, run_id: int, case: str, provider: str | None) -> BriefRun:
    """A run and its report on one case alone, with all contenders and their facts.

    Without a provider, of all providers of the case.  Raises NotFound.
    """
    run = _run(session, run_id)
    of_case = str(storable(case))
    measurements, verdicts = _MEASUREMENTS.where(measured.case == of_case), _VERDICTS.where(decided.case == of_case)
    if provider is not None:
        verdicts = verdicts.where(decided.provider == str(storable(provider)))
    rows = (session.execute(one, {"run_id": run_id}).all() for one in (measurements, verdicts))
    found = _contents(session, run, *rows)
    if not any(row.baseline_kind == BaselineKind.PARENT for row in found.verdicts):
        raise NotFound("case in this run:", case, f"/runs/{run_id} lists its cases.")
    return BriefRun(run, queries.report_on(session, run, found), found.regressions)


def samples_of_case(session: Session, run_id: int, case: str) -> list[CaseSamples]:
    """The rounds of all contenders of a case, in the order in which they were stored."""
    rows = session.execute(
        select(Measurement.contender, Measurement.role, Measurement.provider, Measurement.median, Measurement.samples)
        .where(Measurement.run_id == run_id, Measurement.case == str(storable(case)))
        .where(Measurement.samples.is_not(None))
        .order_by(Measurement.id)
    )
    return [
        CaseSamples(who, Role(role), provider, median, *unpack(packed or b""))
        for who, role, provider, median, packed in rows
    ]


def _run(session: Session, run_id: int) -> Run:
    run = session.get(Run, run_id, options=queries.HEAD_OF_RUN, populate_existing=True)
    if run is None:
        raise NotFound("run", run_id)
    return run


def _contents(session: Session, run: Run, measurements: Sequence[Any], verdicts: Sequence[Any]) -> RunContents:
    """The contents of a run of these rows, with what its telemetry says of the session."""
    parts = session.execute(_SESSION[session.get_bind().dialect.name], {"run_id": run.id}).one()
    of_session = zip(_TELEMETRY, parts, strict=True)
    telemetry = {key: value for key, value in of_session if value is not None}
    return contents(session, run, measurements, verdicts, telemetry)
