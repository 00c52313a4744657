"""Which cases a target measures, by whom and where: by its latest runs, since those of all times are too many rows."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from kernels.cases import Metric, Role
from service.db.models import WATCHED, Measurement, Run, Target
from service.domain.metrics import split_metric
from service.domain.states import RunState
from service.ledger import queries
from service.ledger.reading.filters import CaseFilter
from service.reports.views import MeasuredCase, MeasuredSeries


def series(
    session: Session, target: Target, which: CaseFilter, *, device: str | None = None, since: float | None = None
) -> list[MeasuredSeries]:
    """The series that mainline runs measured: the latest of each device, or all `since` a time."""
    runs = [
        run
        for one in ([device] if device else queries.devices(session, target))
        for run in _latest(session, target, one, since)
    ]
    rows = session.execute(
        select(Run.device, Measurement.provider, Measurement.case, func.max(Run.id))
        .join(Run, Run.id == Measurement.run_id)
        .where(Measurement.run_id.in_(runs), Measurement.role == Role.HEAD.value, *which.on(Measurement))
        .group_by(Run.device, Measurement.provider, Measurement.case)
    )
    return [MeasuredSeries(*row) for row in rows]


def cases(found: Iterable[MeasuredSeries]) -> list[MeasuredCase]:
    """The same by case."""
    by_case = defaultdict[str, list[MeasuredSeries]](list)
    for one in found:
        by_case[split_metric(one.case)[0]].append(one)
    return [_case(case, ones) for case, ones in sorted(by_case.items())]


def _case(case: str, ones: Sequence[MeasuredSeries]) -> MeasuredCase:
    metrics = {one.metric for one in ones}
    return MeasuredCase(
        case,
        tuple(sorted({one.device for one in ones})),
        tuple(sorted({one.provider for one in ones})),
        tuple(metric for metric in Metric if metric in metrics),
    )


def _latest(session: Session, target: Target, device: str, since: float | None) -> Sequence[int]:
    if since is None:
        return queries.latest_of_device(session, target, device)
    done = select(Run.id).where(Run.target_id == target.id, Run.device == device, Run.state == RunState.DONE, WATCHED)
    return session.scalars(done.where(Run.created_at >= since)).all()
