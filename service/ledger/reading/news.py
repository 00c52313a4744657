"""What happened last: the newest changes of regressions, failed runs and ended weeks, of a target or of all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, aliased

from kernelwatch.documents.weekly import WeeklyDocument, WeeklyFailureItem
from service.db.engine import clock
from service.db.models import ConfigurationDrift, RegressionEvent, RegressionRow, Revision, Run, Series, Target
from service.domain.regressions.lifecycle import Action
from service.domain.weekly.weeks import Week
from service.ledger.reading import weekly
from service.ledger.reading.histories import UNEXPLAINED, newest_drifts
from service.reports.feeds.entries import CHANGES, RegressionsChanged, RunDrifts
from service.reports.weekly.report import compose

MAX_EVENTS = 2000  # from which changes are grouped: a revision may slow down every case of a suite
MAX_WEEKS = 4  # back to which the report of a week is looked for


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
        .where(RegressionEvent.what.in_([action.value for action in CHANGES]), *_of(target))
        .order_by(RegressionEvent.id.desc())
        .limit(MAX_EVENTS)
    ):
        key = incident_id or -regression_id, what, at
        groups.setdefault(key, _Group(event_id, event_id, ratio)).add(event_id, ratio)
    newest = list(groups.values())[:limit]
    return _changed(session, {group.largest: group for group in newest})


def _changed(session: Session, groups: Mapping[int, _Group]) -> list[RegressionsChanged]:
    """Those groups with what their largest event is about, in their order."""
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
        .where(RegressionEvent.id.in_(groups))
    )
    found = {
        event.id: RegressionsChanged(
            event_id=groups[event.id].event_id,
            what=Action(event.what),
            at=event.at,
            who=event.who,
            why=event.words,
            target=target,
            device=row.device,
            count=groups[event.id].count,
            regression_id=row.id,
            case=row.case,
            ratio=row.ratio,
            cause=row.cause_text,
            revision=slow.sha,
            subject=slow.subject,
            shown_by=shown_by,
        )
        for event, row, target, slow, shown_by in rows
    }
    return [found[event_id] for event_id in groups if event_id in found]


def failed_runs(session: Session, target: Target | None, limit: int) -> list[WeeklyFailureItem]:
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
    drifts = newest_drifts(session, (ConfigurationDrift.id.in_(counts),), limit)
    return [RunDrifts(drift, counts[drift.id]) for drift in drifts]


def ended_week(session: Session, target: Target | None) -> EndedWeek | None:
    """The last week that is over and in which a run ended.  Readers keep the entries of those before it."""
    week = Week.at(clock(session))
    for _ in range(MAX_WEEKS):
        week = week.previous
        if weekly.is_active(session, week, target):
            return EndedWeek(compose(weekly.facts(session, week, target)), week.end)
    return None


def _of(target: Target | None) -> Sequence[ColumnElement[bool]]:
    return () if target is None else (Series.target_id == target.id,)
