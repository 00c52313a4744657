"""What the health page shows, in fewer than twenty statements whatever the size of the database."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import BindParameter, Float, Integer, String, and_, bindparam, cast, func, or_, select, type_coerce
from sqlalchemy.orm import Session, aliased

from service.db.engine import clock
from service.db.models import (
    SAMPLES,
    WATCHED,
    CalibrationTotals,
    ConfigurationDrift,
    RegressionRow,
    Revision,
    Run,
    RunTotals,
    Series,
    Stack,
    Target,
)
from service.domain.attribution.causes import moved
from service.domain.health.overview import REVISIONS, DeviceResult, StripRevision
from service.domain.states import Priority, RegressionState, RunState
from service.domain.text import DAY_S
from service.domain.verdicts.totals import SotaMean
from service.ledger.health import fleet
from service.ledger.reading.histories import UNEXPLAINED
from service.ledger.regressions import grouped
from service.reports.health.facts import (
    DriftedCases,
    EarlierRun,
    EqualCodeSum,
    FixedCases,
    HealthFacts,
    RecentRun,
    StackChange,
    TargetLately,
)

LISTED = 8  # fixes, and runs whose configurations drifted


_fixed_at = func.max(RegressionRow.fixed_at)
_FIXED = (
    select(
        Series.target_id,
        func.min(Series.device),
        func.max(Series.device),
        func.count(),
        _fixed_at,
        RegressionRow.fixed_by,
        func.min(Revision.sha),
    )
    .select_from(RegressionRow)
    .join(Series, Series.id == RegressionRow.series_id)
    .join(Run, Run.id == RegressionRow.fixed_by)
    .join(Revision, Revision.id == Run.revision_id)
    .where(RegressionRow.fixed_at >= bindparam("since"), RegressionRow.state == RegressionState.FIXED)
    .group_by(Series.target_id, RegressionRow.fixed_by)
    .order_by(_fixed_at.desc())
    .limit(LISTED)
)


def fixed_since(session: Session, since: float) -> list[FixedCases]:
    """Regressions that were shown to be fixed since a time, the last first."""
    return [
        FixedCases(target_id, tuple(sorted({first, last})), count, at or since, run_id or 0, sha)
        for target_id, first, last, count, at, run_id, sha in session.execute(_FIXED, {"since": since})
    ]


_DRIFTED = (
    select(Series.target_id, Series.device, func.count(), func.max(ConfigurationDrift.at))
    .select_from(ConfigurationDrift)
    .join(Series, Series.id == ConfigurationDrift.series_id)
    .where(ConfigurationDrift.at >= bindparam("since"), UNEXPLAINED)
    .group_by(Series.target_id, Series.device, ConfigurationDrift.run_id)
    .order_by(func.max(ConfigurationDrift.at).desc())
    .limit(LISTED)
)


def drifted_since(session: Session, since: float) -> list[DriftedCases]:
    """Configurations that changed without a commit since a time, by run, the last first."""
    return [DriftedCases(*row) for row in session.execute(_DRIFTED, {"since": since})]


def stack_changes(session: Session, lately: Sequence[TargetLately]) -> list[StackChange]:
    """Which stacks changed since yesterday; what is the same for several targets of a device is listed once."""
    pairs = dict[tuple[str, int, int], tuple[float, int]]()
    for of_target in lately:
        for device, run in of_target.newest.items():
            before = of_target.a_day_ago.get(device)
            if before and before.stack_id and run.stack_id and run.stack_id != before.stack_id:
                pairs.setdefault((device, before.stack_id, run.stack_id), (run.at or 0.0, run.run_id))
    versions = _versions(session, {stack for _, *both in pairs for stack in both}) if pairs else {}
    found = dict[tuple[str, tuple[str, ...]], StackChange]()
    for (device, before_id, now_id), (at, run_id) in pairs.items():
        changes = moved(versions.get(before_id, {}), versions.get(now_id, {})) or ("another stack",)
        found.setdefault((device, changes), StackChange(device, changes, at, run_id))
    return list(found.values())


def _versions(session: Session, ids: Collection[int]) -> Mapping[int, Any]:
    return dict(session.execute(select(Stack.id, Stack.versions).where(Stack.id.in_(ids))).all())


NIGHTS = 30


_now: BindParameter[float] = bindparam("now", type_=Float)
_ago = cast((_now - CalibrationTotals.at) / DAY_S, Integer)
_BY_NIGHT = (
    select(
        _ago,
        func.sum(CalibrationTotals.comparisons),
        func.sum(CalibrationTotals.alarmed),
        func.sum(CalibrationTotals.squares),
    )
    .where(CalibrationTotals.at > bindparam("since"), CalibrationTotals.at <= _now)
    .where(CalibrationTotals.target_id.not_in(SAMPLES))
    .group_by(_ago)
)


def by_night(session: Session, now: float) -> Sequence[EqualCodeSum]:
    """The last `NIGHTS` days, oldest first; one without comparisons is empty."""
    rows = session.execute(_BY_NIGHT, {"now": now, "since": now - NIGHTS * DAY_S})
    totals = {days: EqualCodeSum(comparisons, alarmed, squares) for days, comparisons, alarmed, squares in rows}
    return [totals.get(days, EqualCodeSum()) for days in reversed(range(NIGHTS))]


WEEK_S = 7 * DAY_S


def targets_lately(session: Session, now: float) -> list[TargetLately]:
    """All targets by name, without their recipes."""
    targets = session.scalars(select(Target).order_by(Target.name)).all()
    revisions = _revisions(session)
    of_targets = [TargetLately(target, *_split(revisions.get(target.id, ()))) for target in targets]
    earlier = earlier_runs(session, of_targets, now)
    return [
        TargetLately(lately.row, lately.revisions, lately.runs, *earlier.get(lately.row.id, ({}, {})))
        for lately in of_targets
    ]


_Line = tuple[StripRevision, list[RecentRun]]


def _split(lines: Sequence[_Line]) -> tuple[tuple[StripRevision, ...], tuple[RecentRun, ...]]:
    return tuple(revision for revision, _ in lines), tuple(run for _, runs in lines for run in runs)


_broken = RunTotals.invalid + RunTotals.failed
_slower = RunTotals.regression + RunTotals.slower_than_wrong
_measured = RunTotals.regression + RunTotals.improvement + RunTotals.steady + RunTotals.inconclusive + RunTotals.new
# Of a run with its numbers, for `recent_run`.  The database adds: a page has hundreds of runs.
RUN_COLUMNS = (
    Run.id.label("run_id"),
    Run.device,
    type_coerce(Run.state, String).label("state"),
    RunTotals.at,
    RunTotals.stack_id,
    (_measured + _broken).label("cases"),
    _broken.label("broken"),
    RunTotals.behind,
    RunTotals.sota,
    _slower.label("slower"),
    RunTotals.improvement,
    RunTotals.newly_broken,
    RunTotals.sota_cases,
    RunTotals.sota_log,
    RunTotals.sota_digest,
)
_last = aliased(Revision)
# A CTE, so that databases ask for the newest place once for each target, not once for each revision.
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
    .prefix_with("MATERIALIZED")
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
    .join(
        Revision,
        and_(
            Revision.target_id == _newest.c.target_id,
            Revision.ordinal > _newest.c.at - REVISIONS,
            Revision.ordinal <= _newest.c.at,  # with one end alone PostgreSQL expects a third of all revisions
        ),
    )
    .outerjoin(Run, and_(Run.revision_id == Revision.id, WATCHED))
    .outerjoin(RunTotals, RunTotals.run_id == Run.id)
    .order_by(Revision.target_id, Revision.ordinal, Run.id)
)


def _revisions(session: Session) -> dict[int, list[_Line]]:
    lines = defaultdict[int, list[_Line]](list)
    for (target_id, ordinal, sha, at), rows in groupby(session.execute(_REVISIONS), key=itemgetter(0, 1, 2, 3)):
        # The newest run of a device comes last.
        runs = {row[5]: recent_run(sha, *row[4:]) for row in rows if row[4] is not None}
        results = {device: run.result for device, run in runs.items()}
        lines[target_id].append((StripRevision(ordinal, sha, at, results), list(runs.values())))
    return lines


def recent_run(
    sha: str, run_id: int, device: str, state: str, at: float | None, stack_id: int | None, *totals: Any
) -> RecentRun:
    """A run from its revision and `RUN_COLUMNS`."""
    cases, broken, behind, sota, *result = totals
    done = state == RunState.DONE
    if not done or cases is None:
        return RecentRun(run_id, device, sha, state, at, stack_id, DeviceResult(done, failed=state == RunState.FAILED))
    slower, faster, newly_broken, *mean = result
    of_device = DeviceResult(done, False, slower, faster, newly_broken, _mean(*mean))
    return RecentRun(run_id, device, sha, state, at, stack_id, of_device, cases, broken, behind, sota)


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


_then = (
    select(
        _newest_at(bindparam("a_week_ago")).label("a_week_ago"),
        _newest_at(bindparam("a_day_ago")).label("a_day_ago"),
    )
    .where(RunTotals.run_id.in_(bindparam("newest", expanding=True)))
    .cte("earlier")
    .prefix_with("MATERIALIZED")
)
_earlier = aliased(RunTotals)
_EARLIER = select(
    _earlier.target_id,
    _earlier.device,
    (_earlier.run_id == _then.c.a_week_ago).label("of_week"),
    (_earlier.run_id == _then.c.a_day_ago).label("of_day"),
    _earlier.stack_id,
    _earlier.behind,
    _earlier.sota_cases,
    _earlier.sota_log,
    _earlier.sota_digest,
).join(_then, or_(_earlier.run_id == _then.c.a_week_ago, _earlier.run_id == _then.c.a_day_ago))


def earlier_runs(
    session: Session, of_targets: Iterable[TargetLately], now: float
) -> dict[int, tuple[dict[str, EarlierRun], dict[str, EarlierRun]]]:
    """The newest runs a week and a day ago, by target and device."""
    newest = [run.run_id for lately in of_targets for run in lately.newest.values()]
    asked = {"newest": newest, "a_week_ago": now - WEEK_S, "a_day_ago": now - DAY_S}
    earlier = defaultdict[int, tuple[dict[str, EarlierRun], dict[str, EarlierRun]]](lambda: ({}, {}))
    for row in session.execute(_EARLIER, asked):
        weeks, days = earlier[row.target_id]
        one = EarlierRun(row.stack_id, row.behind, _mean(row.sota_cases, row.sota_log, row.sota_digest))
        if row.of_week:
            weeks[row.device] = one
        if row.of_day:
            days[row.device] = one
    return earlier


def health_facts(session: Session) -> HealthFacts:
    """Read all of it."""
    now = clock(session)
    since = now - DAY_S
    targets = targets_lately(session, now)
    watched = [lately for lately in targets if not lately.row.is_sample]
    return HealthFacts(
        now=now,
        since=since,
        targets=targets,
        incidents=grouped.open_incidents(session, now),
        failed=fleet.failed_runs(session, [run.run_id for lately in watched for run in lately.failed]),
        given_up=fleet.given_up(session, since),
        unsent=fleet.unsent_messages(session, now, since),
        oldest_delivery=fleet.oldest_delivery(session, now),
        quarantined=fleet.quarantined(session, since),
        queues=fleet.queues(session, now),
        nights=by_night(session, now),
        fixed=fixed_since(session, since),
        drifted=drifted_since(session, since),
        stacks=stack_changes(session, targets),
    )
