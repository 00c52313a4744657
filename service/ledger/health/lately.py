"""The targets and their last revisions, with what each came to: queries whose size does not depend on the history."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import BindParameter, String, and_, bindparam, func, select, type_coerce
from sqlalchemy.orm import Session, aliased

from service.db.models import WATCHED, Revision, Run, RunTotals, Target
from service.domain.health.strips import REVISIONS, DeviceResult, StripRevision
from service.domain.states import Priority, RunState
from service.domain.verdicts.totals import SotaMean
from service.reports.health.facts import EarlierRun, RecentRun, TargetLately

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S


def targets_lately(session: Session, now: float) -> list[TargetLately]:
    """All targets by name, without their recipes."""
    targets = session.scalars(select(Target).order_by(Target.name)).all()
    revisions = _revisions(session)
    found = [TargetLately(target, *_split(revisions.get(target.id, ()))) for target in targets]
    earlier = earlier_runs(session, found, now)
    return [TargetLately(one.row, one.revisions, one.runs, *earlier.get(one.row.id, ({}, {}))) for one in found]


_Line = tuple[StripRevision, list[RecentRun]]


def _split(lines: Sequence[_Line]) -> tuple[tuple[StripRevision, ...], tuple[RecentRun, ...]]:
    return tuple(revision for revision, _ in lines), tuple(run for _, runs in lines for run in runs)


# Of a run with its numbers, for `recent_run`.
RUN_COLUMNS = (
    Run.id.label("run_id"),
    Run.device,
    type_coerce(Run.state, String).label("state"),
    RunTotals.at,
    RunTotals.stack_id,
    RunTotals.regression,
    RunTotals.improvement,
    RunTotals.steady,
    RunTotals.inconclusive,
    RunTotals.invalid,
    RunTotals.failed,
    RunTotals.new,
    RunTotals.newly_broken,
    RunTotals.slower_than_wrong,
    RunTotals.behind,
    RunTotals.sota,
    RunTotals.sota_cases,
    RunTotals.sota_log,
    RunTotals.sota_digest,
)
_last = aliased(Revision)
# A CTE, so that PostgreSQL asks for the newest place once for each target, not once for each revision.
_newest = (
    select(
        Target.id.label("target_id"),
        select(func.max(_last.ordinal))
        .where(_last.target_id == Target.id)
        .correlate(Target)
        .scalar_subquery()
        .label("at"),
    )
    .cte("newest")
    .prefix_with("MATERIALIZED", dialect="postgresql")
)
# Statements are made once: making one takes longer than the database needs for it.
_REVISIONS = (
    select(
        Revision.target_id,
        Revision.ordinal,
        Revision.sha,
        Revision.committed_at,
        *RUN_COLUMNS,
    )
    .select_from(_newest)
    .join(Revision, and_(Revision.target_id == _newest.c.target_id, Revision.ordinal > _newest.c.at - REVISIONS))
    .outerjoin(Run, and_(Run.revision_id == Revision.id, WATCHED))
    .outerjoin(RunTotals, RunTotals.run_id == Run.id)
    .order_by(Revision.target_id, Revision.ordinal, Run.id)
)


def _revisions(session: Session) -> dict[int, list[_Line]]:
    found = defaultdict[int, list[_Line]](list)
    for (target_id, ordinal, sha, at), rows in groupby(session.execute(_REVISIONS), key=itemgetter(slice(0, 4))):
        # The newest run of a device comes last.
        runs = {row[5]: recent_run(sha, *row[4:]) for row in rows if row[4] is not None}
        results = {device: run.result for device, run in runs.items()}
        found[target_id].append((StripRevision(ordinal, sha, at, results), list(runs.values())))
    return found


def recent_run(
    sha: str, run_id: int, device: str, state: str, at: float | None, stack_id: int | None, *totals: Any
) -> RecentRun:
    """A run from its revision and `RUN_COLUMNS`."""
    regression, improvement, steady, inconclusive, invalid, failed, new, *rest = totals
    newly_broken, slower_than_wrong, behind, sota, *mean = rest
    done = state == RunState.DONE
    if not done or regression is None:
        return RecentRun(run_id, device, sha, state, at, stack_id, DeviceResult(done, failed=state == RunState.FAILED))
    cases = regression + improvement + steady + inconclusive + invalid + failed + new
    result = DeviceResult(done, False, regression + slower_than_wrong, improvement, newly_broken, _mean(*mean))
    return RecentRun(run_id, device, sha, state, at, stack_id, result, cases, invalid + failed, behind, sota)


def _mean(cases: int, log: float, digest: str) -> SotaMean | None:
    return SotaMean(log, cases, digest) if cases else None


def _newest_at(at: BindParameter[float]) -> Any:
    """The run that was the newest of the target and device of `RunTotals` at a time.

    Without backfills, which measure old revisions.
    """
    then = aliased(RunTotals)
    return (
        select(then.run_id)
        .join(Run, Run.id == then.run_id)
        .where(then.target_id == RunTotals.target_id, then.device == RunTotals.device, then.at <= at)
        .where(WATCHED, Run.priority < Priority.BACKFILL)
        .order_by(then.at.desc())
        .limit(1)
        .correlate(RunTotals)
        .scalar_subquery()
    )


_NEWEST_THEN = select(_newest_at(bindparam("a_week_ago")), _newest_at(bindparam("a_day_ago"))).where(
    RunTotals.run_id.in_(bindparam("newest", expanding=True))
)
_EARLIER = select(
    RunTotals.run_id,
    RunTotals.target_id,
    RunTotals.device,
    RunTotals.stack_id,
    RunTotals.behind,
    RunTotals.sota_cases,
    RunTotals.sota_log,
    RunTotals.sota_digest,
).where(RunTotals.run_id.in_(bindparam("ids", expanding=True)))


def earlier_runs(
    session: Session, found: Iterable[TargetLately], now: float
) -> dict[int, tuple[dict[str, EarlierRun], dict[str, EarlierRun]]]:
    """The newest runs a week and a day ago, by target and device."""
    newest = [run.run_id for one in found for run in one.newest.values()]
    times = {"a_week_ago": now - WEEK_S, "a_day_ago": now - DAY_S}
    rows = session.execute(_NEWEST_THEN, {"newest": newest} | times).all()
    weeks, days = ({row[n] for row in rows if row[n] is not None} for n in (0, 1))
    earlier = defaultdict[int, tuple[dict[str, EarlierRun], dict[str, EarlierRun]]](lambda: ({}, {}))
    for row in session.execute(_EARLIER, {"ids": list(weeks | days)}):
        one = EarlierRun(row.stack_id, row.behind, _mean(row.sota_cases, row.sota_log, row.sota_digest))
        for place, ids in enumerate((weeks, days)):
            if row.run_id in ids:
                earlier[row.target_id][place][row.device] = one
    return earlier
