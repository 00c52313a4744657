"""What happened last: the newest changes of regressions, failed runs and ended weeks, of a target or of all."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, select
from sqlalchemy.orm import Session, aliased

from kernelwatch.documents.weekly import WeeklyFailureItem
from service.db.engine import clock
from service.db.models import ConfigurationDrift, RegressionEvent, RegressionRow, Revision, Run, Series, Target
from service.domain.regressions.lifecycle import Action
from service.domain.weekly.weeks import Week
from service.ledger.reading import weekly
from service.ledger.reading.histories import UNEXPLAINED, newest_drifts
from service.reports.feeds.entries import CHANGES, RegressionsChanged, RunDrifts
from service.reports.weekly.report import WeekDigest, digest

MAX_EVENTS = 2000  # from which changes are grouped: a revision may slow down every case of a suite
MAX_WEEKS = 4  # back to which the report of a week is looked for


@dataclass(frozen=True)
class EndedWeek:
    """The digest of a week that is over, and when it ended."""

    digest: WeekDigest
    at: float


def changes(session: Session, target: Target | None, limit: int) -> list[RegressionsChanged]:
    """The newest changes of regressions that people follow, one for each incident and moment."""
    given = {"limit": limit} | ({} if target is None else {"target": target.id})
    return [
        RegressionsChanged(event_id, Action(what), *rest)
        for event_id, what, *rest in session.execute(_changes(of_target=target is not None), given)
    ]


# Statements are made once: making one takes longer than the database needs for it.
@cache
def _changes(*, of_target: bool) -> Select[Any]:
    """The newest events in groups: those of one incident with the same action at the same moment.

    Of each its first event, how many they are, and what the event of the largest regression is about.
    """
    newest = (
        select(RegressionEvent.id, RegressionEvent.what, RegressionEvent.at, RegressionRow.ratio)
        .add_columns(func.coalesce(RegressionRow.incident_id, -RegressionRow.id).label("incident"))
        .join(RegressionRow, RegressionRow.id == RegressionEvent.regression_id)
        .join(Series, Series.id == RegressionRow.series_id)
        .where(RegressionEvent.what.in_([action.value for action in CHANGES]))
        .where(*[Series.target_id == bindparam("target")] * of_target)
        .order_by(RegressionEvent.id.desc())
        .limit(MAX_EVENTS)
        .cte("newest")
    )
    group = [newest.c.incident, newest.c.what, newest.c.at]
    largest = func.row_number().over(partition_by=group, order_by=[newest.c.ratio.desc(), newest.c.id])
    grouped = select(
        newest.c.id,
        func.min(newest.c.id).over(partition_by=group).label("first"),
        func.max(newest.c.id).over(partition_by=group).label("last"),
        func.count().over(partition_by=group).label("events"),
        largest.label("place"),
    ).cte("grouped")
    showing, shown = aliased(Run), aliased(Revision)
    return (
        select(grouped.c.first, RegressionEvent.what, RegressionEvent.at, RegressionEvent.who, RegressionEvent.words)
        .add_columns(Target.name, Series.device, grouped.c.events, RegressionRow.id, Series.printed)
        .add_columns(RegressionRow.ratio, RegressionRow.cause_text, Revision.sha, Revision.subject, shown.sha)
        .select_from(grouped)
        .join(RegressionEvent, RegressionEvent.id == grouped.c.id)
        .join(RegressionRow, RegressionRow.id == RegressionEvent.regression_id)
        .join(Series, Series.id == RegressionRow.series_id)
        .join(Target, Target.id == Series.target_id)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .outerjoin(showing, showing.id == RegressionEvent.run_id)
        .outerjoin(shown, shown.id == showing.revision_id)
        .where(grouped.c.place == 1)
        .order_by(grouped.c.last.desc())
        .limit(bindparam("limit"))
    )


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
            return EndedWeek(digest(weekly.sums(session, week, target)), week.end)
    return None


def _of(target: Target | None) -> Sequence[ColumnElement[bool]]:
    return () if target is None else (Series.target_id == target.id,)
