"""The mainline of a target page by page, its open pull requests, and the runs that wait for approval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from service.db.models import WATCHED, Pull, Revision, Run, RunTotals, Target
from service.domain.health.overview import StripRevision
from service.domain.states import Purpose, RunState
from service.ledger.health.overview import RUN_COLUMNS, earlier_runs, recent_run
from service.reports.health.facts import HeldRuns, RecentRun, TargetLately

MAX_PULLS = 12  # open ones that are listed
_NUMBERS = 500  # the newest pull requests, that are searched for open ones


@dataclass(frozen=True)
class MainlineRevision:
    """A revision of the mainline with its newest run on each device."""

    ordinal: int
    sha: str
    parent: str | None
    subject: str
    author: str
    committed_at: float
    runs: Mapping[str, RecentRun] = field(default_factory=dict)

    @property
    def strip(self) -> StripRevision:
        results = {device: run.result for device, run in self.runs.items()}
        return StripRevision(self.ordinal, self.sha, self.committed_at, results)


_COLUMNS = (
    Revision.id.label("revision_id"),
    Revision.ordinal,
    Revision.sha,
    Revision.parent,
    Revision.subject,
    Revision.author,
    Revision.committed_at,
)
# Statements are made once: making one takes longer than the database needs for it.
_NEWEST = select(func.max(Revision.ordinal)).where(Revision.target_id == bindparam("target"))
_PAGE = (
    select(*_COLUMNS, *RUN_COLUMNS)
    .select_from(Revision)
    .outerjoin(Run, (Run.revision_id == Revision.id) & WATCHED)
    .outerjoin(RunTotals, RunTotals.run_id == Run.id)
    .where(Revision.target_id == bindparam("target"))
    .where(Revision.ordinal >= bindparam("first"), Revision.ordinal < bindparam("end"))
    .order_by(Revision.ordinal.desc(), Run.id)
)


def newest_ordinal(session: Session, target: Target) -> int:
    """The place of the newest revision; -1 while there is none."""
    newest = session.scalar(_NEWEST, {"target": target.id})
    return -1 if newest is None else newest


def mainline(session: Session, target: Target, end: int, count: int) -> list[MainlineRevision]:
    """The revisions at the `count` places before `end`, the newest first."""
    rows = session.execute(_PAGE, {"target": target.id, "first": end - count, "end": end})
    revisions = []
    for _, some in groupby(rows, key=attrgetter("revision_id")):
        of_revision: list[Any] = list(some)
        _, ordinal, sha, parent, subject, author, at = of_revision[0][:7]
        # The newest run of a device comes last.
        runs = {row.device: recent_run(sha, *row[7:]) for row in of_revision if row.run_id is not None}
        revisions.append(MainlineRevision(ordinal or 0, sha, parent, subject, author, at, runs))
    return revisions


def lately(session: Session, target: Target, newest: Sequence[MainlineRevision], now: float) -> TargetLately:
    """The results of these newest revisions, compared with those of a week and of a day ago."""
    oldest_first = list(reversed(newest))
    revisions = tuple(revision.strip for revision in oldest_first)
    lately = TargetLately(target, revisions, tuple(run for each in oldest_first for run in each.runs.values()))
    return TargetLately(target, revisions, lately.runs, *earlier_runs(session, [lately], now).get(target.id, ({}, {})))


@dataclass(frozen=True)
class OpenPull:
    """An open pull request with its newest head; without a revision nothing was recorded of it."""

    number: int
    head: str | None
    subject: str
    author: str
    at: float | None
    runs: Mapping[str, RecentRun]


def open_pulls(session: Session, target: Target) -> list[OpenPull]:
    """The open pull requests among the newest, that of the largest number first."""
    newest = select(func.max(Pull.number)).where(Pull.target_id == target.id).scalar_subquery()
    opened = (
        select(Pull.number, Pull.head, Revision.id, Revision.subject, Revision.author, Revision.committed_at)
        .outerjoin(Revision, (Revision.target_id == Pull.target_id) & (Revision.sha == Pull.head))
        .where(Pull.target_id == target.id, Pull.closed_at.is_(None), Pull.number > newest - _NUMBERS)
        .order_by(Pull.number.desc())
        .limit(MAX_PULLS)
    )
    rows = session.execute(opened).all()
    runs = dict[int, dict[str, RecentRun]]()
    ids = [row.id for row in rows if row.id is not None]
    of_heads = (
        select(Run.revision_id.label("revision_id"), Revision.sha, *RUN_COLUMNS)
        .join(Revision, Revision.id == Run.revision_id)
        .outerjoin(RunTotals, RunTotals.run_id == Run.id)
        .where(Run.revision_id.in_(ids), Run.pull.is_not(None), Run.purpose == Purpose.WATCH)
        .order_by(Run.id)
    )
    for row in session.execute(of_heads) if ids else ():
        runs.setdefault(row.revision_id, {})[row.device] = recent_run(row.sha, *row[2:])
    return [
        OpenPull(number, head, subject or "", author or "", at, runs.get(revision_id or 0, {}))
        for number, head, revision_id, subject, author, at in rows
    ]


def held_runs(session: Session, target: Target) -> list[HeldRuns]:
    """The runs that wait for approval, as one entry; none where there are none."""
    asked = select(func.count(), func.min(Run.id), func.min(Run.created_at), func.count(Run.pull.distinct()))
    count, first, since, pulls = session.execute(
        asked.where(Run.state == RunState.HELD, Run.target_id == target.id)
    ).one()
    return [HeldRuns(target.name, count, first, since, pulls)] if count else []
