"""What happened in a week: queries that read the rows of that week, not those of all weeks."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from kernels.cases import Role
from kernelwatch.documents.base import moment
from kernelwatch.documents.weekly import WeeklyFailureItem, WeeklyMeasuredItem, WeeklyReleaseItem
from service.db.engine import clock
from service.db.models import (
    CHANGED,
    OPEN_ONES,
    SAMPLES,
    WATCHED,
    Calibration,
    ConfigurationDrift,
    GapEvent,
    Measurement,
    RegressionEvent,
    RegressionRow,
    Revision,
    Run,
    Series,
    Target,
    VerdictRow,
)
from service.db.paging import filtered
from service.domain.regressions.lifecycle import Action
from service.domain.states import OPEN_REGRESSIONS, CellState, Purpose, RegressionState, RunState, TargetKind
from service.domain.text import one_line
from service.domain.verdicts.calibration import Rate
from service.domain.weekly.weeks import ConfirmedChange, MovedSeries, Week
from service.ledger.reading.histories import drift_count, newest_drifts
from service.reports.weekly.report import EventFact, GapFact, RegressionFact, WeekFacts, WeekSums
from service.reports.words import cause_text

MAX_LISTED = 20  # failed runs, releases and drifts


@dataclass(frozen=True)
class _EndedRun:
    """A run that ended in the week, with the place of its revision on the mainline."""

    id: int
    revision_id: int
    device: str
    state: RunState
    purpose: Purpose
    pull: int | None
    ordinal: int | None


@dataclass(frozen=True)
class _Scope:
    """Which part of the ledger, and which week.  The sample is no part of all targets."""

    week: Week
    target: Target | None
    device: str | None

    def runs(self) -> Iterator[ColumnElement[bool]]:
        """Of those of a week: they are found by their time."""
        yield self._has(filtered(Run.target_id))
        if self.device is not None:
            yield filtered(Run.device) == self.device

    def series(self) -> Iterator[ColumnElement[bool]]:
        yield self._has(Series.target_id)
        if self.device is not None:
            yield Series.device == self.device

    def _has(self, target_id: Any) -> ColumnElement[bool]:
        wanted: ColumnElement[bool] = target_id.not_in(SAMPLES)
        return wanted if self.target is None else target_id == self.target.id

    def contains(self, column: Any) -> ColumnElement[bool]:
        return and_(column >= self.week.start, column < self.week.end)


def facts(session: Session, week: Week, target: Target | None = None, device: str | None = None) -> WeekFacts:
    """What happened in the week to a target, or to all that the reader may see, without the sample."""
    scope = _Scope(week, target, device)
    runs = _runs(session, scope)
    summed = _sums(session, scope, runs)
    drifted = (scope.contains(ConfigurationDrift.at), *scope.series())
    return WeekFacts(
        **vars(summed),
        regressions=_regressions(session, scope, summed.events),
        failed=failed_runs(session, (scope.contains(Run.finished_at), *scope.runs())),
        releases=_releases(session, scope, runs),
        drifts=newest_drifts(session, drifted, MAX_LISTED),
        drift_count=drift_count(session, drifted),
    )


def sums(session: Session, week: Week, target: Target | None = None) -> WeekSums:
    """What the digest of the week needs, in half of the statements of `facts`."""
    scope = _Scope(week, target, None)
    return _sums(session, scope, _runs(session, scope))


def _sums(session: Session, scope: _Scope, runs: Sequence[_EndedRun]) -> WeekSums:
    return WeekSums(
        week=scope.week,
        now=clock(session),
        target=scope.target.name if scope.target else None,
        device=scope.device,
        measured=_measured(runs),
        changes=_changes(session, scope, _newest_of_mainline(runs)),
        events=_events(session, scope),
        gaps=_gaps(session, scope),
        equal_code=_equal_code(session, [row.id for row in runs]),
    )


def devices(session: Session) -> Sequence[str]:
    """The devices of all series that the reader may see."""
    return session.scalars(select(Series.device).distinct().order_by(Series.device)).all()


def is_active(session: Session, week: Week, target: Target | None) -> bool:
    """Whether a run ended in the week."""
    scope = _Scope(week, target, None)
    return session.scalar(select(Run.id).where(scope.contains(Run.finished_at), *scope.runs()).limit(1)) is not None


# Statements are made once but for their conditions: making one takes longer than the database needs for it.
_ENDED = select(Run.id, Run.revision_id, Run.device, Run.state, Run.purpose, Run.pull, Revision.ordinal).join(
    Revision, Revision.id == Run.revision_id
)


def _runs(session: Session, scope: _Scope) -> list[_EndedRun]:
    rows = session.execute(_ENDED.where(scope.contains(Run.finished_at), *scope.runs()))
    return sorted((_EndedRun(*row) for row in rows), key=lambda run: run.id)


def _measured(runs: Sequence[_EndedRun]) -> WeeklyMeasuredItem:
    done = [row for row in runs if row.state is RunState.DONE]
    return WeeklyMeasuredItem(
        runs=len(done),
        revisions=len({row.revision_id for row in done}),
        pulls=len({row.revision_id for row in done if row.pull is not None}),
        failed=sum(row.state is RunState.FAILED for row in runs),
    )


def _newest_of_mainline(runs: Sequence[_EndedRun]) -> list[int]:
    """The newest run of each revision on each device, of those for the mainline."""
    newest = {
        (row.revision_id, row.device): row.id
        for row in runs
        if row.state is RunState.DONE and row.purpose is Purpose.WATCH and row.pull is None and row.ordinal is not None
    }
    return list(newest.values())


_NAMED_RUNS = (
    select(Run.id, Run.device, Run.revision_id, Target.name, Revision.sha, Revision.subject, Revision.ordinal)
    .join(Revision, Revision.id == Run.revision_id)
    .join(Target, Target.id == Run.target_id)
)


def _changes(session: Session, scope: _Scope, runs: Collection[int]) -> list[ConfirmedChange]:
    """The confirmed changes of these runs, without revisions that were measured in an earlier week already."""
    changed = session.execute(_CHANGED.where(VerdictRow.run_id.in_(runs))).all()
    named = {row.id: row for row in session.execute(_NAMED_RUNS.where(Run.id.in_({row.run_id for row, _ in changed})))}
    before = _measured_before(session, scope.week, {run.revision_id for run in named.values()})
    changes = [
        (run.ordinal, _change(row, run, median))
        for row, median in changed
        if row.ratio is not None
        and (run := named.get(row.run_id)) is not None
        and (run.revision_id, run.device) not in before
    ]
    return [change for _, change in sorted(changes, key=lambda place_and_change: place_and_change[0])]


def _change(row: VerdictRow, run: Any, median: float | None) -> ConfirmedChange:
    series = MovedSeries(run.name, run.device, row.provider, row.case)
    return ConfirmedChange(series, row.run_id, run.sha, run.subject, row.ratio or 0.0, median, cause_text(row))


def _measured_before(session: Session, week: Week, revisions: Collection[int]) -> set[tuple[int, str]]:
    """On which devices these revisions were measured before the week."""
    if not revisions:
        return set()
    done = select(Run.revision_id, Run.device, Run.finished_at).where(Run.revision_id.in_(revisions), WATCHED)
    # Asked for the time, SQLite would read every run that ended before it.
    return {
        (revision_id, device)
        for revision_id, device, at in session.execute(done.where(Run.state == RunState.DONE))
        if at is not None and at < week.start
    }


def _own_measurement(run_id: Any, provider: Any, case: Any) -> ColumnElement[bool]:
    """What the run measured of its own revision; its index has all of these columns."""
    return and_(
        Measurement.run_id == run_id,
        Measurement.role == Role.HEAD.value,
        Measurement.state == CellState.MEASURED,
        Measurement.provider == provider,
        Measurement.case == case,
    )


_CHANGED = (
    select(VerdictRow, Measurement.median)
    .outerjoin(Measurement, _own_measurement(VerdictRow.run_id, VerdictRow.provider, VerdictRow.case))
    .where(CHANGED, VerdictRow.quarantined_by.is_(None))
    .order_by(VerdictRow.id)
)
_EVENTS = (
    select(RegressionEvent.regression_id, RegressionEvent.at, RegressionEvent.who, RegressionEvent.what)
    .add_columns(RegressionEvent.state, RegressionEvent.words, Revision.sha)
    .join(RegressionRow, RegressionRow.id == RegressionEvent.regression_id)
    .join(Series, Series.id == RegressionRow.series_id)
    .outerjoin(Run, Run.id == RegressionEvent.run_id)
    .outerjoin(Revision, Revision.id == Run.revision_id)
    .order_by(RegressionEvent.id)
)


def _events(session: Session, scope: _Scope) -> list[EventFact]:
    statement = _EVENTS.where(scope.contains(RegressionEvent.at), *scope.series())
    actions = set(Action)
    return [
        EventFact(regression_id, at, who, Action(what), state, words and one_line(words), sha)
        for regression_id, at, who, what, state, words, sha in session.execute(statement)
        if what in actions
    ]


def _regressions(session: Session, scope: _Scope, events: Sequence[EventFact]) -> dict[int, RegressionFact]:
    """Those with an event in the week, and those that were open at its end, with their states then."""
    named = {event.regression_id for event in events}
    changed_since = (
        select(RegressionEvent.regression_id)
        .join(RegressionRow, RegressionRow.id == RegressionEvent.regression_id)
        .where(RegressionEvent.at >= scope.week.end, RegressionRow.opened_at < scope.week.end)
        .distinct()
    )
    ids = {*named, *session.scalars(select(RegressionRow.id).where(OPEN_ONES)), *session.scalars(changed_since)}
    statement = _REGRESSIONS.where(*scope.series(), RegressionRow.opened_at < scope.week.end)
    rows = session.execute(statement.where(RegressionRow.id.in_(ids))).all()
    states = _states_at(session, scope.week.end, [row[0].id for row in rows])
    facts = (RegressionFact(*row, states.get(row[0].id, row[0].state)) for row in rows)
    return {fact.row.id: fact for fact in facts if fact.row.id in named or fact.state in OPEN_REGRESSIONS}


_REGRESSIONS = (
    select(RegressionRow, Target.name, Revision.sha, Revision.subject, Measurement.median)
    .join(Series, Series.id == RegressionRow.series_id)
    .join(Target, Target.id == Series.target_id)
    .join(Run, Run.id == RegressionRow.run_id)
    .join(Revision, Revision.id == Run.revision_id)
    .outerjoin(Measurement, _own_measurement(RegressionRow.run_id, Series.provider, Series.printed))
)


def _states_at(session: Session, end: float, ids: Collection[int]) -> dict[int, RegressionState]:
    """The states of these regressions at a time, by their last event before it."""
    last = (
        select(func.max(RegressionEvent.id))
        .where(RegressionEvent.regression_id.in_(ids), RegressionEvent.at < end)
        .group_by(RegressionEvent.regression_id)
    )
    rows = session.execute(
        select(RegressionEvent.regression_id, RegressionEvent.state).where(RegressionEvent.id.in_(last))
    )
    return dict(rows.all())


_GAPS = (
    select(GapEvent, Target.name, Revision.sha, Revision.subject)
    .join(Series, Series.id == GapEvent.series_id)
    .join(Target, Target.id == Series.target_id)
    .join(Run, Run.id == GapEvent.run_id)
    .join(Revision, Revision.id == Run.revision_id)
    .order_by(GapEvent.id)
)


def _gaps(session: Session, scope: _Scope) -> list[GapFact]:
    rows = session.execute(_GAPS.where(scope.contains(GapEvent.at), *scope.series()))
    return [GapFact(*row) for row in rows]


_FAILED = (
    select(Run.id.label("run_id"), Run.device, Run.finished_at.label("at"), Run.log.is_not(None).label("build"))
    .add_columns(Run.reason, Target.name.label("target"), Revision.sha.label("revision"), Revision.subject)
    .join(Target, Target.id == Run.target_id)
    .join(Revision, Revision.id == Run.revision_id)
    .where(Run.state == RunState.FAILED, WATCHED)
    .order_by(Run.finished_at.desc(), Run.id.desc())
)


def failed_runs(
    session: Session, where: Collection[ColumnElement[bool]], limit: int = MAX_LISTED
) -> list[WeeklyFailureItem]:
    """The newest runs of the mainline that failed; `where` are conditions on runs."""
    return [
        WeeklyFailureItem(**row._asdict() | {"reason": row.reason and one_line(row.reason)})
        for row in session.execute(_FAILED.where(*where).limit(limit))
    ]


def _releases(session: Session, scope: _Scope, runs: Sequence[_EndedRun]) -> list[WeeklyReleaseItem]:
    """Versions of packages that were released in the week, and those that it measured first."""
    of_target = () if scope.target is None else (Target.id == scope.target.id,)
    if session.scalar(select(Target.id).where(Target.kind == TargetKind.PACKAGE, *of_target).limit(1)) is None:
        return []
    watched = [row for row in runs if row.state is RunState.DONE and row.purpose is Purpose.WATCH]
    first = {row.revision_id: row.id for row in reversed(watched)}
    for revision_id, _ in _measured_before(session, scope.week, first):
        first.pop(revision_id, None)
    statement = (
        select(Target.name, Revision.sha, Revision.committed_at, Revision.id)
        .join(Target, Target.id == Revision.target_id)
        .where(Target.kind == TargetKind.PACKAGE, *of_target)
        .where(or_(scope.contains(Revision.committed_at), Revision.id.in_(first)))
        .order_by(Revision.committed_at.desc(), Revision.id.desc())
        .limit(MAX_LISTED)
    )
    return [
        WeeklyReleaseItem(target=target, version=version, at=moment(at), run_id=first.get(revision_id))
        for target, version, at, revision_id in session.execute(statement)
    ]


def _equal_code(session: Session, runs: Collection[int]) -> Rate:
    """How often equal code alarmed in the sessions of these runs."""
    if not runs:
        return Rate(0, 0, 0)
    counted = (
        select(Calibration.alarmed, func.count()).where(Calibration.run_id.in_(runs)).group_by(Calibration.alarmed)
    )
    by_alarm = dict(session.execute(counted).all())
    alarmed = by_alarm.get(True, 0)
    return Rate(alarmed + by_alarm.get(False, 0), alarmed, alarmed)
