"""How long the runs of each worker took, phase by phase."""

from collections import defaultdict

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from service.db.models import Run, RunTotals
from service.domain.phases import mean_seconds
from service.domain.text import DAY_S

_OF_A_DAY = (
    select(Run.worker, Run.device, RunTotals.seconds)
    .join(Run, Run.id == RunTotals.run_id)
    .where(RunTotals.at > bindparam("since"), RunTotals.at <= bindparam("until"))
    .order_by(RunTotals.at)
)


def mean_seconds_of_a_day(session: Session, until: float) -> dict[tuple[str, str], dict[str, float]]:
    """The mean seconds by phase of each worker and device, of the runs that were measured in the 24 hours before."""
    runs = defaultdict[tuple[str, str], list[dict[str, float]]](list)
    for worker, device, seconds in session.execute(_OF_A_DAY, {"since": until - DAY_S, "until": until}):
        if seconds and worker:
            runs[worker, device].append(seconds)
    return {of: mean_seconds(some) for of, some in runs.items()}
