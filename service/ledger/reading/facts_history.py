"""The facts of one case over the mainline, and configurations that changed: with a commit, the stack, or neither."""

from collections.abc import Collection

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from kernels.cases import Role
from service.db.models import WATCHED, ConfigurationDrift, Measurement, Revision, Run, Series, Target
from service.db.paging import ResultPage, paged_rows
from service.domain.codefacts.history import FactsAt
from service.domain.states import MovedBy, RunState
from service.ledger import queries
from service.reports.views import Drift, Point

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
                point.run_id,
                point.revision,
                point.ordinal,
                point.committed_at,
                point.stack_id,
                head,
                parent_sha,
                by_role.get(Role.PARENT.value) or None,
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
    found: dict[int, _Facts] = {}
    for run_id, baseline, role, facts in rows:
        found.setdefault(run_id, (baseline, {}))[1][role] = facts
    return found


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
