"""Do what the buttons of a check ask for: measure again, search for the commit, or accept that it is slower.

A check shows its state itself, so only what it cannot show is answered, with a comment on its pull request.  Nothing
here needs a record of its own: a repetition that waits is not repeated, and an open bisection is found again.
"""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from service.db.engine import reading, transaction
from service.db.models import OutboxMessage, Pull, Run, Target
from service.domain.slash_commands import FORMS, CommandName
from service.domain.states import ForgeKind, RunState
from service.domain.text import escaped, one_line
from service.errors import Conflict, NotFound, ServiceError, SourceFailed
from service.forge import github
from service.forge.events import CheckRequested
from service.forge.forge import ForgeFailed
from service.ledger.access.sign_ins import who_is
from service.ledger.acting import acting, as_actor
from service.ledger.intake import comments
from service.ledger.notify import outbox
from service.ledger.regressions import decisions
from service.ledger.runs import queue, revisions
from service.reports import answers
from service.reports.payloads import CommentPayload

_BUTTONS = (CommandName.RERUN, CommandName.BISECT, CommandName.ACCEPT)
_NO_REASON = "no reason was given (with the button of the check)"


def carry_out(watching: Sequence[Target], event: CheckRequested, delivery_id: int) -> str:
    """Do what a button of a check asks for, or of all checks of a commit; one sentence on what was done.

    Raises NotFound for checks that kernelwatch did not write, SourceFailed where the forge did not answer, and what the
    change raises.
    """
    if event.action not in _BUTTONS:
        return f"Nothing to do: no button of kernelwatch is called {event.action}."
    name, runs = CommandName(event.action), _runs_of(watching, event)
    try:
        targets = [run.target for run in runs]
        person = who_is(github.connect(), ForgeKind.GITHUB, event.repository, event.sender, event.sender_id, targets)
    except ForgeFailed as failure:
        raise SourceFailed(str(failure), passing=failure.passing) from None
    what = f"{name} of {', '.join(f'run {run.id}' for run in runs)} by {event.sender}"
    if why := person.refusal(FORMS[name].scope, targets, name):
        _say(runs[0], event, delivery_id, why)
        return f"{what} was refused."
    with as_actor(person.actor):
        for run in runs:
            _do(name, run, event, delivery_id)
    return f"{what} was carried out."


def _do(name: CommandName, run: Run, event: CheckRequested, delivery_id: int) -> None:
    try:
        if name is CommandName.BISECT:
            _say(run, event, delivery_id, comments.start(run.target, run, acting().actor.name))
        elif name is CommandName.ACCEPT:
            _accept(run)
        else:
            _measure_again(run)
    except SourceFailed:
        raise
    except ServiceError as refusal:
        _say(run, event, delivery_id, escaped(one_line(str(refusal), 600)))
        raise


def _runs_of(watching: Sequence[Target], event: CheckRequested) -> Sequence[Run]:
    """The runs that a check shows, or all checks of a commit."""
    shown = select(OutboxMessage.run_id).where(
        OutboxMessage.kind == "check",
        OutboxMessage.remote_id == f"check:{event.check}" if event.check else OutboxMessage.remote_id.is_not(None),
        OutboxMessage.target_id.in_([target.id for target in watching]),
    )
    whole = (selectinload(Run.revision), selectinload(Run.target))
    rows = select(Run).where(Run.id.in_(shown)).options(*whole).order_by(Run.id)
    if event.sha is not None:
        rows = rows.where(Run.revision.has(sha=event.sha))
    with reading() as session:
        runs = session.scalars(rows).all()
    if not runs:
        what, which = ("check", event.check) if event.check else ("check of", event.sha)
        raise NotFound(what, which, "It is of another target, or older than this database.")
    return runs


def _measure_again(run: Run) -> None:
    with transaction() as session:
        target = session.get_one(Target, run.target_id)
        if run.pull is not None:
            _check_head(session, run)
        again = session.get_one(Run, run.id).state not in (RunState.QUEUED, RunState.LEASED, RunState.HELD)
        if again:
            revisions.run_of_revision(
                session, target, run.revision.sha, run.pull, run.device, suite=run.suite, again=True
            )


def _accept(run: Run) -> None:
    with transaction() as session:
        pull = _check_head(session, run)
        decisions.accept(session, session.get_one(Target, run.target_id), pull, acting().actor.name, _NO_REASON)


def _check_head(session: Session, run: Run) -> Pull:
    """The pull request of a run, which is open and has the run's revision as its head."""
    pull = queue.pull_of(session, run.target_id, run.pull or 0)
    if pull is None or pull.closed_at is not None:
        raise Conflict(f"Pull request {run.pull} is closed; reopen it first.")
    if pull.head != run.revision.sha:
        raise Conflict(f"Pull request {run.pull} has a newer head, {pull.head}; use the check of that one.")
    return pull


def _say(run: Run, event: CheckRequested, delivery_id: int, line: str) -> None:
    """Comment on the pull request of a check; a check of the mainline has no place for words of ours."""
    if run.pull is None:
        return
    key = f"check of run {run.id}, delivery {delivery_id}"
    body = answers.comment(event.action, event.sender, key, [line])
    with transaction() as session:
        reply = CommentPayload(pull=run.pull, body=body)
        target = session.get_one(Target, run.target_id)
        outbox.enqueue(session, f"answer:{key}", "answer", target, None, reply.model_dump())
