"""What happened since yesterday that no list of open things shows: fixes, other stacks, other configurations."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from service.db.models import ConfigurationDrift, RegressionRow, Revision, Run, Series, Stack
from service.domain.attribution.stack_diff import moved
from service.domain.states import RegressionState
from service.ledger.reading.facts_history import UNEXPLAINED
from service.reports.health.facts import DriftedCases, FixedCases, StackChange, TargetLately

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
    for one in lately:
        for device, run in one.newest.items():
            before = one.a_day_ago.get(device)
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
