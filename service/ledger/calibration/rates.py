"""How often equal code differed: false alarm rates by case, and by worker and metric."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from kernels.cases import Metric
from service.db.models import Calibration, Series, Target
from service.domain.metrics import SeriesKey
from service.domain.policy import recipes
from service.domain.policy.policy import Policy
from service.domain.states import Equal
from service.domain.verdicts.calibration import NONE, Rate
from service.errors import BadInput
from service.ledger.intake import targets
from service.ledger.renames import on_device
from service.ledger.server_policy import effective
from service.reports.views import CaseRate, MetricRate


def rates(
    session: Session,
    target: Target | None = None,
    *,
    device: str | None = None,
    worker: str | None = None,
    since: float = 0.0,
) -> list[CaseRate]:
    """The rate of each case on each worker since a time; highest first."""
    found = [
        rate
        for one in ([target] if target else targets.all_targets(session))
        for on, nominal in _nominal(one)
        if device in (None, on)
        for rate in _rates(session, one, on, nominal, worker, since)
    ]
    return sorted(found, key=lambda one: (-(one.rate.share or 0.0), -one.rate.comparisons, one.case, one.provider))


def by_metric(found: Sequence[CaseRate]) -> list[MetricRate]:
    """Sum rates by worker, device, metric, kind and nominal rate."""
    grouped = defaultdict[tuple[str, str, Metric, float, Equal], list[CaseRate]](list)
    for one in found:
        grouped[one.worker, one.device, one.metric, one.nominal, one.kind].append(one)
    return [
        MetricRate(worker, device, metric, sum((one.rate for one in ones), NONE), nominal, len(ones), kind)
        for (worker, device, metric, nominal, kind), ones in sorted(grouped.items())
    ]


def _nominal(target: Target) -> Iterator[tuple[str, float]]:
    try:
        recipe = recipes.parse(target.recipe.text) if target.recipe else None
    except BadInput:  # written for another version of this program
        recipe = None
    for device in recipe.devices if recipe else ():
        yield device, (effective(recipe, device) if recipe else Policy()).calibrate.nominal


def _rates(
    session: Session, target: Target, device: str, nominal: float, worker: str | None, since: float
) -> Iterator[CaseRate]:
    of = (Calibration.worker, Series.provider, Series.case, Series.metric, Calibration.kind)
    counted = (
        select(
            *of,
            func.count(),
            func.sum(case((Calibration.p < nominal, 1), else_=0)),
            func.sum(case((Calibration.alarmed, 1), else_=0)),
            func.max(Calibration.at),
        )
        .join(Calibration.series)
        .where(on_device(target.id, device), Calibration.at >= since)
        .where(*([] if worker is None else [Calibration.worker == worker]))
        .group_by(*of)
    )
    for who, provider, case_, metric, kind, comparisons, differed, alarmed, last_at in session.execute(counted):
        key = SeriesKey(target.id, device, provider, case_, metric)
        rate = Rate(comparisons, differed, alarmed)
        named = target.name, who or "unknown", device, provider, key.printed, metric
        yield CaseRate(*named, rate, nominal, last_at, kind)
