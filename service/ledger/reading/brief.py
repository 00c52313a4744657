"""A run for a page that shows all of its cases on one screen: without the facts, samples and readings that it folds.

A run of 206 cases stores 1,030 measurements and 350 kB of telemetry, of which such a page needs a third.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import JSON, and_, literal, select, type_coerce
from sqlalchemy.orm import Session, selectinload, undefer

from kernels.cases import Role
from service.db.models import Measurement, PolicyRow, RegressionRow, Run, VerdictRow, storable, unpack
from service.domain.states import BaselineKind, Rounds
from service.errors import NotFound
from service.ledger import queries
from service.reports.report import Report, RunContents

_WITH_FACTS = (Role.HEAD, Role.PARENT)  # they are compared
_NAMED = ("contender", "role", "provider", "case", "state", "reason", "median", "gb_s", "trials", "rounds")
OTHERS = (Role.SOTA, Role.RIVAL)  # who is not of the target
_TELEMETRY = ("ceilings", "no_sandbox")
_UNSHOWN = {"id", "run_id", "policy_id"}


@dataclass(frozen=True)
class CaseSamples:
    """What one contender took at one case, round by round."""

    contender: str
    role: Role
    provider: str
    screening: list[Rounds]
    confirmation: list[Rounds]

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
    """A run and its report, in which only heads and parents have facts, and telemetry is that of the session.

    Raises NotFound.
    """
    run = _run(session, run_id)
    with_facts = [
        *_measurements(session, run_id, Measurement.facts, Measurement.role.in_(_WITH_FACTS)),
        *_measurements(session, run_id, literal(None).label("facts"), Measurement.role == Role.SOTA),
    ]
    contents = _contents(session, run, with_facts)
    return BriefRun(run, queries.report_on(session, run, contents), contents.regressions)


def of_case(session: Session, run_id: int, case: str, provider: str | None) -> BriefRun:
    """A run and its report on one case alone, with all contenders and their facts.

    Without a provider, of all providers of the case.  Raises NotFound.
    """
    run = _run(session, run_id)
    asked = Measurement.case == str(storable(case))
    found = _measurements(session, run_id, Measurement.facts, asked)
    contents = _contents(session, run, found, case, provider)
    if not any(row.baseline_kind == BaselineKind.PARENT for row in contents.verdicts):
        raise NotFound("case in this run:", case, f"/runs/{run_id} lists its cases.")
    return BriefRun(run, queries.report_on(session, run, contents), contents.regressions)


def samples_of_case(session: Session, run_id: int, case: str) -> list[CaseSamples]:
    """The rounds of all contenders of a case, in the order in which they were stored."""
    rows = session.execute(
        select(Measurement.contender, Measurement.role, Measurement.provider, Measurement.samples)
        .where(Measurement.run_id == run_id, Measurement.case == str(storable(case)))
        .where(Measurement.samples.is_not(None))
        .order_by(Measurement.id)
    )
    return [CaseSamples(who, Role(role), provider, *unpack(packed or b"")) for who, role, provider, packed in rows]


def _run(session: Session, run_id: int) -> Run:
    names = (selectinload(one) for one in (Run.target, Run.revision, Run.recipe, Run.stack))
    run = session.get(Run, run_id, options=[*names, undefer(Run.log), undefer(Run.summary)], populate_existing=True)
    if run is None:
        raise NotFound("run", run_id)
    return run


def _measurements(session: Session, run_id: int, facts: Any, which: Any) -> list[Any]:
    named = [getattr(Measurement, name) for name in _NAMED]
    statement = select(*named, facts).where(Measurement.run_id == run_id, which).order_by(Measurement.id)
    return list(session.execute(statement).all())


def _contents(
    session: Session, run: Run, measurements: Sequence[Any], case: str | None = None, provider: str | None = None
) -> RunContents:
    columns = VerdictRow.__table__.c
    asked = [columns.run_id == run.id]
    regressions = select(RegressionRow).where(RegressionRow.run_id == run.id).order_by(RegressionRow.id)
    if case is not None:
        asked.append(columns.case == str(storable(case)))
    if provider is not None:
        asked.append(columns.provider == str(storable(provider)))
    statement = select(*(one for one in columns if one.name not in _UNSHOWN)).where(and_(*asked)).order_by(columns.id)
    # In the order of the index that finds the verdicts of a run.  In that of their ids, PostgreSQL read all 6 million
    # verdicts for a run without any, in 3 s.
    policy_id = (
        select(VerdictRow.policy_id)
        .where(VerdictRow.run_id == run.id, VerdictRow.policy_id.is_not(None))
        .order_by(VerdictRow.provider, VerdictRow.case, VerdictRow.baseline_kind)
        .limit(1)
    )
    policy = select(PolicyRow).where(PolicyRow.id == policy_id.scalar_subquery())
    return RunContents(
        cast("list[Measurement]", measurements),
        cast("list[VerdictRow]", session.execute(statement).all()),
        session.scalars(regressions).all(),
        _session(session, run.id),
        session.scalar(policy),
    )


def _session(session: Session, run_id: int) -> dict[str, Any]:
    """What the telemetry says of the whole session, without its thousands of readings."""
    telemetry = type_coerce(Run.telemetry, JSON)
    row = session.execute(select(*(telemetry[key] for key in _TELEMETRY)).where(Run.id == run_id)).one()
    return {key: value for key, value in zip(_TELEMETRY, row, strict=True) if value is not None}
