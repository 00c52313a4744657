"""How often this service was wrong: equal code that alarmed, and decisions that were withdrawn later.

False alarm rates of equal code are by case, and by worker and metric.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, case, func, select
from sqlalchemy.orm import Session

from kernels.cases import Metric
from service.db.models import (
    SAMPLES,
    WATCHED,
    Bisection,
    Calibration,
    ChangePoint,
    RegressionRow,
    Run,
    Series,
    Target,
    VerdictRow,
)
from service.domain.metrics import SeriesKey
from service.domain.policy import recipes
from service.domain.policy.policy import Policy
from service.domain.states import (
    OPEN_SEARCHES,
    RETRACTED,
    BaselineKind,
    Equal,
    PointState,
    RegressionState,
    RunState,
    SearchState,
)
from service.domain.verdicts.calibration import NONE, Rate
from service.errors import BadInput
from service.ledger import targets
from service.ledger.policies import effective
from service.reports.views import CaseRate, MetricRate

RUNS = 20  # of the mainline, whose suspicions are counted


def rates(
    session: Session,
    target: Target | None = None,
    *,
    device: str | None = None,
    worker: str | None = None,
    since: float = 0.0,
) -> list[CaseRate]:
    """The rate of each case on each worker since a time, highest first; of a target, or of all without the sample."""
    asked = defaultdict[float, dict[tuple[int, str], str]](dict)  # names of targets by nominal rate, id and device
    for one in [target] if target else _watched(session):
        for on, nominal in _nominal(one):
            if device in (None, on):
                asked[nominal][one.id, on] = one.name
    rates = [rate for nominal, names in asked.items() for rate in _rates(session, names, nominal, worker, since)]
    return sorted(rates, key=lambda rate: (-(rate.rate.share or 0.0), -rate.rate.comparisons, rate.case, rate.provider))


def _watched(session: Session) -> list[Target]:
    return [target for target in targets.all_targets(session) if not target.is_sample]


def by_metric(rates: Sequence[CaseRate]) -> list[MetricRate]:
    """Sum rates by worker, device, metric, kind and nominal rate."""
    grouped = defaultdict[tuple[str, str, Metric, float, Equal], list[CaseRate]](list)
    for rate in rates:
        grouped[rate.worker, rate.device, rate.metric, rate.nominal, rate.kind].append(rate)
    return [
        MetricRate(
            worker,
            device,
            metric,
            sum((rate.rate for rate in rates_of_metric), NONE),
            nominal,
            len(rates_of_metric),
            kind,
        )
        for (worker, device, metric, nominal, kind), rates_of_metric in sorted(grouped.items())
    ]


def _nominal(target: Target) -> Iterator[tuple[str, float]]:
    try:
        recipe = recipes.parse(target.recipe.text) if target.recipe else None
    except BadInput:  # written for another version of this program
        recipe = None
    for device in recipe.devices if recipe else ():
        yield device, (effective(recipe, device) if recipe else Policy()).calibrate.nominal


def _rates(
    session: Session, names: Mapping[tuple[int, str], str], nominal: float, worker: str | None, since: float
) -> Iterator[CaseRate]:
    """The rates of all targets and devices with one nominal rate, in one statement."""
    series = (Series.target_id, Series.device, Series.provider, Series.case, Series.metric)
    counted = (
        select(
            *series,
            Calibration.worker,
            Calibration.kind,
            func.count(),
            func.sum(case((Calibration.p < nominal, 1), else_=0)),
            func.sum(case((Calibration.alarmed, 1), else_=0)),
            func.max(Calibration.at),
        )
        .join(Calibration.series)
        .where(Series.target_id.in_({target_id for target_id, _ in names}), Calibration.at >= since)
        .where(*([] if worker is None else [Calibration.worker == worker]))
        .group_by(*series, Calibration.worker, Calibration.kind)
    )
    for target_id, device, provider, case_, metric, who, kind, *counts, last_at in session.execute(counted):
        if (target_id, device) in names:
            key = SeriesKey(target_id, device, provider, case_, metric)
            named = names[target_id, device], who or "unknown", device, provider, key.printed, metric
            yield CaseRate(*named, Rate(*counts), nominal, last_at, kind)


@dataclass(frozen=True)
class EqualCodeRate:
    """How often equal code would have been reported as a change, by device and metric."""

    device: str
    metric: Metric
    rate: Rate


@dataclass(frozen=True)
class ErrorRates:
    """What was decided, and how much of it was wrong.  Rates count in `differed` what was wrong."""

    equal_code: Sequence[EqualCodeRate]
    suspicions: Rate  # cases that looked like a change, which fresh trials did not confirm
    dismissed: Rate  # regressions that people dismissed
    not_repeated: Rate  # bisections that could not repeat a confirmed difference
    retracted: Rate  # change points that were closed, because later values or new sessions contradicted them


@dataclass(frozen=True)
class Example:
    """A comparison of the newest run with its parent revision."""

    run: Run
    verdict: VerdictRow


def error_rates(session: Session, since: float) -> ErrorRates:
    """The rates of what was measured and decided since a time, without the sample, which was measured elsewhere."""
    dismissed = RegressionRow.state == RegressionState.DISMISSED
    ended = and_(Bisection.state.not_in((*OPEN_SEARCHES, SearchState.STOPPED)), Bisection.target_id.not_in(SAMPLES))
    not_repeated = Bisection.state == SearchState.NOT_REPRODUCED
    retracted = and_(ChangePoint.state == PointState.CLOSED, ChangePoint.reason_code.in_(RETRACTED))
    return ErrorRates(
        equal_code=_equal_code(session, since),
        suspicions=_suspicions(session),
        dismissed=_rate(session, dismissed, RegressionRow.id, RegressionRow.opened_at >= since, _own(RegressionRow)),
        not_repeated=_rate(
            session,
            not_repeated,
            Bisection.id,
            Bisection.created_at >= since,
            ended,
            Bisection.target_id.not_in(SAMPLES),
        ),
        retracted=_rate(session, retracted, ChangePoint.id, ChangePoint.found_at >= since, _own(ChangePoint)),
    )


def newest_example(session: Session) -> Example | None:
    """The comparison of the newest mainline run that says most: a confirmed change, else a suspicion, else any."""
    newest = session.scalar(select(Run).where(Run.state == RunState.DONE, WATCHED).order_by(Run.id.desc()).limit(1))
    if newest is None:
        return None
    compared = (VerdictRow.baseline_kind == BaselineKind.PARENT, VerdictRow.low.is_not(None))
    verdict = session.scalar(
        select(VerdictRow)
        .where(VerdictRow.run_id == newest.id, *compared)
        .order_by(VerdictRow.confirmed.desc(), VerdictRow.suspected.desc(), VerdictRow.id)
        .limit(1)
    )
    return Example(newest, verdict) if verdict is not None else None


def _own(of_series: Any) -> Any:
    """The condition that a row is not of the sample."""
    return of_series.series_id.not_in(select(Series.id).where(Series.target_id.in_(SAMPLES)))


def _equal_code(session: Session, since: float) -> list[EqualCodeRate]:
    alarmed = func.sum(case((Calibration.alarmed, 1), else_=0))
    by_series = (
        select(Calibration.series_id, func.count().label("comparisons"), alarmed.label("alarmed"))
        .where(Calibration.at >= since, _own(Calibration))
        .group_by(Calibration.series_id)
        .subquery()
    )
    rows = session.execute(
        select(Series.device, Series.metric, func.sum(by_series.c.comparisons), func.sum(by_series.c.alarmed))
        .join(by_series, by_series.c.series_id == Series.id)
        .group_by(Series.device, Series.metric)
        .order_by(Series.device, Series.metric)
    )
    return [EqualCodeRate(device, metric, _rate_of(n, wrong)) for device, metric, n, wrong in rows]


def _suspicions(session: Session) -> Rate:
    done = (Run.state == RunState.DONE, WATCHED, Run.target_id.not_in(SAMPLES))
    runs = session.scalars(select(Run.id).where(*done).order_by(Run.id.desc()).limit(RUNS)).all()
    suspected = (VerdictRow.run_id.in_(runs), VerdictRow.suspected, VerdictRow.baseline_kind == BaselineKind.PARENT)
    return _rate(session, VerdictRow.confirmed.is_(False), VerdictRow.id, *suspected)


def _rate(session: Session, wrong: Any, counted: Any, *where: Any) -> Rate:
    n, of_them = session.execute(
        select(func.count(counted), func.coalesce(func.sum(case((wrong, 1), else_=0)), 0)).where(*where)
    ).one()
    return _rate_of(n, of_them)


def _rate_of(comparisons: int, wrong: int) -> Rate:
    return Rate(int(comparisons), int(wrong), int(wrong))
