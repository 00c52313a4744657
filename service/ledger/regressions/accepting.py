"""A person accepts that the head of a pull request is slower: its check passes, and its merge opens no alarm.

The acceptance is of exactly one head; a new push voids it.  Merge commit and acceptance may become known in any order,
before or after the mainline is measured, so each of the three looks for the others.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import Pull, RegressionRow, Revision, Run, Series, Target, VerdictRow
from service.domain.regressions.lifecycle import MAX_NAME, Action, Transition, possible
from service.domain.states import OPEN_REGRESSIONS, BaselineKind, Purpose, RegressionState, RunState
from service.domain.verdicts.judge import Outcome
from service.errors import Conflict
from service.ledger.access import audit
from service.ledger.locking import lock
from service.ledger.regressions import incidents, transitions


def accept(session: Session, target: Target, pull: Pull, who: str, why: str) -> int:
    """Accept the slower cases of the recorded head; returns how many there are.

    Raises Conflict where no measurement of the head found one.
    """
    lock(session, target.id)
    runs = _runs_of_head(session, pull)
    slower = (
        select(VerdictRow.provider, VerdictRow.case)
        .where(VerdictRow.run_id.in_([run.id for run in runs]), VerdictRow.outcome == Outcome.REGRESSION)
        .where(VerdictRow.baseline_kind == BaselineKind.PARENT)
        .distinct()
    )
    cases = len(session.execute(slower).all())
    if not cases:
        raise Conflict(f"No case is slower at {(pull.head or 'the head')[:10]}; there is nothing to accept.")
    pull.accepted_head, pull.accepted_by, pull.accepted_why = pull.head, who[:MAX_NAME], why
    details = {"revision": pull.head, "cases": cases, "text": why}
    audit.record(session, "pull.accept", target=target.name, of=f"pull request {pull.number}", details=details)
    for run in runs:
        run.notified_state = ""  # its check passes now
    acknowledge_merged(session, pull)
    return cases


def is_accepted(pull: Pull | None, sha: str) -> bool:
    """Whether somebody accepted exactly this head."""
    return pull is not None and pull.accepted_head == sha


def acknowledge_merged(session: Session, pull: Pull) -> None:
    """Acknowledge the open regressions of the commit that an accepted pull request was merged as."""
    if pull.merged_as is None or pull.accepted_by is None or not is_accepted(pull, pull.head or ""):
        return
    lock(session, pull.target_id)
    rows = session.scalars(
        select(RegressionRow)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(RegressionRow.series)
        .where(Series.target_id == pull.target_id, Revision.sha == pull.merged_as)
        .where(RegressionRow.state.in_(OPEN_REGRESSIONS), RegressionRow.state != RegressionState.ACKNOWLEDGED)
        .order_by(RegressionRow.id)
        .execution_options(populate_existing=True)
    ).all()
    now = clock(session)
    for row in rows:
        if possible(row.state, Action.ACKNOWLEDGE):
            transition = Transition(Action.ACKNOWLEDGE, pull.accepted_by, pull.accepted_why)
            transitions.change(session, row, transition, now)
    session.flush()
    incidents.settle(session, {row.incident_id for row in rows}, now)


def acknowledge_at(session: Session, run: Run) -> None:
    """The same for the pull request that was merged as the revision of a mainline run, if there is one."""
    merged = select(Pull).join(Revision, Revision.sha == Pull.merged_as)
    ours = (Pull.target_id == run.target_id, Revision.id == run.revision_id)
    for pull in session.scalars(merged.where(*ours).order_by(Pull.id)):
        acknowledge_merged(session, pull)


def _runs_of_head(session: Session, pull: Pull) -> list[Run]:
    """The newest run of the head that is done, for each device."""
    rows = (
        select(Run)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == pull.target_id, Run.pull == pull.number, Revision.sha == pull.head)
        .where(Run.purpose == Purpose.WATCH, Run.state == RunState.DONE)
        .order_by(Run.id)
    )
    return list({run.device: run for run in session.scalars(rows)}.values())
