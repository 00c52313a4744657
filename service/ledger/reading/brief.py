"""What pages show first: all cases of a run on one screen, and what happened last."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sqlalchemy import JSON, BindParameter, ColumnElement, bindparam, func, null, select, type_coerce
from sqlalchemy import case as sql_case
from sqlalchemy.orm import Session, aliased, joinedload, undefer

from kernels.cases import Role
from service.db.engine import clock
from service.db.models import (
    ConfigurationDrift,
    Measurement,
    PolicyRow,
    RegressionEvent,
    RegressionRow,
    Revision,
    Run,
    Series,
    Target,
    VerdictRow,
    storable,
    unpack,
)
from service.domain.regressions.lifecycle import Action
from service.domain.states import BaselineKind, Rounds
from service.domain.verdicts.judge import Outcome
from service.domain.weekly.weeks import Week
from service.errors import NotFound
from service.ledger import queries
from service.ledger.reading import weekly
from service.ledger.reading.histories import UNEXPLAINED, newest_drifts
from service.reports.feeds.entries import CHANGES, RegressionsChanged, RunDrifts
from service.reports.report import Report, RunContents
from service.reports.weekly.compose import compose
from service.reports.weekly.facts import FailedRun
from service.reports.weekly.schema import WeeklyDocument

OTHERS = (Role.SOTA, Role.RIVAL)  # who is not of the target
_TELEMETRY = ("ceilings", "no_sandbox")
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
    select(*(one for one in _decided if one.name not in _UNSHOWN))
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
            sql_case((_says_why, one), else_=null()).label(one.name) if one.name in _WHY else one
            for one in _decided
            if one.name not in _UNSHOWN
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
    *(joinedload(one) for one in (Run.target, Run.revision, Run.recipe, Run.stack)),
    undefer(Run.log),
    undefer(Run.summary),
)


@dataclass(frozen=True)
class CaseSamples:
    """What one contender took at one case, round by round."""

    contender: str
    role: Role
    provider: str
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
    explained = {one.case for one in heads if (one.facts or {}).get("repeatable") is False}
    explained |= {one.case for one in decided if one.outcome not in _UNCHANGED or one.baseline_kind == _TIMED_APART}
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
    measured, decided = (session.execute(one, {"run_id": run_id}).all() for one in (measurements, verdicts))
    contents = _contents(session, run, measured, decided)
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


MAX_EVENTS = 2000  # from which changes are grouped: a revision may slow down every case of a suite
MAX_WEEKS = 4


@dataclass(frozen=True)
class EndedWeek:
    """The report of a week that is over, and when it ended."""

    report: WeeklyDocument
    at: float


@dataclass
class _Group:
    """Events of one incident with the same action at the same moment, while they are read, the newest first."""

    event_id: int
    largest: int  # the event of the largest regression
    ratio: float
    count: int = field(default=0)

    def add(self, event_id: int, ratio: float) -> None:
        self.event_id, self.count = min(self.event_id, event_id), self.count + 1
        if ratio >= self.ratio:
            self.largest, self.ratio = event_id, ratio


def changes(session: Session, target: Target | None, limit: int) -> list[RegressionsChanged]:
    """The newest changes of regressions that people follow, one for each incident and moment."""
    groups = dict[tuple[int, str, float], _Group]()
    for event_id, what, at, regression_id, incident_id, ratio in session.execute(
        select(RegressionEvent.id, RegressionEvent.what, RegressionEvent.at)
        .add_columns(RegressionRow.id, RegressionRow.incident_id, RegressionRow.ratio)
        .join(RegressionRow, RegressionRow.id == RegressionEvent.regression_id)
        .join(Series, Series.id == RegressionRow.series_id)
        .where(RegressionEvent.what.in_([one.value for one in CHANGES]), *_of(target))
        .order_by(RegressionEvent.id.desc())
        .limit(MAX_EVENTS)
    ):
        key = incident_id or -regression_id, what, at
        groups.setdefault(key, _Group(event_id, event_id, ratio)).add(event_id, ratio)
    newest = list(groups.values())[:limit]
    found = _details(session, [one.largest for one in newest])
    return [_changed(group, found[group.largest]) for group in newest if group.largest in found]


@dataclass(frozen=True)
class _Detail:
    event: RegressionEvent
    row: RegressionRow
    target: str
    slow: Revision
    shown_by: str | None


def _details(session: Session, ids: Collection[int]) -> dict[int, _Detail]:
    showing, shown = aliased(Run), aliased(Revision)
    rows = session.execute(
        select(RegressionEvent, RegressionRow, Target.name, Revision, shown.sha)
        .join(RegressionRow, RegressionRow.id == RegressionEvent.regression_id)
        .join(Series, Series.id == RegressionRow.series_id)
        .join(Target, Target.id == Series.target_id)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .outerjoin(showing, showing.id == RegressionEvent.run_id)
        .outerjoin(shown, shown.id == showing.revision_id)
        .where(RegressionEvent.id.in_(ids))
    )
    return {row[0].id: _Detail(*row) for row in rows}


def _changed(group: _Group, found: _Detail) -> RegressionsChanged:
    event, row = found.event, found.row
    return RegressionsChanged(
        event_id=group.event_id,
        what=Action(event.what),
        at=event.at,
        who=event.who,
        why=event.words,
        target=found.target,
        device=row.device,
        count=group.count,
        regression_id=row.id,
        case=row.case,
        ratio=row.ratio,
        cause=row.cause_text,
        revision=found.slow.sha,
        subject=found.slow.subject,
        shown_by=found.shown_by,
    )


def failed_runs(session: Session, target: Target | None, limit: int) -> list[FailedRun]:
    """The newest failed runs of the mainline."""
    of_target = () if target is None else (Run.target_id == target.id,)
    return weekly.failed_runs(session, (*of_target, Run.finished_at.is_not(None)), limit)


def run_drifts(session: Session, target: Target | None, limit: int) -> list[RunDrifts]:
    """The newest runs that chose other configurations than the runs of the same revision before them."""
    last = func.max(ConfigurationDrift.id)
    grouped = (
        select(last, func.count(ConfigurationDrift.id))
        .join(Series, Series.id == ConfigurationDrift.series_id)
        .where(UNEXPLAINED, *_of(target))
        .group_by(ConfigurationDrift.run_id)
        .order_by(last.desc())
        .limit(limit)
    )
    counts = dict(session.execute(grouped).all())
    found = newest_drifts(session, (ConfigurationDrift.id.in_(counts),), limit)
    return [RunDrifts(one, counts[one.id]) for one in found]


def ended_weeks(session: Session, target: Target | None) -> Iterable[EndedWeek]:
    """The last weeks that are over and in which a run ended, the newest first."""
    week = Week.at(clock(session))
    for _ in range(MAX_WEEKS):
        week = week.previous
        if weekly.is_active(session, week, target):
            yield EndedWeek(compose(weekly.facts(session, week, target)), week.end)


def _of(target: Target | None) -> Sequence[ColumnElement[bool]]:
    return () if target is None else (Series.target_id == target.id,)
