"""What may need a person: open incidents, failed runs, messages and webhooks that wait, and quarantines."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import bindparam, case, func, select
from sqlalchemy.orm import Session

from service.db.models import (
    OPEN_ONES,
    Delivery,
    Incident,
    OutboxMessage,
    Quarantine,
    RegressionRow,
    Revision,
    Run,
    Series,
    Target,
)
from service.domain.states import OutboxState, Purpose, RegressionState, RunState
from service.reports.health.facts import FailedHead, GivenUp, OpenIncident, UnsentMessages, WorstCase

LATE_S = 300.0  # messages and webhooks are processed within seconds
DETAILED = 8  # incidents of which more than numbers is read


_alone = case((RegressionRow.incident_id.is_(None), RegressionRow.run_id))
_of = (
    Series.target_id,
    Series.device,
    RegressionRow.incident_id,
    Incident.revision_id,
    _alone,
    RegressionRow.state,
    RegressionRow.found_by,
)
# Statements are made once: making one takes longer than the database needs for it.
_OPEN = (
    select(
        *_of,
        func.count().label("cases"),
        func.sum(RegressionRow.ratio).label("ratios"),
        func.min(RegressionRow.ratio).label("low"),
        func.max(RegressionRow.ratio).label("high"),
        func.min(RegressionRow.opened_at).label("opened_at"),
        func.count(RegressionRow.assignee).label("assigned"),
        func.min(RegressionRow.assignee).label("first"),
        func.max(RegressionRow.assignee).label("last"),
        func.min(RegressionRow.due_at).label("due_at"),
    )
    .select_from(RegressionRow)
    .join(Series, Series.id == RegressionRow.series_id)
    .outerjoin(Incident, Incident.id == RegressionRow.incident_id)
    .where(OPEN_ONES)
    .group_by(*_of)
)


def open_incidents(session: Session) -> list[OpenIncident]:
    """All incidents with open regressions, the most severe first; the first ones with their revision and worst case."""
    found = dict[tuple[int, int | None, int | None], OpenIncident]()
    for row in session.execute(_OPEN):
        target_id, _, _, revision_id, run_id, *_ = row
        known = found.setdefault((target_id, revision_id, run_id), OpenIncident(target_id, revision_id, run_id))
        _count(known, row)
    ordered = sorted(found.values(), key=lambda one: (-one.severity, -one.high, one.opened_at))
    _detail(session, ordered[:DETAILED])
    return ordered


def _count(incident: OpenIncident, row: Any) -> None:
    _, device, incident_id, _, _, state, found_by, *_ = row
    incident.devices.add(device)
    incident.found_by.add(found_by)
    incident.states[state] += row.cases
    if incident_id is not None:
        incident.incidents.add(incident_id)
    incident.opened_at = min(incident.opened_at, row.opened_at)
    if state is RegressionState.ACKNOWLEDGED:
        return
    incident.severity += row.ratios - row.cases
    incident.low, incident.high = min(incident.low, row.low), max(incident.high, row.high)
    incident.assigned += row.assigned
    incident.assignees |= {who for who in (row.first, row.last) if who}
    if row.due_at is not None:
        incident.due_at = row.due_at if incident.due_at is None else min(incident.due_at, row.due_at)


def _detail(session: Session, found: Sequence[OpenIncident]) -> None:
    """Read the revisions and the worst cases of these incidents."""
    if not found:
        return
    runs = {one.run_id for one in found if one.run_id is not None}
    of_run = dict(session.execute(select(Run.id, Run.revision_id).where(Run.id.in_(runs))).all()) if runs else {}
    ids = {one.revision_id or of_run.get(one.run_id or 0) for one in found}
    shas = dict(session.execute(select(Revision.id, Revision.sha).where(Revision.id.in_(ids))).all())
    worst = _worst(session, {incident_id for one in found for incident_id in one.incidents}, runs)
    for one in found:
        one.sha = shas.get(one.revision_id or of_run.get(one.run_id or 0, 0), "")
        keys = [(incident_id, None) for incident_id in one.incidents] + [(None, one.run_id)]
        cases = [worst[key] for key in keys if key in worst]
        one.worst = max(cases, key=lambda case: case.ratio, default=None)


_largest_first = (RegressionRow.ratio.desc(), RegressionRow.id)
_ranked = (
    select(
        RegressionRow.incident_id,
        _alone.label("run_id"),
        RegressionRow.id,
        Series.printed.label("case"),
        RegressionRow.ratio,
        func.coalesce(Incident.cause_text, RegressionRow.cause_text).label("cause"),
        func.row_number()
        .over(partition_by=(RegressionRow.incident_id, _alone), order_by=_largest_first)
        .label("place"),
    )
    .select_from(RegressionRow)
    .join(Series, Series.id == RegressionRow.series_id)
    .outerjoin(Incident, Incident.id == RegressionRow.incident_id)
    .where(OPEN_ONES, RegressionRow.state != RegressionState.ACKNOWLEDGED)
    .where(
        RegressionRow.incident_id.in_(bindparam("incidents", expanding=True))
        | (RegressionRow.incident_id.is_(None) & RegressionRow.run_id.in_(bindparam("runs", expanding=True)))
    )
    .subquery()
)
_WORST = select(_ranked).where(_ranked.c.place == 1)


def _worst(
    session: Session, incidents: Collection[int], runs: Collection[int]
) -> dict[tuple[int | None, int | None], WorstCase]:
    """The largest regression that is not accepted, of each incident and of each run without one."""
    rows = session.execute(_WORST, {"incidents": list(incidents), "runs": list(runs)})
    return {(row.incident_id, row.run_id): WorstCase(row.id, row.case, row.ratio, row.cause) for row in rows}


def failed_runs(session: Session, ids: Collection[int]) -> list[FailedHead]:
    """These runs with their reasons, the last first."""
    if not ids:
        return []
    rows = session.execute(
        select(
            Run.id,
            Target.name,
            Run.device,
            Revision.sha,
            Revision.author,
            Run.reason,
            Run.finished_at,
            Run.log.is_not(None),
        )
        .join(Target, Target.id == Run.target_id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.id.in_(ids))
        .order_by(Run.finished_at.desc(), Run.id.desc())
    )
    return [
        FailedHead(run_id, name, device, sha, author, reason or "", at, in_build)
        for run_id, name, device, sha, author, reason, at, in_build in rows
    ]


_GIVEN_UP = (
    select(func.count(), func.max(Run.id), func.max(Run.finished_at))
    .where(Run.state == RunState.FAILED, Run.finished_at >= bindparam("since"), Run.log.is_(None))
    .where(Run.purpose == Purpose.WATCH, Run.pull.is_not(None))
)


def given_up(session: Session, since: float) -> GivenUp | None:
    """Those that ended since a time."""
    count, last_run_id, last_at = session.execute(_GIVEN_UP, {"since": since}).one()
    return GivenUp(count, last_run_id, last_at or since) if count else None


_begun = func.coalesce(Run.finished_at, Run.created_at, OutboxMessage.created_at)
_UNSENT = (
    select(
        OutboxMessage.target_id,
        OutboxMessage.state,
        func.count(),
        func.min(_begun),
        func.max(OutboxMessage.error),
        func.max(OutboxMessage.run_id),
    )
    .outerjoin(Run, Run.id == OutboxMessage.run_id)
    .where(
        ((OutboxMessage.state == OutboxState.WAITING) & (_begun < bindparam("late")))
        | ((OutboxMessage.state == OutboxState.FAILED) & (_begun >= bindparam("since")))
    )
    .group_by(OutboxMessage.target_id, OutboxMessage.state)
)


def unsent_messages(session: Session, now: float, since: float) -> list[UnsentMessages]:
    """Messages that have waited for longer than `LATE_S`, and those of runs since a time that were given up."""
    return [UnsentMessages(*row) for row in session.execute(_UNSENT, {"late": now - LATE_S, "since": since})]


_OLDEST = select(func.min(Delivery.received_at)).where(
    Delivery.processed_at.is_(None), Delivery.received_at < bindparam("late")
)


def oldest_delivery(session: Session, now: float) -> float | None:
    """When the oldest webhook was received that has waited for longer than `LATE_S`."""
    return session.scalar(_OLDEST, {"late": now - LATE_S})


_QUARANTINED = (
    select(func.count(), func.sum(case((Quarantine.since >= bindparam("since"), 1), else_=0)))
    .select_from(Quarantine)
    .where(Quarantine.released_at.is_(None))
)


def quarantined(session: Session, since: float) -> tuple[int, int]:
    """The number of quarantined cases, and of those that were quarantined since a time."""
    row = session.execute(_QUARANTINED, {"since": since}).one()
    return row[0], row[1] or 0
