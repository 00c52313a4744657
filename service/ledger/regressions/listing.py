"""Read regressions and incidents: lists, one with its whole history, and the regressions of one event."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from itertools import islice

from sqlalchemy import ColumnElement, TextClause, select
from sqlalchemy.orm import Session, joinedload, selectinload

from service.db.models import Bisection, Incident, RegressionEvent, RegressionRow, Revision, Run, Series, Target
from service.db.paging import ResultPage, paged
from service.domain.metrics import SeriesKey
from service.domain.regressions.lifecycle import NEAR, Member, common_cause, is_over, one_event
from service.domain.states import FoundBy, RegressionState
from service.errors import NotFound
from service.ledger.targets import IS_SERIES
from service.reports.views import IncidentView, RegressionHistory, RegressionView

MAX_SEARCHES = 20
MAX_OF_SERIES = 100


def listed(
    session: Session,
    target: Target | None = None,
    states: Collection[RegressionState] = (),
    cursor: str | None = None,
    limit: int = 50,
    *,
    where: Collection[ColumnElement[bool]] = (),
) -> ResultPage[RegressionView]:
    """Confirmed regressions of the mainline in these states, or in any, the newest first.

    `where` are further conditions, on regressions and their series.
    """
    statement = select(RegressionRow).join(RegressionRow.series).where(*where)
    if target is not None:
        statement = statement.where(Series.target_id == target.id)
    if states:
        statement = statement.where(RegressionRow.state.in_(states))
    page = paged(session, statement, (RegressionRow.id,), cursor, limit)
    return ResultPage(_named(session, page.items), page.next)


def largest(
    session: Session, where: Collection[ColumnElement[bool] | TextClause], cursor: str | None, limit: int
) -> ResultPage[RegressionView]:
    """The regressions that fit, the largest first."""
    statement = select(RegressionRow).join(RegressionRow.series).where(*where)
    page = paged(session, statement, (RegressionRow.ratio, RegressionRow.id), cursor, limit)
    return ResultPage(_named(session, page.items), page.next)


def of_series(session: Session, key: SeriesKey) -> tuple[RegressionView, ...]:
    """The regressions of one series in any state, the newest first; at most `MAX_OF_SERIES`."""
    return _named(session, session.scalars(_OF_SERIES, asdict(key)).all())


# Made once: making it takes longer than the database needs for it.
_OF_SERIES = (
    select(RegressionRow)
    .join(RegressionRow.series)
    .where(IS_SERIES)
    .order_by(RegressionRow.id.desc())
    .limit(MAX_OF_SERIES)
)


def one(session: Session, regression_id: int) -> RegressionHistory:
    """One regression with its history, its incident and its bisections.  Raises NotFound."""
    row = session.get(RegressionRow, regression_id, populate_existing=True)
    if row is None:
        raise NotFound("regression", regression_id, "`kernelwatch regression list` lists them.")
    [regressed] = _named(session, [row])
    history = tuple(events(session, [row.id])[row.id])
    happening = incident(session, row.incident_id) if row.incident_id is not None else None
    siblings = tuple(each for each in happening.regressions if each.id != row.id) if happening else ()
    row_of_incident = happening.row if happening else None
    return RegressionHistory(regressed, history, row_of_incident, siblings, _searches(session, regressed))


def events(session: Session, ids: Collection[int]) -> dict[int, list[RegressionEvent]]:
    """The events of these regressions, the oldest first."""
    history = select(RegressionEvent).where(RegressionEvent.regression_id.in_(ids)).order_by(RegressionEvent.id)
    events: dict[int, list[RegressionEvent]] = {regression_id: [] for regression_id in ids}
    for event in session.scalars(history):
        events[event.regression_id].append(event)
    return events


def incident(session: Session, incident_id: int) -> IncidentView:
    """One incident.  Raises NotFound."""
    row = session.get(Incident, incident_id, options=[selectinload(Incident.revision)], populate_existing=True)
    if row is None:
        raise NotFound("incident", incident_id, "`kernelwatch regression list` lists them.")
    [happening] = _happenings(session, [row])
    return happening


def incidents(
    session: Session,
    target: Target | None = None,
    *,
    open_only: bool = True,
    where: Collection[ColumnElement[bool]] = (),
    cursor: str | None = None,
    limit: int = 50,
) -> ResultPage[IncidentView]:
    """Incidents, the newest first; closed ones as well unless `open_only`."""
    statement = select(Incident).options(selectinload(Incident.revision)).where(*where)
    if target is not None:
        statement = statement.where(Incident.target_id == target.id)
    if open_only:
        statement = statement.where(Incident.closed_at.is_(None))
    page = paged(session, statement, (Incident.id,), cursor, limit)
    return ResultPage(_happenings(session, page.items), page.next)


def _named(session: Session, rows: Sequence[RegressionRow]) -> tuple[RegressionView, ...]:
    if not rows:
        return ()
    ids = {each for row in rows for each in (row.run_id, row.fixed_by) if each is not None}
    names = (joinedload(Run.target), joinedload(Run.revision))
    runs = {run.id: run for run in session.scalars(select(Run).where(Run.id.in_(ids)).options(*names))}
    return tuple(
        RegressionView(row, runs[row.run_id].target.name, runs[row.run_id], runs.get(row.fixed_by or 0)) for row in rows
    )


def _happenings(session: Session, incidents: Iterable[Incident]) -> tuple[IncidentView, ...]:
    rows = list(incidents)
    names = dict(session.execute(select(Target.id, Target.name)).all())
    of_them: dict[int, list[RegressionRow]] = {row.id: [] for row in rows}
    worst_first = select(RegressionRow).order_by(RegressionRow.ratio.desc(), RegressionRow.id)
    for each in session.scalars(worst_first.where(RegressionRow.incident_id.in_(list(of_them)))):
        of_them[each.incident_id or 0].append(each)
    return tuple(IncidentView(row, names[row.target_id], tuple(of_them[row.id])) for row in rows)


def _searches(session: Session, of: RegressionView) -> tuple[Bisection, ...]:
    """The bisections of its incident, and those with its case and its revision on their line."""
    latest = (
        select(Bisection)
        .where(Bisection.target_id == of.row.target_id, Bisection.device == of.row.device)
        .where(Bisection.created_at >= of.row.opened_at)
        .order_by(Bisection.id.desc())
    )
    ours = (
        search
        for search in session.scalars(latest)
        if (search.incident_id is not None and search.incident_id == of.row.incident_id)
        or (of.row.case in search.cases and of.run.revision.sha in search.line[1:])
    )
    return tuple(islice(ours, MAX_SEARCHES))


def incident_for(
    session: Session, run: Run, revision: Revision, found_by: FoundBy, culprit: str | None, now: float
) -> int:
    """The open incident that a regression of `revision` belongs to, or a new one.  The caller holds the lock."""
    here = select(Incident, Revision.ordinal).join(Revision, Revision.id == Incident.revision_id)
    near = Incident.revision_id == revision.id
    if revision.ordinal is not None:
        near |= Revision.ordinal.between(revision.ordinal - NEAR, revision.ordinal + NEAR)
    open_ones = session.execute(
        here.where(Incident.target_id == run.target_id, Incident.device == run.device)
        .where(Incident.closed_at.is_(None), near)
        .order_by(Incident.id)
    )
    for incident, place in open_ones.all():
        kinds_and_culprits = session.execute(
            select(RegressionRow.found_by, RegressionRow.culprit)
            .where(RegressionRow.incident_id == incident.id)
            .distinct()
        ).all()
        kinds, culprits = (
            {kind for kind, _ in kinds_and_culprits},
            [culprit for _, culprit in kinds_and_culprits if culprit is not None],
        )
        same = incident.revision_id == revision.id
        if found_by in kinds and (same or one_event(revision.ordinal, culprit, place, culprits)):
            if revision.ordinal is not None and place is not None and revision.ordinal < place:
                incident.revision_id = revision.id
            return int(incident.id)
    made = Incident(target_id=run.target_id, device=run.device, revision_id=revision.id, opened_at=now)
    session.add(made)
    session.flush()
    return made.id


def settle(session: Session, ids: Iterable[int | None], now: float) -> None:
    """Close the incidents without an open regression, reopen those with one, and store their common cause."""
    session.flush()
    for incident_id in sorted({chosen for chosen in ids if chosen is not None}):
        incident = session.get_one(Incident, incident_id, populate_existing=True)
        rows = select(RegressionRow.state, RegressionRow.ratio, RegressionRow.cause_kind, RegressionRow.cause_text)
        members = [Member(*row) for row in session.execute(rows.where(RegressionRow.incident_id == incident_id))]
        incident.closed_at = (incident.closed_at or now) if is_over(members) else None
        cause = common_cause(members)
        incident.cause_kind, incident.cause_text = (cause.cause, cause.why) if cause else (None, None)
