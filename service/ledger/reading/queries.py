"""Queries of the ledger for pages, the API and the command line.  Each loads what its reader needs."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sqlalchemy import ColumnElement, Result, Select, String, bindparam, func, select, tuple_, type_coerce
from sqlalchemy import case as sql_case
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, contains_eager, joinedload, selectinload, undefer
from sqlalchemy.orm.attributes import set_committed_value

from kernels.cases import Role
from service.db.engine import clock
from service.db.models import (
    AGAINST_PARENT,
    QUEUE_ORDER,
    WATCHED,
    Attempt,
    Gap,
    Measurement,
    RegressionRow,
    Revision,
    Run,
    RunTotals,
    Series,
    Stack,
    Target,
    VerdictRow,
    Worker,
)
from service.db.paging import ResultPage, distinct, filtered, paged, paged_rows
from service.domain.attribution.causes import moved
from service.domain.states import (
    OPEN_REGRESSIONS,
    OPEN_STATES,
    BaselineKind,
    Outcome,
    Purpose,
    RegressionState,
    RunState,
)
from service.domain.text import WORKER_GONE_S, is_recent, short
from service.errors import NotFound
from service.forge.clients import addresses
from service.ledger.policies import server_policy
from service.ledger.reading.contents import read_contents
from service.ledger.runs.baselines import UNACCEPTED
from service.ledger.runs.revisions import recipe_of
from service.ledger.targets import on_device
from service.reports.report import WORST_FIRST, Report, RunContents, readable, report
from service.reports.rows import Known
from service.reports.schema.runs import run_values
from service.reports.views import GapView, Point
from service.settings import settings

MAX_SERIES = 2000
MIN_READ = 100  # runs of a series that are read at once
LATEST_RUNS = 20  # from which a target's series are listed; all of its runs would be too many rows
OUT_OF_ORDER = 20  # revisions: how far from its place on the mainline the time of a commit may put it
MAX_ASIDE = 200  # revisions off the mainline that are searched for commits that people requested


@dataclass(frozen=True)
class Glance:
    """A summary of a run: the number of cases by outcome, worst first."""

    run: Run
    counts: Mapping[Outcome, int] = field(default_factory=dict)
    behind: int = 0

    @property
    def word(self) -> str:
        """The worst outcome of a finished run; the state of any other."""
        if self.run.state is not RunState.DONE:
            return self.run.state.value
        return next((outcome.value for outcome in WORST_FIRST if self.counts.get(outcome)), "done")


@dataclass(frozen=True)
class Line:
    """A revision and its newest run on each device."""

    revision: Revision
    runs: Mapping[str, Glance]


@dataclass(frozen=True)
class Card:
    """A target with its latest mainline revisions, its open regressions and its cases behind SOTA."""

    target: Target
    devices: tuple[str, ...]
    lines: tuple[Line, ...]
    standing: Mapping[RegressionState, int]  # number of open regressions by state, without zeros
    behind: int

    @property
    def regressions(self) -> int:
        """The number of open regressions."""
        return sum(self.standing.values())


@dataclass(frozen=True)
class Waiting:
    """The queue of one device."""

    device: str
    queued: int
    held: int
    leased: int
    oldest_s: float  # how long the first queued run has waited
    worker: bool  # is a worker of the device online?


# Of a run for people: all but its telemetry.
HEAD_OF_RUN = (
    *(joinedload(relation) for relation in (Run.target, Run.revision, Run.recipe, Run.stack)),
    undefer(Run.log),
    undefer(Run.summary),
)


def whole_run(session: Session, run_id: int) -> Run:
    """A run with everything that a Report needs besides its contents."""
    whole = (*HEAD_OF_RUN, undefer(Run.telemetry))
    run = session.get(Run, run_id, options=whole, populate_existing=True)
    if run is None:
        raise NotFound("run", run_id)
    return run


def found_in(session: Session, run_id: int) -> Report:
    """The report of a run, with the regressions that were open at its baseline."""
    return report_on(session, whole_run(session, run_id))


def report_on(session: Session, run: Run, contents: RunContents | None = None) -> Report:
    """The report of a run that was loaded by `whole_run`, or with its contents given."""
    contents = contents or read_contents(session, run)
    open_before = _open_at_baseline(session, run, contents.verdicts)
    own = settings()
    return report(
        run,
        contents,
        policy=server_policy(),
        address=own.address,
        forge=addresses()[run.target.forge_kind] if run.target.forge_kind else "",
        known=open_before,
        public=own.public_read and own.public_url is not None and not run.target.private,
    )


def run_document(session: Session, run_id: int, *, tables: bool = False) -> Mapping[str, Any]:
    """The values of a RunDocument.  Raises NotFound."""
    run = whole_run(session, run_id)
    contents = read_contents(session, run)
    return run_values(run, report_on(session, run, contents), contents, tables=tables)


def _open_at_baseline(session: Session, run: Run, verdicts: Sequence[VerdictRow]) -> dict[tuple[str, str], Known]:
    """The regressions that were open at the run's baseline, by case.

    For a case that was compared with a last good revision, it is the earliest regression since that revision; for any
    other, the earliest that was not acknowledged or dismissed.
    """
    if run.purpose is not Purpose.WATCH:
        return {}
    baseline = select(Revision.ordinal).where(Revision.target_id == run.target_id, Revision.sha == run.baseline)
    rows = session.execute(
        select(Series.provider, Series.printed, RegressionRow.id, RegressionRow.state, RegressionRow.good, Revision.sha)
        .select_from(RegressionRow)
        .join(RegressionRow.series)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(on_device(run.target_id, run.device))
        .where(RegressionRow.run_id < run.id)
        .where(RegressionRow.fixed_by.is_(None) | (RegressionRow.fixed_by > run.id))
        .where(Revision.ordinal <= baseline.scalar_subquery())
        .order_by(Revision.ordinal.desc(), RegressionRow.id.desc())  # the earliest stays
    ).all()
    cases = {case for _, case, *_ in rows}
    verdicts = [row for row in verdicts if row.case in cases]
    good, parent = (
        {(row.provider, row.case): row.baseline for row in verdicts if row.baseline_kind == kind}
        for kind in (BaselineKind.LAST_GOOD, BaselineKind.PARENT)
    )
    regressions = {}
    for provider, case, regression_id, state, since, sha in rows:
        name = provider, case
        unaccepted = state in (*UNACCEPTED, RegressionState.FIXED)  # as far as is known today
        if since == good[name] if name in good else unaccepted and since != parent.get(name):
            regressions[name] = Known(regression_id, short(sha))
    return regressions


_TYPICAL = 20  # runs, of which the median time is taken
_NAMES = (selectinload(Run.target), selectinload(Run.revision))


def pull_reports(session: Session, run: Run) -> tuple[Report, ...]:
    """The reports of one comment: the newest run of the revision on each device, that of the given run first.

    Runs of another suite than the recipe's, which a person requested, are reported only where there is no other.
    """
    ids = _runs_of_head(session, run) if run.pull is not None else [run.id]
    reports = [found_in(session, run_id) for run_id in sorted(ids)]
    return tuple(sorted(reports, key=lambda report: report.device != run.device))


def _runs_of_head(session: Session, run: Run) -> Iterable[int]:
    same = (Run.target_id == run.target_id, Run.pull == run.pull, Run.revision_id == run.revision_id)
    rows = session.execute(select(Run.id, Run.device, Run.suite).where(*same).order_by(Run.id)).all()
    recipe = readable(run.recipe.text)
    usual = [row for row in rows if recipe is None or row.suite == recipe.suite_on(row.device)]
    return ({row.device: row.id for row in rows} | {row.device: row.id for row in usual}).values()


def attempts(session: Session, run_id: int) -> Sequence[Attempt]:
    """The attempts of a run, in order."""
    return session.scalars(select(Attempt).where(Attempt.run_id == run_id).order_by(Attempt.attempt)).all()


def ahead_of(session: Session, run: Run) -> int:
    """The number of queued runs of the same device that are taken before this one."""
    before = tuple_(*QUEUE_ORDER) < (run.turn, run.priority, run.id)
    return (
        session.scalar(select(func.count()).where(Run.device == run.device, Run.state == RunState.QUEUED, before)) or 0
    )


def card(session: Session, target: Target, lines: int = 8, before: int | None = None) -> Card:
    """Summarise a target with its latest mainline revisions, or those before an ordinal."""
    older = (Revision.ordinal < before,) if before is not None else ()
    latest = session.scalars(
        select(Revision)
        .where(Revision.target_id == target.id, Revision.ordinal.is_not(None), *older)
        .order_by(Revision.ordinal.desc())
        .limit(lines)
    ).all()
    found = _lines(session, latest)
    measured = {device for line in found for device in line.runs}
    recipe = readable(target.recipe.text) if target.recipe else None
    places = recipe.places if recipe else ()
    wanted = [
        device
        for among in places
        for device in ([device_there for device_there in among if device_there in measured] or among[:1])
    ]
    return Card(
        target=target,
        devices=tuple(dict.fromkeys((*wanted, *sorted(measured)))),
        lines=found,
        standing=_standing(session, target),
        behind=session.scalar(
            select(func.count(Gap.id)).join(Gap.series).where(Series.target_id == target.id, Gap.behind_sota)
        )
        or 0,
    )


def _standing(session: Session, target: Target) -> dict[RegressionState, int]:
    counted = (
        select(RegressionRow.state, func.count())
        .join(RegressionRow.series)
        .where(Series.target_id == target.id, RegressionRow.state.in_(OPEN_REGRESSIONS))
        .group_by(RegressionRow.state)
    )
    counts = dict(session.execute(counted).all())
    return {state: counts[state] for state in OPEN_REGRESSIONS if state in counts}


def open_counts(session: Session, targets: Collection[int]) -> dict[int, tuple[int, int]]:
    """The numbers of open regressions and of cases behind SOTA, of each of these targets."""
    regressions = (
        select(Series.target_id, func.count())
        .select_from(RegressionRow)
        .join(RegressionRow.series)
        .where(Series.target_id.in_(targets), RegressionRow.state.in_(OPEN_REGRESSIONS))
        .group_by(Series.target_id)
    )
    behind = (
        select(Series.target_id, func.count(Gap.id))
        .join(Gap.series)
        .where(Series.target_id.in_(targets), Gap.behind_sota)
        .group_by(Series.target_id)
    )
    opened, gaps = (dict(session.execute(query).all()) for query in (regressions, behind))
    return {target_id: (opened.get(target_id, 0), gaps.get(target_id, 0)) for target_id in targets}


def aside(session: Session, target: Target, limit: int = 20) -> list[Glance]:
    """The latest runs off the mainline: of pull requests, and of commits that a person requested."""
    of_pulls = select(Run.id).where(Run.target_id == target.id, Run.pull.is_not(None), Run.purpose == Purpose.WATCH)
    of_pulls = of_pulls.order_by(Run.id.desc()).limit(limit)
    off = select(Revision.id).where(Revision.target_id == target.id, Revision.ordinal.is_(None))
    off = off.order_by(Revision.id.desc()).limit(MAX_ASIDE)
    requested = select(Run.id).where(Run.revision_id.in_(off), WATCHED).order_by(Run.id.desc()).limit(limit)
    found = sorted({*session.scalars(of_pulls), *session.scalars(requested)}, reverse=True)[:limit]
    return glances(session, runs_with_ids(session, found)[::-1])


def _lines(session: Session, latest: Sequence[Revision]) -> tuple[Line, ...]:
    ids = [revision.id for revision in latest]
    runs = session.scalars(select(Run).where(Run.revision_id.in_(ids), WATCHED).options(*_NAMES).order_by(Run.id)).all()
    by_revision: dict[int, dict[str, Glance]] = {}
    for glance in glances(session, runs):  # the newest run of a device comes last
        by_revision.setdefault(glance.run.revision_id, {})[glance.run.device] = glance
    return tuple(Line(revision, by_revision.get(revision.id, {})) for revision in latest)


def glances(session: Session, runs: Sequence[Run]) -> list[Glance]:
    """Each run with the number of its cases by outcome."""
    rows = session.scalars(select(RunTotals).where(RunTotals.run_id.in_([run.id for run in runs])))
    totals = {row.run_id: row for row in rows}
    return [_glance(run, totals.get(run.id)) for run in runs]


def _glance(run: Run, totals: RunTotals | None) -> Glance:
    if totals is None:
        return Glance(run)
    counts = {outcome: n for outcome in WORST_FIRST if (n := getattr(totals, outcome.value))}
    return Glance(run, counts, totals.behind)


def revisions(
    session: Session,
    target: Target | None,
    cursor: str | None = None,
    limit: int = 50,
    *,
    where: Collection[ColumnElement[bool]] = (),
) -> ResultPage[Revision]:
    """The revisions of a target or of all, latest commit first, each with its target."""
    statement = select(Revision).options(selectinload(Revision.target)).where(*where)
    if target is not None:
        statement = statement.where(Revision.target_id == target.id)
    return paged(session, statement, (Revision.committed_at, Revision.id), cursor, limit)


def runs_with_ids(session: Session, ids: Sequence[int]) -> Sequence[Run]:
    """The runs with these ids, in the order of their ids."""
    return session.scalars(select(Run).where(Run.id.in_(ids)).options(*_NAMES).order_by(Run.id)).all()


def runs_of(session: Session, revision_id: int) -> Sequence[Run]:
    """The runs of one revision, newest first, without steps of bisections and calibrations."""
    watched = (Run.revision_id == revision_id, Run.purpose == Purpose.WATCH)
    return session.scalars(select(Run).where(*watched).order_by(Run.id.desc()).limit(20)).all()


def gaps(
    session: Session,
    target: Target | None = None,
    cursor: str | None = None,
    limit: int = 50,
    *,
    where: Collection[ColumnElement[bool]] = (),
) -> ResultPage[GapView]:
    """Mainline cases behind SOTA, widest gap first."""
    statement = (
        select(Gap, Target.name, Revision)
        .join(Gap.series)
        .options(contains_eager(Gap.series))
        .join(Target, Target.id == Series.target_id)
        .outerjoin(Run, Run.id == Gap.since_run_id)
        .outerjoin(Revision, Revision.id == Run.revision_id)
        .where(Gap.behind_sota, *where)
    )
    if target is not None:
        statement = statement.where(Series.target_id == target.id)
    page = paged_rows(session, statement, (Gap.ratio_now, Gap.id), cursor, limit)
    return page.shown_as(lambda row: GapView(*row[:3]))


@dataclass(frozen=True)
class MainlinePlaces:
    """Some revisions of the mainline, at even distances."""

    where: ColumnElement[bool]
    every: int = 1  # the distance: 1 for each of them


def series(
    session: Session,
    target: Target,
    case: str,
    provider: str,
    device: str,
    *,
    since: float | None = None,
    limit: int = MAX_SERIES,
    places: MainlinePlaces | None = None,
) -> list[Point]:
    """One series over the mainline, oldest first, from the newest run of each revision that measured the case.

    Of many revisions only the newest, and only those that were committed `since` a time, or at these places.
    """
    statement = _SERIES.where(places.where if places else Revision.ordinal.is_not(None))
    if since is not None:
        statement = statement.where(Revision.committed_at >= since)
    at_once = max(limit, MIN_READ)
    of_series = {"target": target.id, "device": device, "provider": provider, "case": case, "at_once": at_once}
    sota = session.scalars(_SOTA_PROVIDERS, {"case": case}).all()
    # The rows are the target's, and not worth the way through the ORM.
    read: Callable[..., Result[*tuple[Any, ...]]] = session.connection().execute
    found = dict[int, Point]()  # by ordinal, the newest first
    older: Sequence[ColumnElement[bool]] = ()
    while True:
        rows = read(statement.where(*older), of_series).all()
        (of_head, of_verdict, of_sota), of_runs = _of_runs([row[0] for row in rows], places)
        of_case = of_runs | {"case": case}
        of_provider = of_case | {"provider": provider}
        heads = {row[0]: row[1:] for row in read(of_head, of_provider).all()}
        verdicts = {row[0]: row[1:] for row in read(of_verdict, of_provider).all()}
        best = dict[int, float | None]()  # of several providers the first counts
        for name in reversed(sota):
            best |= {row[0]: row[1] for row in read(of_sota, of_case | {"provider": name}).all()}
        for run, sha, subject, place, at, stack, author in rows:
            if (head := heads.get(run)) is not None and place not in found:
                verdict = verdicts.get(run, _NOT_JUDGED)
                of_point = (run, sha, subject, place, at, *head, best.get(run), *verdict, stack, author, ())
                found[place] = Point._make(of_point)
        # Few revisions have several runs, or runs without the case.
        if len(rows) < at_once or len(found) >= limit:
            break
        older = (Revision.ordinal < rows[-1].ordinal,)
    points = list(found.values())[:limit][::-1]
    return with_changes_of_stack(points, versions_of(session, (point.stack_id for point in points)))


_Rows = Select[*tuple[Any, ...]]
_OfRuns = tuple[_Rows, _Rows, _Rows]  # heads, verdicts against the parent, and SOTA


def _of_runs(runs: Sequence[int], places: MainlinePlaces | None) -> tuple[_OfRuns, dict[str, Any]]:
    """What reads a series in these runs, and the parameters that name them."""
    # A range is the quicker, but runs that are far apart have many between them.
    if places is not None and places.every > 1:
        return _IN_RUNS, {"runs": runs}
    return _BETWEEN_RUNS, {"first": min(runs, default=0), "last": max(runs, default=0)}


def _was_sota(provider: ColumnElement[str]) -> ColumnElement[bool]:
    there = aliased(Measurement)
    of_provider = select(there.run_id).where(there.case == bindparam("case"), there.provider == provider)
    return of_provider.where(there.role == Role.SOTA.value).limit(1).exists()


# Statements are made once: making one takes longer than the database needs for it.
_SERIES = (
    select(Run.id, Revision.sha, Revision.subject, Revision.ordinal, Revision.committed_at)
    .add_columns(Run.stack_id, Revision.author)
    .select_from(Revision)
    .join(
        Run,
        (Run.revision_id == Revision.id)
        & (filtered(Run.device) == bindparam("device"))
        & (filtered(Run.state) == RunState.DONE)
        & WATCHED,
    )
    .where(Revision.target_id == bindparam("target"))
    .order_by(Revision.ordinal.desc(), Run.id.desc())
    .limit(bindparam("at_once"))
)
# The index has the provider before the role, and all that is read.
_SOTA_PROVIDERS = distinct(Measurement.provider, Measurement.case == bindparam("case"), only=_was_sota)


def _reading(within: Callable[[InstrumentedAttribute[int]], ColumnElement[bool]]) -> _OfRuns:
    """The statements of a series in the runs that are `within`; each reads an index alone."""
    measured = (Measurement.case == bindparam("case"), Measurement.provider == bindparam("provider"))
    judged = (VerdictRow.case == bindparam("case"), VerdictRow.provider == bindparam("provider"), AGAINST_PARENT)
    of_head = select(
        Measurement.run_id, type_coerce(Measurement.state, String), Measurement.median, Measurement.gb_s
    ).where(*measured, Measurement.role == Role.HEAD.value, within(Measurement.run_id))
    of_verdict = select(VerdictRow.run_id, VerdictRow.outcome, VerdictRow.ratio, VerdictRow.low, VerdictRow.high)
    of_sota = select(Measurement.run_id, Measurement.median)
    return (
        of_head,
        of_verdict.where(*judged, within(VerdictRow.run_id)),
        of_sota.where(*measured, Measurement.role == Role.SOTA.value, within(Measurement.run_id)),
    )


_BETWEEN_RUNS = _reading(lambda run: run.between(bindparam("first"), bindparam("last")))
_IN_RUNS = _reading(lambda run: run.in_(bindparam("runs", expanding=True)))
_NOT_JUDGED = (None, None, None, None)


def newest_places(session: Session, target: Target, count: int) -> MainlinePlaces:
    """So many of the newest revisions of the mainline, measured or not."""
    return MainlinePlaces(Revision.ordinal > _newest_ordinal(session, target) - count)


def spread_places(
    session: Session, target: Target, count: int, since: float | None = None, until: float | None = None
) -> MainlinePlaces:
    """At most so many revisions of the mainline, evenly spread over all of it or between two times.

    The newest is one of them.  Commits may be out of order in time: a few more before and after the times are included.
    """
    first, last = 0, _newest_ordinal(session, target)
    if since is not None:
        first = _place_by_time(session, target, Revision.committed_at >= since, Revision.committed_at, last + 1)
    if until is not None:
        last = _place_by_time(session, target, Revision.committed_at < until, Revision.committed_at.desc(), -1)
    margin = OUT_OF_ORDER if since is not None or until is not None else 0
    first, last = max(0, first - margin), last + margin
    every = max(1, -(-(last + 1 - first) // count))
    if every == 1:
        return MainlinePlaces(Revision.ordinal.between(first, last))
    return MainlinePlaces(Revision.ordinal.in_(range(last, first - 1, -every)), every)


def _place_by_time(
    session: Session, target: Target, which: ColumnElement[bool], order: ColumnElement[Any] | Any, otherwise: int
) -> int:
    """The place of the first revision of the mainline in this order."""
    on_mainline = (Revision.target_id == target.id, Revision.ordinal.is_not(None))
    ordinal = session.scalar(select(Revision.ordinal).where(*on_mainline, which).order_by(order).limit(1))
    return otherwise if ordinal is None else ordinal


def _newest_ordinal(session: Session, target: Target) -> int:
    """The place of the newest revision on the mainline; -1 while there is none."""
    ordinal = session.scalar(select(func.max(Revision.ordinal)).where(Revision.target_id == target.id))
    return -1 if ordinal is None else ordinal


def versions_of(session: Session, stacks: Iterable[int | None]) -> dict[int, dict[str, str]]:
    """The versions of stacks, by id."""
    ids = {stack for stack in stacks if stack is not None}
    return dict(session.execute(select(Stack.id, Stack.versions).where(Stack.id.in_(ids))).all())


def with_changes_of_stack(points: Iterable[Point], versions: Mapping[int, dict[str, str]]) -> list[Point]:
    """Add what changed to each point whose stack differs from the one before."""
    changed, last = [], None
    for point in points:
        stack = point.stack_id
        if stack is not None and stack != last:
            if last is not None:
                change = moved(versions.get(last, {}), versions.get(stack, {}))
                point = point._replace(stack_changes=change or ("another stack",))
            last = stack
        changed.append(point)
    return changed


def stack_change(session: Session, run: Run) -> tuple[Run, tuple[str, ...]] | None:
    """The mainline run before this one on its device if it had another stack, and what changed since."""
    place = session.scalar(select(Revision.ordinal).where(Revision.id == run.revision_id))
    earlier = [Revision.ordinal < place] if place is not None else [Revision.ordinal.is_not(None)]
    before = session.scalar(
        select(Run)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Revision.target_id == run.target_id, Run.device == run.device, filtered(Run.state) == RunState.DONE)
        .where(WATCHED, filtered(Run.id) < run.id, Run.stack_id.is_not(None), *earlier)
        .order_by(Revision.ordinal.desc(), Run.id.desc())
        .options(selectinload(Run.stack), contains_eager(Run.revision))
        .limit(1)
    )
    if before is None or before.stack is None or run.stack is None or before.stack_id == run.stack_id:
        return None
    return before, moved(before.stack.versions, run.stack.versions)


def measured_series(session: Session, target: Target) -> list[tuple[str, str, str]]:
    """The (device, provider, case) triples that the latest runs of a target measured."""
    latest = [run for device in devices(session, target) for run in latest_of_device(session, target, device)]
    rows = session.execute(
        select(Run.device, Measurement.provider, Measurement.case)
        .join(Run, Run.id == Measurement.run_id)
        .where(Run.id.in_(sorted(latest, reverse=True)[:LATEST_RUNS]), Measurement.role == Role.HEAD.value)
        .distinct()
        .order_by(Run.device, Measurement.provider, Measurement.case)
    )
    return [(device, provider, case) for device, provider, case in rows]


def devices(session: Session, target: Target) -> Sequence[str]:
    """The devices that runs of a target are for."""
    return session.scalars(distinct(Run.device, Run.target_id == target.id)).all()


def devices_without_worker(session: Session, target: Target) -> list[str]:
    """The devices of the target's recipe on which no worker has ever run."""
    _, recipe = recipe_of(session, target)
    served = set(session.scalars(select(Worker.device).distinct()))
    return [device for among in recipe.places if not served & set(among) for device in among]


def typical_run_s(session: Session, target: Target) -> float | None:
    """The median time of the latest runs of a target that are done; None where there is none."""
    ended = (Run.target_id == target.id, Run.state == RunState.DONE, Run.started_at.is_not(None))
    rows = select(Run.finished_at, Run.started_at).where(*ended).order_by(Run.id.desc()).limit(_TYPICAL)
    took = [finished - started for finished, started in session.execute(rows) if finished and started]
    return median(took) if took else None


def latest_of_device(session: Session, target: Target, device: str) -> Sequence[int]:
    """The same of one device."""
    done = select(Run.id).where(Run.target_id == target.id, Run.device == device, Run.state == RunState.DONE, WATCHED)
    return session.scalars(done.order_by(Run.id.desc()).limit(LATEST_RUNS)).all()


def workers(session: Session) -> Sequence[Worker]:
    """All known workers, last seen first."""
    workers = session.scalars(select(Worker).order_by(Worker.seen_at.desc(), Worker.name)).all()
    _leave_out_hidden_runs(session, workers)
    return workers


def workers_by_name(
    session: Session, cursor: str | None = None, limit: int = 50, *, device: str | None = None
) -> ResultPage[Worker]:
    """The known workers by name: unlike the time at which they were seen, that does not change between pages."""
    of_device = () if device is None else (Worker.device == device,)
    page = paged(session, select(Worker).where(*of_device), (Worker.name,), cursor, limit, ascending=True)
    _leave_out_hidden_runs(session, page.items)
    return page


def _leave_out_hidden_runs(session: Session, workers: Sequence[Worker]) -> None:
    """Workers belong to no target, so that the runs which the reader may not know of are left out here."""
    measured = [worker.run_id for worker in workers if worker.run_id is not None]
    visible = set(session.scalars(select(Run.id).where(Run.id.in_(measured)))) if measured else set()
    for worker in workers:
        if worker.run_id not in visible:
            set_committed_value(worker, "run_id", None)  # what is shown, and no change of the row


def queue(session: Session, cursor: str | None = None, limit: int = 200) -> ResultPage[Run]:
    """The unfinished runs in the order in which they are taken; those being measured first, held ones last."""
    place = sql_case((Run.state == RunState.LEASED, 0), (Run.state == RunState.HELD, 2), else_=1)
    statement = select(Run).where(Run.state.in_(OPEN_STATES)).options(*_NAMES)
    return paged(session, statement, (place, Run.device, *QUEUE_ORDER), cursor, limit, ascending=True)


def waiting(session: Session) -> list[Waiting]:
    """The length of the queue by device, and whether a worker of the device is online."""
    now = clock(session)
    rows = session.execute(
        select(Run.device, Run.state, func.count(), func.min(Run.created_at))
        .where(Run.state.in_(OPEN_STATES))
        .group_by(Run.device, Run.state)
    ).all()
    here = {worker.device for worker in workers(session) if is_recent(worker.seen_at, now, WORKER_GONE_S)}
    counts = {(device, state): (n, oldest) for device, state, n, oldest in rows}
    none: tuple[int, float] = (0, now)

    def of(device: str) -> Waiting:
        queued, oldest = counts.get((device, RunState.QUEUED), none)
        held, leased = (counts.get((device, state), none)[0] for state in (RunState.HELD, RunState.LEASED))
        return Waiting(device, queued, held, leased, max(0.0, now - oldest), device in here)

    return [of(device) for device in sorted({device for device, _ in counts})]
