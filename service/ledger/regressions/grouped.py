"""Regressions as people read them: those of one revision together, on all devices, filtered, most severe first.

Groups and the counts of filters come from one query over the open regressions, which have an index of their own.  Of
closed ones, which only become more, the newest are read.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Select, TextClause, bindparam, case, func, or_, select
from sqlalchemy.orm import Session

from kernels.cases import Metric
from service.db.models import (
    OPEN_ONES,
    SAMPLE_LOCATIONS,
    Gap,
    Incident,
    RegressionRow,
    Revision,
    Run,
    Series,
    Target,
)
from service.db.paging import ResultPage, page_of_values
from service.domain.states import CLOSED_REGRESSIONS, OPEN_REGRESSIONS, RegressionState
from service.reports.health.facts import OpenIncident, WorstCase

MAX_TEXT = 100
ACCEPTED = RegressionState.ACKNOWLEDGED  # nobody has to look at it before its date


class Attention(StrEnum):
    """What an open regression lacks."""

    UNASSIGNED = "unassigned"
    OVERDUE = "overdue"


@dataclass(frozen=True)
class RegressionFilter:
    """Which regressions; None and empty do not limit."""

    states: Collection[RegressionState] = ()
    target: Target | None = None
    device: str | None = None
    assignee: str | None = None
    attention: Attention | None = None
    text: str = ""  # of a case, of the subject of the commit, or with which a sha begins

    def conditions(self, now: float) -> list[ColumnElement[bool]]:
        """Conditions for a query of regressions and their series."""
        wanted: list[ColumnElement[bool]] = []
        if self.states:
            wanted.append(RegressionRow.state.in_(self.states))
        if self.target is not None:
            wanted.append(Series.target_id == self.target.id)
        if self.device is not None:
            wanted.append(Series.device == self.device)
        if self.assignee is not None:
            wanted.append(RegressionRow.assignee == self.assignee)
        if self.attention is not None:
            wanted += lacking(self.attention, now)
        if self.text:
            wanted.append(_named(self.text))
        return wanted


def lacking(what: Attention, now: float) -> list[ColumnElement[bool]]:
    """The conditions of regressions that lack this."""
    waiting = [state for state in OPEN_REGRESSIONS if state is not ACCEPTED]
    lacks = RegressionRow.assignee.is_(None) if what is Attention.UNASSIGNED else RegressionRow.due_at < now
    return [RegressionRow.state.in_(waiting), lacks]


def _named(text: str) -> ColumnElement[bool]:
    """Regressions of which the case, the commit or its subject is named so."""
    within = f"%{_literally(text)}%"
    begins = f"{_literally(text.lower())}%"
    # A value of each run, not whether one exists: PostgreSQL would look for it among all revisions.
    of_run = (
        select(or_(Revision.subject.ilike(within, escape="\\"), Revision.sha.like(begins, escape="\\")))
        .where(Run.id == RegressionRow.run_id, Revision.id == Run.revision_id)
        .correlate(RegressionRow)
        .scalar_subquery()
    )
    return or_(Series.printed.ilike(within, escape="\\"), RegressionRow.culprit.like(begins, escape="\\"), of_run)


def _literally(text: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", text)


Condition = ColumnElement[bool] | TextClause
DETAILED = 8  # incidents of which more than numbers is read
MAX_CLOSED = 500  # regressions of a closed state that are grouped: the newest


class GroupOrder(StrEnum):
    """How the groups of a page are sorted."""

    SEVERITY = "severity"
    TIME = "time"  # at stake
    NEWEST = "newest"


_alone = case((RegressionRow.incident_id.is_(None), RegressionRow.run_id))
_overdue = case((RegressionRow.due_at < bindparam("now"), 1), else_=0)
_of = (
    Series.target_id,
    Target.location,
    Series.device,
    RegressionRow.incident_id,
    Incident.revision_id,
    _alone.label("alone"),
    RegressionRow.state,
    RegressionRow.found_by,
    RegressionRow.assignee,
    _overdue.label("overdue"),
)
_stake = case((Series.metric == Metric.KERNEL, Gap.own * (1 - 1 / RegressionRow.ratio)))
# Statements are made once: making one takes longer than the database needs for it.
_COUNTED = (
    select(
        *_of,
        func.count().label("cases"),
        func.sum(RegressionRow.ratio).label("ratios"),
        func.min(RegressionRow.ratio).label("low"),
        func.max(RegressionRow.ratio).label("high"),
        func.min(RegressionRow.opened_at).label("opened_at"),
        func.min(RegressionRow.due_at).label("due_at"),
        func.sum(_stake).label("stake_us"),
    )
    .select_from(RegressionRow)
    .join(Series, Series.id == RegressionRow.series_id)
    .join(Target, Target.id == Series.target_id)
    .outerjoin(Incident, Incident.id == RegressionRow.incident_id)
    .outerjoin(Gap, Gap.series_id == RegressionRow.series_id)
    .group_by(*_of)
)
_OPEN = _COUNTED.where(OPEN_ONES)


def open_incidents(session: Session, now: float) -> list[OpenIncident]:
    """All incidents with open regressions, the most severe first; the first ones with their revision and worst case."""
    ordered = sorted(
        _groups(session.execute(_OPEN, {"now": now})), key=lambda group: (-group.severity, -group.high, group.opened_at)
    )
    detail(session, ordered[:DETAILED], [OPEN_ONES])
    return ordered


@dataclass(frozen=True)
class GroupedRegressions:
    """A page of groups, how many regressions there are in all, and the counts of filters.

    `counts` are by the name of the filter and its value: each as if that filter were the only one that could change.
    """

    groups: ResultPage[OpenIncident]
    of_groups: int
    causes: int  # groups without those of the sample
    found: int  # regressions that fit
    of_sample: int  # of them; nobody has to act on these
    unassigned: int  # groups with a case that nobody is assigned to, without the sample
    counts: Mapping[str, Counter[Any]] = field(default_factory=dict)


def grouped(
    session: Session,
    which: RegressionFilter,
    now: float,
    order: GroupOrder = GroupOrder.SEVERITY,
    cursor: str | None = None,
    limit: int = 30,
) -> GroupedRegressions:
    """The regressions that fit, in groups.  The states are all open ones, or one that is closed."""
    closed = [state for state in which.states if state not in OPEN_REGRESSIONS]
    scope: list[Condition] = [_newest(closed[0], MAX_CLOSED) if closed else OPEN_ONES]
    open_rows = _rows(session, which, now, [OPEN_ONES])
    rows = _rows(session, which, now, scope) if closed else open_rows
    misses = [(row, _misses(row, which)) for row in rows]
    chosen = [row for row, missed in misses if not missed]
    counts = {name: _counts(name, [row for row, missed in misses if missed <= {name}]) for name in _FILTERS}
    counts["state"] = _counts("state", [row for row in open_rows if _misses(row, which) <= {"state"}])
    counts["state"] |= {state: _number(session, which, now, state) for state in CLOSED_REGRESSIONS}
    every = _groups(chosen)
    page = page_of_values(every, _KEYS[order], cursor, limit)
    detail(session, page.items, [*scope, *which.conditions(now)])
    watched = [incident for incident in every if not incident.sample]
    unassigned = sum(incident.count > incident.assigned for incident in watched) if not closed else 0
    found = sum(row.cases for row in chosen)
    of_sample = found - sum(incident.states.total() for incident in watched)
    return GroupedRegressions(page, len(every), len(watched), found, of_sample, unassigned, counts)


def in_group(target_id: int, revision_id: int | None, run_id: int) -> ColumnElement[bool]:
    """The condition of regressions that they are in the group of this revision, or of this run without an incident."""
    if revision_id is None:
        return RegressionRow.incident_id.is_(None) & (RegressionRow.run_id == run_id)
    ids = select(Incident.id).where(Incident.target_id == target_id, Incident.revision_id == revision_id)
    return RegressionRow.incident_id.in_(ids)


_FILTERS = ("state", "target", "device", "assignee", "attention")


def _rows(session: Session, which: RegressionFilter, now: float, scope: Collection[Condition]) -> Sequence[Any]:
    """The numbers of regressions by all that filters ask for; only the text is left to the database."""
    text = RegressionFilter(text=which.text).conditions(now)
    whole = list(scope) == [OPEN_ONES]
    statement = _OPEN if whole else _COUNTED.where(*scope)
    return session.execute(statement.where(*text) if text else statement, {"now": now}).all()


def _number(session: Session, which: RegressionFilter, now: float, state: RegressionState) -> int:
    """How many of the newest regressions of a closed state fit: of one more than are grouped."""
    where = [_newest(state, MAX_CLOSED + 1), *replace(which, states=()).conditions(now)]
    return session.scalar(select(func.count(RegressionRow.id)).join(RegressionRow.series).where(*where)) or 0


def _misses(row: Any, which: RegressionFilter) -> set[str]:
    """The filters that leave these regressions out."""
    fits = {
        "state": not which.states or row.state in which.states,
        "target": which.target is None or row.target_id == which.target.id,
        "device": which.device in (None, row.device),
        "assignee": which.assignee in (None, row.assignee),
        "attention": which.attention is None or which.attention in _lacks(row),
    }
    return {name for name, true in fits.items() if not true}


def _lacks(row: Any) -> list[Attention]:
    if row.state not in OPEN_REGRESSIONS or row.state is ACCEPTED:
        return []
    lacks = {Attention.UNASSIGNED: row.assignee is None, Attention.OVERDUE: bool(row.overdue)}
    return [what for what, true in lacks.items() if true]


def _counts(name: str, rows: Sequence[Any]) -> Counter[Any]:
    counts = Counter[Any]()
    for row in rows:
        match name:
            case "state":
                counts[row.state] += row.cases
            case "target":
                counts[row.target_id] += row.cases
            case "device":
                counts[row.device] += row.cases
            case "assignee":
                if row.assignee is not None:
                    counts[row.assignee] += row.cases
            case _:
                for what in _lacks(row):
                    counts[what] += row.cases
    return counts


def _newest(state: RegressionState, count: int) -> ColumnElement[bool]:
    """The newest regressions of a state."""
    by = RegressionRow.id if state is RegressionState.DISMISSED else RegressionRow.fixed_at
    ids = select(RegressionRow.id).where(RegressionRow.state == state).order_by(by.desc(), RegressionRow.id.desc())
    return RegressionRow.id.in_(ids.limit(count).correlate(None))


def _groups(rows: Any) -> list[OpenIncident]:
    incidents = dict[tuple[int, int | None, int | None], OpenIncident]()
    for row in rows:
        key = row.target_id, row.revision_id, row.alone
        incident = incidents.setdefault(key, OpenIncident(*key, sample=row.location in SAMPLE_LOCATIONS))
        _count(incident, row)
    return list(incidents.values())


def _place(incident: OpenIncident) -> tuple[int, int, int]:
    return incident.target_id, incident.revision_id or 0, incident.run_id or 0


# Whole numbers, which a cursor holds exactly: severity in millionths, times in ns and in ms.  The sample comes last.
_KEYS = {
    GroupOrder.SEVERITY: lambda group: (
        int(group.sample),
        -round(group.severity * 1e6),
        -round(group.high * 1e6),
        *_place(group),
    ),
    GroupOrder.TIME: lambda group: (
        int(group.sample),
        -round((group.stake_us or 0.0) * 1e3),
        -round(group.severity * 1e6),
        *_place(group),
    ),
    GroupOrder.NEWEST: lambda group: (int(group.sample), -round(group.opened_at * 1e3), *_place(group)),
}


def _count(incident: OpenIncident, row: Any) -> None:
    incident.devices.add(row.device)
    incident.found_by.add(row.found_by)
    incident.states[row.state] += row.cases
    if row.incident_id is not None:
        incident.incidents.add(row.incident_id)
    incident.opened_at = min(incident.opened_at, row.opened_at)
    if row.state is ACCEPTED:
        return
    incident.severity += row.ratios - row.cases
    incident.low, incident.high = min(incident.low, row.low), max(incident.high, row.high)
    if row.stake_us is not None:
        incident.stake_us = (incident.stake_us or 0.0) + row.stake_us
    if row.assignee is not None:
        incident.assigned += row.cases
        incident.assignees.add(row.assignee)
    if row.due_at is not None:
        incident.due_at = row.due_at if incident.due_at is None else min(incident.due_at, row.due_at)


def detail(session: Session, incidents: Sequence[OpenIncident], where: Collection[Condition]) -> None:
    """Read the revisions and the worst cases of these incidents, among the regressions that these conditions name."""
    if not incidents:
        return
    runs = {incident.run_id for incident in incidents if incident.run_id is not None}
    worst = _worst(session, {incident_id for incident in incidents for incident_id in incident.incidents}, runs, where)
    for incident in incidents:
        keys = [(incident_id, None) for incident_id in incident.incidents] + [(None, incident.run_id)]
        rows = [worst[key] for key in keys if key in worst]
        if rows:
            row = max(rows, key=lambda row: (not row.accepted, row.ratio))
            incident.sha, incident.subject = row.sha, row.subject
            incident.worst = WorstCase(row.id, row.case, row.ratio, row.cause, bool(row.accepted), row.run_id)


_largest_first = (RegressionRow.state == ACCEPTED, RegressionRow.ratio.desc(), RegressionRow.id)


def _ranked(where: Collection[Condition]) -> Select[*tuple[Any, ...]]:
    """The worst regression of each incident and of each run without one, and its revision; accepted ones count last."""
    ranked = (
        select(
            RegressionRow.incident_id,
            Incident.revision_id,
            _alone.label("alone"),
            RegressionRow.run_id,
            RegressionRow.id,
            Series.printed.label("case"),
            RegressionRow.ratio,
            func.coalesce(Incident.cause_text, RegressionRow.cause_text).label("cause"),
            (RegressionRow.state == ACCEPTED).label("accepted"),
            func.row_number()
            .over(partition_by=(RegressionRow.incident_id, _alone), order_by=_largest_first)
            .label("place"),
        )
        .select_from(RegressionRow)
        .join(Series, Series.id == RegressionRow.series_id)
        .outerjoin(Incident, Incident.id == RegressionRow.incident_id)
        .where(*where)
        .where(
            RegressionRow.incident_id.in_(bindparam("incidents", expanding=True))
            | (RegressionRow.incident_id.is_(None) & RegressionRow.run_id.in_(bindparam("runs", expanding=True)))
        )
        .subquery()
    )
    return (
        select(ranked, Revision.sha, Revision.subject)
        .join(Run, Run.id == ranked.c.run_id)
        .join(Revision, Revision.id == func.coalesce(ranked.c.revision_id, Run.revision_id))
        .where(ranked.c.place == 1)
    )


_WORST_OPEN = _ranked([OPEN_ONES])


def _worst(
    session: Session, incidents: Collection[int], runs: Collection[int], where: Collection[Condition]
) -> dict[tuple[int | None, int | None], Any]:
    statement = _WORST_OPEN if list(where) == [OPEN_ONES] else _ranked(where)
    rows = session.execute(statement, {"incidents": list(incidents), "runs": list(runs)})
    return {(row.incident_id, row.alone): row for row in rows}
