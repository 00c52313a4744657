"""The histories of many series in a few queries for all, and the facts of one case over the mainline."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from kernels.cases import Role
from service.db.models import WATCHED, ConfigurationDrift, Measurement, Revision, Run, Series, Target, VerdictRow
from service.db.paging import ResultPage, paged_rows
from service.domain.codefacts.history import FactsAt
from service.domain.states import BaselineKind, MovedBy, RunState
from service.domain.verdicts.samples import Name
from service.ledger.reading import queries
from service.ledger.reading.queries import versions_of, with_changes_of_stack
from service.reports.views import Drift, Point

_Measured = tuple[str, float | None, float | None]
_Judged = tuple[str | None, float | None, float | None, float | None]
_NOT_JUDGED: _Judged = (None, None, None, None)


@dataclass(frozen=True)
class MainlineRun:
    """A finished run of a revision of the mainline."""

    id: int
    revision: str
    subject: str
    ordinal: int
    committed_at: float
    stack_id: int | None
    finished_at: float | None


def mainline_runs(session: Session, target: Target, device: str, revisions: int) -> Sequence[MainlineRun]:
    """The runs of so many of the newest revisions of the mainline, measured or not, in the order of the mainline."""
    newest = session.scalar(select(func.max(Revision.ordinal)).where(Revision.target_id == target.id))
    columns = (Revision.sha, Revision.subject, Revision.ordinal, Revision.committed_at, Run.stack_id, Run.finished_at)
    rows = session.execute(
        select(Run.id, *columns)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == target.id, Run.device == device, Run.state == RunState.DONE, WATCHED)
        .where(Revision.ordinal.is_not(None), Revision.ordinal > (newest or 0) - revisions)
        .order_by(Revision.ordinal, Run.id)
    )
    return [
        MainlineRun(run, sha, subject, place or 0, committed_at, stack_id, finished_at)
        for run, sha, subject, place, committed_at, stack_id, finished_at in rows
    ]


def measured_names(session: Session, runs: Iterable[MainlineRun]) -> list[Name]:
    """Each provider and case that one of the runs measured of its own revision."""
    of_head = (Measurement.run_id.in_([run.id for run in runs]), Measurement.role == Role.HEAD.value)
    rows = session.execute(select(Measurement.provider, Measurement.case).where(*of_head).distinct())
    return sorted((provider, case) for provider, case in rows)


def histories(session: Session, runs: Sequence[MainlineRun], names: Sequence[Name]) -> Mapping[Name, list[Point]]:
    """Each of these series, oldest first, from the newest run of each revision that measured the case."""
    ids = [run.id for run in runs]
    heads, sota = _heads(session, ids, names), _sota(session, ids, names)
    verdicts = _verdicts(session, ids, names)
    versions = versions_of(session, {run.stack_id for run in runs})
    found = dict[Name, list[Point]]()
    for name in names:
        of_case = heads.get(name, {})
        points = dict[int, Point]()  # by place on the mainline; the run that came later replaces the one before
        for run in runs:
            if (measured := of_case.get(run.id)) is not None:
                outcome, ratio, low, high = verdicts.get((run.id, name), _NOT_JUDGED)
                points[run.ordinal] = Point(
                    run.id,
                    run.revision,
                    run.subject,
                    run.ordinal,
                    run.committed_at,
                    *measured,
                    sota.get((run.id, name[1])),
                    outcome,
                    ratio,
                    low,
                    high,
                    run.stack_id,
                )
        found[name] = with_changes_of_stack(points.values(), versions)
    return found


def _heads(session: Session, ids: Sequence[int], names: Sequence[Name]) -> Mapping[Name, Mapping[int, _Measured]]:
    """State, median and GB/s by series and run."""
    table = Measurement
    columns = (table.provider, table.case, table.run_id, table.state, table.median, table.gb_s)
    measured = defaultdict[Name, dict[int, _Measured]](dict)
    for provider, case, run, state, median, gb_s in session.execute(
        select(*columns).where(table.run_id.in_(ids), table.role == Role.HEAD.value, *_among(table, names))
    ):
        measured[provider, case][run] = (state.value, median, gb_s)
    return measured


def _sota(session: Session, ids: Sequence[int], names: Sequence[Name]) -> Mapping[tuple[int, str], float | None]:
    """The median of SOTA by run and case."""
    cases = {case for _, case in names}
    of_sota = (Measurement.run_id.in_(ids), Measurement.role == Role.SOTA.value, Measurement.case.in_(cases))
    rows = session.execute(select(Measurement.run_id, Measurement.case, Measurement.median).where(*of_sota))
    return {(run, case): median for run, case, median in rows}


def _verdicts(session: Session, ids: Sequence[int], names: Sequence[Name]) -> Mapping[tuple[int, Name], _Judged]:
    """Outcome, ratio to the parent and its interval, by run and series."""
    table = VerdictRow
    columns = (table.run_id, table.provider, table.case, table.outcome, table.ratio, table.low, table.high)
    to_parent = (table.run_id.in_(ids), table.baseline_kind == BaselineKind.PARENT, *_among(table, names))
    rows = session.execute(select(*columns).where(*to_parent))
    return {
        (run, (provider, case)): (outcome, ratio, low, high) for run, provider, case, outcome, ratio, low, high in rows
    }


def _among(table: type[Measurement] | type[VerdictRow], names: Sequence[Name]) -> tuple[ColumnElement[bool], ...]:
    """Conditions that at least these series meet."""
    return table.provider.in_({name[0] for name in names}), table.case.in_({name[1] for name in names})


REVISIONS = 150  # facts of one session are some kB
AMONG = 1000  # of the newest revisions
LATEST_RUNS = 200  # in which drifts are listed


def facts_over(session: Session, target: Target, device: str, provider: str, case: str) -> list[tuple[Point, FactsAt]]:
    """The newest revisions of a case whose facts are known, oldest first."""
    newest = queries.newest_places(session, target, AMONG)
    points = queries.series(session, target, case, provider, device, limit=REVISIONS, places=newest)
    facts = _facts(session, [point.run_id for point in points], provider, case)
    found = []
    for point in points:
        parent_sha, by_role = facts.get(point.run_id, (None, {}))
        head = by_role.get(Role.HEAD.value)
        if head:
            at = FactsAt(
                run_id=point.run_id,
                sha=point.revision,
                ordinal=point.ordinal,
                at=point.committed_at,
                stack_id=point.stack_id,
                head=head,
                parent_sha=parent_sha,
                parent=by_role.get(Role.PARENT.value) or None,
            )
            found.append((point, at))
    return found


_Facts = tuple[str | None, dict[str, dict[str, object]]]  # the parent of the session, and facts by role


def _facts(session: Session, runs: Collection[int], provider: str, case: str) -> dict[int, _Facts]:
    rows = session.execute(
        select(Run.id, Run.baseline, Measurement.role, Measurement.facts)
        .join(Run, Run.id == Measurement.run_id)
        .where(Measurement.run_id.in_(runs), Measurement.case == case, Measurement.provider == provider)
        .where(Measurement.role.in_((Role.HEAD.value, Role.PARENT.value)))
    )
    stacks: dict[int, _Facts] = {}
    for run_id, baseline, role, facts in rows:
        stacks.setdefault(run_id, (baseline, {}))[1][role] = facts
    return stacks


UNEXPLAINED = ConfigurationDrift.moved_by == MovedBy.NOTHING
_DRIFTS = (
    select(ConfigurationDrift.id, Target.name, Series.device, Series.provider, Series.printed)
    .add_columns(ConfigurationDrift.run_id, ConfigurationDrift.earlier_run_id, Revision.sha)
    .add_columns(ConfigurationDrift.at, ConfigurationDrift.before, ConfigurationDrift.now, ConfigurationDrift.moved_by)
    .select_from(ConfigurationDrift)
    .join(Series, Series.id == ConfigurationDrift.series_id)
    .join(Target, Target.id == Series.target_id)
    .join(Run, Run.id == ConfigurationDrift.earlier_run_id)
    .join(Revision, Revision.id == Run.revision_id)
)


def drifts(session: Session, target: Target, limit: int = 20) -> list[Drift]:
    """The newest configurations that changed without a commit, in the latest runs of a target's mainline."""
    of_target = (Run.target_id == target.id, Run.state == RunState.DONE, WATCHED)
    latest = select(Run.id).where(*of_target).order_by(Run.id.desc()).limit(LATEST_RUNS).correlate(None)
    return newest_drifts(session, (ConfigurationDrift.run_id.in_(latest),), limit)


def newest_drifts(session: Session, where: Collection[ColumnElement[bool]], limit: int) -> list[Drift]:
    """The newest configurations that changed without a commit; `where` are conditions on drifts and series."""
    rows = session.execute(_DRIFTS.where(UNEXPLAINED, *where).order_by(ConfigurationDrift.id.desc()).limit(limit))
    return [Drift(*row) for row in rows]


def drift_count(session: Session, where: Collection[ColumnElement[bool]]) -> int:
    """How many configurations changed without a commit."""
    counted = select(func.count(ConfigurationDrift.id)).join(Series, Series.id == ConfigurationDrift.series_id)
    return session.scalars(counted.where(UNEXPLAINED, *where)).one()


def drift_page(
    session: Session, where: Collection[ColumnElement[bool]], cursor: str | None, limit: int
) -> ResultPage[Drift]:
    """Configurations that changed, the newest first; `where` are conditions on drifts and series."""
    page = paged_rows(session, _DRIFTS.where(*where), (ConfigurationDrift.id,), cursor, limit)
    return page.shown_as(lambda row: Drift(*row[:-1]))


def drifts_of(target: Target, device: str | None, by: MovedBy | None) -> list[ColumnElement[bool]]:
    """The changes of the configurations of a target, on one device or by one cause if they are given."""
    where = [Series.target_id == target.id]
    where += [] if device is None else [Series.device == device]
    return where + ([] if by is None else [ConfigurationDrift.moved_by == by])
