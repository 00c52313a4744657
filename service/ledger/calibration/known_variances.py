"""What earlier sessions of a worker say of the variance of each case's trials."""

import math
from collections import defaultdict

from sqlalchemy import select
from sqlalchemy.orm import Session

from kernels.cases import Metric
from service.db.models import Calibration, Run, Series
from service.domain.policy.policy import Policy
from service.domain.states import Equal, Purpose, RunState
from service.domain.stats.case_variances import PastComparison, learn
from service.domain.verdicts.analysis import NONE_KNOWN, KnownVariances
from service.domain.verdicts.calibration import variance_of

SESSIONS = 20  # the newest of the same target on the same worker
MAX_AGE_S = 90 * 86400.0  # a worker's whole history is long, and an old session says little of the machine today
_OF_SUITES = (Purpose.WATCH, Purpose.CALIBRATION)  # a bisection measures few cases, and would crowd out the others


def known_variances(session: Session, run: Run, policy: Policy) -> KnownVariances:
    """By metric, from the comparisons of equal code in sessions that ended before this run began.

    So the worker that asks for more trials, the judge, and a later replay know the same.  A run that was measured twice
    is left out: its rows are of the first session, maybe of another worker, whose controls were off.
    """
    if run.worker is None or run.started_at is None:
        return NONE_KNOWN
    same = (Run.worker == run.worker, Run.target_id == run.target_id, Run.device == run.device)
    lately = (Run.finished_at < run.started_at, Run.finished_at > run.started_at - MAX_AGE_S)
    ended = (Run.state == RunState.DONE, Run.trusted, Run.repeated.is_(False), Run.purpose.in_(_OF_SUITES))
    earlier = select(Run.id).where(*same, *lately, *ended).order_by(Run.finished_at.desc(), Run.id.desc())
    newest = session.scalars(earlier.limit(SESSIONS)).all()
    columns = (
        Series.metric,
        Series.provider,
        Series.printed,
        Calibration.run_id,
        Calibration.kind,
        Calibration.ratio,
        Calibration.p,
        Calibration.trials,
    )
    rows = select(*columns).join(Calibration.series).where(Calibration.run_id.in_(newest))
    rows = rows.where(Calibration.worker == run.worker, Calibration.at < run.started_at).order_by(Calibration.id)
    past = defaultdict[Metric, list[PastComparison]](list)
    for metric, provider, case, run_id, kind, ratio, p, trials in session.execute(rows):
        variance = variance_of(ratio, p, trials)
        if variance is not None and metric.varies:
            copy = kind is Equal.COPY
            past[metric].append(PastComparison(run_id, (provider, case), math.log(ratio), variance, trials - 1, copy))
    learned = {metric: learn(some, policy.screening[0] - 1) for metric, some in past.items()}
    return {metric: one for metric, one in learned.items() if one is not None}
