"""What the trend of a series needs besides its revisions: changes, regressions, ceilings, and the limit to SOTA."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import RunTotals, Target
from service.domain.metrics import SeriesKey
from service.ledger.changepoints import load
from service.ledger.changepoints.follow_up import policy_of
from service.ledger.regressions import listing
from service.reports.charts.trends import SeriesChange, changes
from service.reports.report import readable
from service.reports.views import Point, RegressionView


@dataclass(frozen=True)
class SeriesHistory:
    """Revisions of a series, the oldest first, with what changed; `ceilings` are GB/s of a copy by run."""

    points: Sequence[Point]
    changes: Sequence[SeriesChange]
    regressions: Sequence[RegressionView]
    ceilings: Mapping[int, float]
    every: int  # the distance between the revisions: 1 for every one


def with_changes(
    session: Session,
    target: Target,
    key: SeriesKey,
    points: Sequence[Point],
    *,
    every: int = 1,
    ceilings: bool = False,
) -> SeriesHistory:
    """Load what changed in a series; `ceilings` only if they are wanted."""
    steps = load.points_of(session, target, key.printed, key.provider, key.device)
    regressions = listing.of_series(session, key)
    found = changes(points, steps, regressions, key.metric)
    return SeriesHistory(points, found, regressions, copies(session, points) if ceilings else {}, every)


def copies(session: Session, points: Sequence[Point]) -> dict[int, float]:
    """GB/s of a copy in the session of each run."""
    ids = [point.run_id for point in points]
    found = select(RunTotals.run_id, RunTotals.copy_gb_s).where(RunTotals.run_id.in_(ids))
    rows = session.execute(found.where(RunTotals.copy_gb_s.is_not(None)))
    return {run_id: best for run_id, best in rows if best is not None}


def limit_to_sota(session: Session, target: Target, device: str, case: str) -> tuple[str, float]:
    """The provider that is SOTA for a series, and the ratio to it above which the series is behind."""
    recipe = readable(target.recipe.text) if target.recipe else None
    sota = recipe.sota_on(device) if recipe else None
    return sota or "SOTA", 1 + policy_of(session, target, device).at(case).behind_sota
