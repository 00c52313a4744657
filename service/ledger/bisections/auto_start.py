"""Start bisections without being asked, where several revisions may have caused a regression."""

from collections import defaultdict

import structlog
from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import RegressionEvent, RegressionRow, Revision, Run, Series, Target
from service.domain.regressions.lifecycle import KERNELWATCH, Action, Transition
from service.domain.states import FoundBy, RegressionState
from service.errors import BadInput, ServiceError
from service.ledger.backoff import backoff
from service.ledger.bisections import bisections
from service.ledger.locking import lock
from service.ledger.regressions import transitions
from service.ledger.runs.revisions import recipe_of
from service.ledger.server_policy import effective

log = structlog.get_logger()


def start_due() -> int:
    """Start bisections within the budget of the policy.  Returns how many were started.

    Each regression is bisected once automatically; a person may start another with `kernelwatch bisection start`.
    """
    started = 0
    for target_id in _targets():
        key = "auto start", target_id
        if backoff.should_skip(key):
            continue
        try:
            with transaction() as session:
                started += _start(session, target_id)
            backoff.succeeded(key)
        except Exception:  # one target must not hold up the others
            backoff.failed(key)
            log.exception("bisection could not be started", target=target_id)
    return started


def _targets() -> list[int]:
    """The targets with a regression to bisect and budget left.  Only these are locked afterwards."""
    with reading() as session:
        rows = select(Series.target_id, Series.device).join(RegressionRow.series).where(*_WITHOUT_CULPRIT).distinct()
        allowed = {target_id for target_id, device in session.execute(rows).all() if _may(session, target_id, device)}
    return sorted(allowed)


def _may(session: Session, target_id: int, device: str) -> bool:
    target = session.get_one(Target, target_id)
    try:
        _, recipe = recipe_of(session, target)
    except BadInput:  # written for another version of this program
        return False
    return bisections.may_start(session, target, effective(recipe, device))


_searched = (
    exists()
    .where(RegressionEvent.regression_id == RegressionRow.id)
    .where(RegressionEvent.what.in_([Action.SEARCH.value, Action.GIVE_UP.value]))
)
# A leak consists of steps too small for a bisection, and a change point has its own bisection.
_WITHOUT_CULPRIT = (
    RegressionRow.state == RegressionState.OPEN,
    RegressionRow.found_by == FoundBy.PAIR,
    RegressionRow.culprit.is_(None),
    RegressionRow.good.is_not(None),
    ~_searched,
)


def _start(session: Session, target_id: int) -> int:
    """Start one bisection for all cases of an incident that have the same two ends."""
    lock(session, target_id)
    target = session.get_one(Target, target_id)
    rows = session.execute(
        select(RegressionRow, Run.suite, Revision.sha)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(RegressionRow.series)
        .where(Series.target_id == target_id, Revision.ordinal.is_not(None), *_WITHOUT_CULPRIT)
        .order_by(RegressionRow.id)
        .execution_options(populate_existing=True)
    )
    together = defaultdict[tuple[str, str, str, str, int | None], list[RegressionRow]](list)
    for row, suite, sha in rows:
        together[row.device, suite, row.good or "", sha, row.incident_id].append(row)
    _, recipe = recipe_of(session, target)
    started = 0
    for (device, suite, good, bad, incident_id), alike in together.items():
        if not bisections.may_start(session, target, effective(recipe, device)):
            continue
        cases = sorted({row.case for row in alike})
        try:
            bisections.start(
                session,
                target,
                device,
                good,
                bad,
                cases,
                asked_by=KERNELWATCH,
                suite=suite,
                incident_id=incident_id,
            )
            started += 1
        except ServiceError as refusal:
            for row in alike:
                words = f"no bisection was started: {refusal}"
                transitions.change(session, row, Transition(Action.GIVE_UP, words=words), clock(session))
    return started
