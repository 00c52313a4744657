"""A run for a page that shows all of its cases on one screen: without the facts, samples and readings that it folds.

A run of 206 cases stores 1,030 measurements and 350 kB of telemetry, of which such a page needs a third.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import JSON, BindParameter, bindparam, null, select, type_coerce
from sqlalchemy import case as sql_case
from sqlalchemy.orm import Session, joinedload, undefer

from kernels.cases import Role
from service.db.models import Measurement, PolicyRow, RegressionRow, Run, VerdictRow, storable, unpack
from service.domain.states import BaselineKind, Outcome, Rounds
from service.errors import NotFound
from service.ledger.reading import queries
from service.reports.report import Report, RunContents

OTHERS = (Role.SOTA, Role.RIVAL)  # who is not of the target
_TELEMETRY = ("ceilings", "gpus", "no_sandbox")
_NAMED = ("contender", "role", "provider", "case", "state", "reason", "median", "gb_s", "trials", "rounds", "facts")
_UNSHOWN = {"id", "run_id", "policy_id"}
_WHY = {"reason", "reason_code", "reason_args", "cause_kind", "cause_args"}
_UNCHANGED = {outcome.value for outcome in (Outcome.STEADY, Outcome.NEW, Outcome.REMOVED)}

# Statements are made once, and of columns: making them, and objects of their rows, takes longer than the database.
_TIMED_APART = BaselineKind.WRONG_PARENT
_OF_RUN: BindParameter[int] = bindparam("run_id")
_measured, _decided = Measurement.__table__.c, VerdictRow.__table__.c
_MEASUREMENTS = select(*(_measured[name] for name in _NAMED)).where(_measured.run_id == _OF_RUN).order_by(_measured.id)
_VERDICTS = (
    select(*(column for column in _decided if column.name not in _UNSHOWN))
    .where(_decided.run_id == _OF_RUN)
    .order_by(_decided.id)
)
_HEADS = _MEASUREMENTS.where(_measured.role == Role.HEAD)
_explained = sql_case((_measured.case.in_(bindparam("explained", expanding=True)), _measured.facts), else_=null())
_PARENTS = (
    select(*(_measured[name] for name in _NAMED if name != "facts"), _explained.label("facts"))
    .where(_measured.run_id == _OF_RUN, _measured.role == Role.PARENT)
    .order_by(_measured.id)
)
# Why a ratio to SOTA is as it is, a page of the case says.
_says_why = (_decided.baseline_kind != BaselineKind.SOTA) | _decided.ratio.is_(None)
_SHOWN = (
    select(
        *(
            sql_case((_says_why, column), else_=null()).label(column.name) if column.name in _WHY else column
            for column in _decided
            if column.name not in _UNSHOWN
        )
    )
    .where(_decided.run_id == _OF_RUN, _decided.baseline_kind != BaselineKind.BEST)
    .order_by(_decided.id)
)
_REGRESSIONS = select(RegressionRow).where(RegressionRow.run_id == _OF_RUN).order_by(RegressionRow.id)
# In the order of the index that finds the verdicts of a run.  In that of their ids, PostgreSQL read all 6 million
# verdicts for a run without any, in 3 s.
_POLICY = select(PolicyRow).where(
    PolicyRow.id
    == select(VerdictRow.policy_id)
    .where(VerdictRow.run_id == _OF_RUN, VerdictRow.policy_id.is_not(None))
    .order_by(VerdictRow.provider, VerdictRow.case, VerdictRow.baseline_kind)
    .limit(1)
    .scalar_subquery()
)
# What the telemetry says of the whole session, without its thousands of readings.
_SESSION = select(*(type_coerce(Run.telemetry, JSON)[key] for key in _TELEMETRY)).where(Run.id == _OF_RUN)
_WHOLE = (
    *(joinedload(relation) for relation in (Run.target, Run.revision, Run.recipe, Run.stack)),
    undefer(Run.log),
    undefer(Run.summary),
)


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
    heads, decided = session.execute(_HEADS, of_run).all(), session.execute(_SHOWN, of_run).all()
    explained = {row.case for row in heads if (row.facts or {}).get("repeatable") is False}
    explained |= {row.case for row in decided if row.outcome not in _UNCHANGED or row.baseline_kind == _TIMED_APART}
    parents = session.execute(_PARENTS, {**of_run, "explained": sorted(explained)}).all()
    contents = _contents(session, run, [*heads, *parents], decided)
    return BriefRun(run, queries.report_on(session, run, contents), contents.regressions)


def of_case(session: Session, run_id: int, case: str, provider: str | None) -> BriefRun:
    """A run and its report on one case alone, with all contenders and their facts.

    Without a provider, of all providers of the case.  Raises NotFound.
    """
    run = _run(session, run_id)
    of_case = str(storable(case))
    measurements, verdicts = _MEASUREMENTS.where(_measured.case == of_case), _VERDICTS.where(_decided.case == of_case)
    if provider is not None:
        verdicts = verdicts.where(_decided.provider == str(storable(provider)))
    measured, decided = (session.execute(query, {"run_id": run_id}).all() for query in (measurements, verdicts))
    contents = _contents(session, run, measured, decided)
    if not any(row.baseline_kind == BaselineKind.PARENT for row in contents.verdicts):
        raise NotFound("case in this run:", case, f"/runs/{run_id} lists its cases.")
    return BriefRun(run, queries.report_on(session, run, contents), contents.regressions)


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
    run = session.get(Run, run_id, options=_WHOLE, populate_existing=True)
    if run is None:
        raise NotFound("run", run_id)
    return run


def _contents(session: Session, run: Run, measured: Sequence[Any], decided: Sequence[Any]) -> RunContents:
    """The contents of a run of these rows, which have the attributes of the models."""
    of_run = {"run_id": run.id}
    of_session = zip(_TELEMETRY, session.execute(_SESSION, of_run).one(), strict=True)
    return RunContents(
        cast("Sequence[Measurement]", measured),
        cast("Sequence[VerdictRow]", decided),
        session.scalars(_REGRESSIONS, of_run).all(),
        {key: value for key, value in of_session if value is not None},
        session.scalar(_POLICY, of_run),
    )
