"""Queue runs of kernelwatch itself: the steps of bisections, and calibrations."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import Revision, Run, Target
from service.domain.states import Priority, Purpose, RunState
from service.ledger.runs.queue import enqueue
from service.ledger.runs.revisions import ATTEMPTS, recipe_of

_PRIORITY = {Purpose.BISECTION: Priority.BISECTION, Purpose.CALIBRATION: Priority.CALIBRATION}


def internal_run(
    session: Session,
    target: Target,
    revision: Revision,
    purpose: Purpose,
    *,
    key: str,
    device: str,
    suite: str,
    baseline: str,
    cases: Sequence[str] | None = None,
    worker: str | None = None,
    bisection_id: int | None = None,
    priority: Priority | None = None,
) -> Run:
    """Queue `revision` against exactly `baseline`, at only these cases of the suite, at low priority.

    There is one run for each `key`.  Only `worker` takes it, where one is named.
    """
    dedupe = f"{purpose}:{key}"
    run = session.execute(select(Run).where(Run.dedupe == dedupe)).scalar_one_or_none()
    if run is not None:
        return run
    recipe, _ = recipe_of(session, target)
    run = Run(
        dedupe=dedupe,
        target_id=target.id,
        revision_id=revision.id,
        recipe_id=recipe.id,
        baseline=baseline,
        device=device,
        suite=suite,
        purpose=purpose,
        only_cases=None if cases is None else sorted(cases),
        only_worker=worker,
        bisection_id=bisection_id,
        trusted=True,  # it was on the mainline, or a person named the ends of its line
        priority=_PRIORITY[purpose] if priority is None else priority,
        state=RunState.QUEUED,
        attempt=0,
        max_attempts=ATTEMPTS,
        created_at=clock(session),
    )
    session.add(run)
    enqueue(session, run)
    return run
