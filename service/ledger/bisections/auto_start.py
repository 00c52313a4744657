"""Searches that kernelwatch begins by itself: where a regression has several revisions to blame."""

from collections import defaultdict

import structlog
from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import RegressionEvent, RegressionRow, Revision, Run, Target
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
    """Begin to search for whom to blame, as far as the policy's budget goes.  Returns how many searches began.

    A regression is searched for once by itself; a person may search again with `kernelwatch bisect`.
    """
    began = 0
    for target_id in _targets():
        key = "blame", target_id
        if backoff.should_skip(key):
            continue
        try:
            with transaction() as session:
                began += _begin(session, target_id)
            backoff.succeeded(key)
        except Exception:  # one target must not keep the others from being searched
            backoff.failed(key)
            log.exception("no search could begin", target=target_id)
    return began


def _targets() -> list[int]:
    """Those with something to search for, where a search may begin: writers are not held up for the others."""
    with reading() as session:
        rows = select(RegressionRow.target_id, RegressionRow.device).where(*_UNBLAMED).distinct()
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
# A leak is many steps too small to be seen one by one, and a change of the history comes with its search.
_UNBLAMED = (
    RegressionRow.state == RegressionState.OPEN,
    RegressionRow.found_by == FoundBy.PAIR,
    RegressionRow.culprit.is_(None),
    RegressionRow.good.is_not(None),
    ~_searched,
)


def _begin(session: Session, target_id: int) -> int:
    """One search for all cases of an incident that have the same ends."""
    lock(session, target_id)
    target = session.get_one(Target, target_id)
    rows = session.execute(
        select(RegressionRow, Run.suite, Revision.sha)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(RegressionRow.target_id == target_id, Revision.ordinal.is_not(None), *_UNBLAMED)
        .order_by(RegressionRow.id)
        .execution_options(populate_existing=True)
    )
    together = defaultdict[tuple[str, str, str, str, int | None], list[RegressionRow]](list)
    for row, suite, sha in rows:
        together[row.device, suite, row.good or "", sha, row.incident_id].append(row)
    _, recipe = recipe_of(session, target)
    began = 0
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
            began += 1
        except ServiceError as refusal:
            for row in alike:
                words = f"nobody was searched for: {refusal}"
                transitions.change(session, row, Transition(Action.GIVE_UP, words=words), clock(session))
    return began
