"""What people on the forge are told: one comment for a pull request, one check for a commit and device.

Whoever changes a run's state need not think of it: a run is told of once its state is another than the one told last.
"""

import structlog
from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from service.db.engine import reading, transaction
from service.db.models import OutboxMessage, Run
from service.domain.states import OPEN_STATES, Priority, Purpose, RunState
from service.ledger.locking import lock
from service.ledger.notify import outbox
from service.ledger.queries import pull_reports, report_on, whole_run
from service.ledger.runs import facts_checks, queue
from service.ledger.runs.revisions import UNDONE
from service.reports import markdown, report

log = structlog.get_logger()

_UNTOLD = Run.notified_state != Run.state
# Of the mainline people hear how it ended, of a backfill only what was measured; of pull requests everything; nothing
# of the steps of a bisection, and of calibrations.
_OF_NO_INTEREST = or_(
    Run.purpose != Purpose.WATCH,
    Run.pull.is_(None)
    & or_(
        Run.state.in_(OPEN_STATES),
        (Run.priority == Priority.BACKFILL) & Run.state.in_([RunState.SKIPPED, *UNDONE]),
    ),
)
# A forge notifies people of a comment's first words alone, so it begins with something that they want to know.
_WORTH_A_COMMENT = (RunState.HELD, RunState.DONE, RunState.FAILED)


def notify_due() -> int:
    """Tell of every run whose state has changed since it was told.  Returns how many were told of."""
    with reading() as session:
        found = session.execute(select(Run.id, _OF_NO_INTEREST).where(_UNTOLD).order_by(Run.id)).all()
    untold = [run_id for run_id, of_no_interest in found if not of_no_interest]
    if len(untold) < len(found):
        _pass_over()
    for run_id in untold:
        try:
            with transaction() as session:
                _tell(session, run_id)
        except Exception:  # one that cannot be told of must not keep the others waiting
            log.exception("a run was not told of", run=run_id)
    return len(untold)


def _pass_over() -> None:
    free = select(Run.id).where(_UNTOLD, _OF_NO_INTEREST).with_for_update(skip_locked=True)
    with transaction() as session:
        passed = update(Run).where(Run.id.in_(free)).values(notified_state=Run.state)
        session.execute(passed.execution_options(synchronize_session=False))


def _tell(session: Session, run_id: int) -> None:
    """Put the run's comment and check into the outbox."""
    # First the lock, then the reading: of two devices that end together the second must see what the first found.
    lock(session, session.get_one(Run, run_id).target_id)
    run = whole_run(session, run_id)
    if run.pull is not None:
        _comment(session, run, run.pull)
    if _speaks_for_its_commit(session, run):
        key = f"check:{run.target_id}:{run.revision.sha}:{run.device}"
        outbox.enqueue(session, key, "check", run.target, run, markdown.check(report_on(session, run)))
    run.notified_state = run.state.value


def _comment(session: Session, run: Run, pull: int) -> None:
    """One comment for all devices of the pull request's newest head; an older one is still measured, but past news."""
    push = queue.newest_push(session, run.target_id, pull)
    if push is not None and push.head != run.revision.sha:
        return
    key = f"comment:{run.target_id}:{pull}"
    begun = session.execute(select(OutboxMessage.id).where(OutboxMessage.key == key)).first() is not None
    facts = facts_checks.in_words(session, run)
    if begun or facts_checks.are_found(session, run) or run.state in _WORTH_A_COMMENT:
        payload = {"pull": pull, "body": markdown.comment(*pull_reports(session, run), facts=facts)}
        outbox.enqueue(session, key, "comment", run.target, run, payload)


def _speaks_for_its_commit(session: Session, run: Run) -> bool:
    """Not a suite that somebody asked for, and not what is beside a pull request's own run of the same commit."""
    recipe = report.readable(run.recipe.text)
    if recipe is not None and run.suite != recipe.suite_on(run.device):
        return False
    of_a_pull = (Run.revision_id == run.revision_id, Run.device == run.device, Run.pull.is_not(None))
    theirs = select(Run.id).where(*of_a_pull, Run.state.not_in(UNDONE)).limit(1)
    return run.pull is not None or session.execute(theirs).first() is None
