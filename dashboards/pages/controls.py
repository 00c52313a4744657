"""Forms that approve, cancel and retry runs, and that drain and resume workers."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.orm import Session, selectinload

from dashboards import forms
from dashboards.forms import ActionForm, Field, FieldKind, Sent, Verb
from dashboards.rendering import page_router
from service.db.engine import transaction
from service.db.models import Run, Worker
from service.domain.access import Actor, Scope
from service.domain.states import OPEN_STATES, Purpose, RunState
from service.errors import Conflict, NotFound
from service.ledger.intake import deliveries
from service.ledger.runs import queue, revisions

router = page_router()

_SHA = "sha"  # the field with the commit that was shown
_MEASURED = (RunState.QUEUED, RunState.LEASED, RunState.DONE)
_UNMEASURED = (RunState.FAILED, RunState.CANCELLED, RunState.SUPERSEDED, RunState.SKIPPED)


APPROVE = Verb(
    "approve",
    "Approve",
    "It runs the code of exactly this commit, on every device. A later push is held again.",
    "Run the code of {0}?",
)
CANCEL = Verb(
    "cancel",
    "Cancel run",
    "A run that is being measured stops within seconds, and what it measured is discarded.",
    "Cancel run {1} of {0}?",
)
RETRY = Verb("retry", "Retry", "It is queued again with new attempts; a commit that was never approved is held again.")
DRAIN = Verb("drain", "Drain", "It ends its run and takes no other until somebody resumes it.", "Drain {}?")
RESUME = Verb("resume", "Resume", "It takes runs again.")


def forms_of_run(run: Run, back: str = "") -> Sequence[ActionForm]:
    """The forms that the state of a run allows, the most useful first."""
    verbs: Sequence[Verb] = ()
    if run.state in OPEN_STATES:
        verbs = (APPROVE, CANCEL) if run.state is RunState.HELD else (CANCEL,)
    elif run.state in _UNMEASURED and run.purpose is Purpose.WATCH:
        verbs = (RETRY,)
    return [form_of_run(run, verb, back) for verb in verbs]


def form_of_run(run: Run, verb: Verb, back: str = "") -> ActionForm:
    """One form of a run.  It carries the commit that its page shows."""
    command = f"kernelwatch run {verb.name} {run.id}"
    commit = f"commit {run.revision.sha} of {run.target.name}"
    form = verb.form(f"/runs/{run.id}", Scope.RUN, command, commit, run.id, back=back, target=run.target)
    sha = Field(_SHA, "Commit", FieldKind.HIDDEN, run.revision.sha, required=True, max_length=64)
    return replace(form, fields=(sha,), seen=run.attempt)


def form_of_worker(worker: Worker) -> ActionForm:
    """The form that drains a worker, or resumes one that is drained."""
    return _form_of_worker(worker, DRAIN if worker.paused_at is None else RESUME)


def _form_of_worker(worker: Worker, verb: Verb) -> ActionForm:
    command = f"kernelwatch worker {verb.name} {worker.name}"
    return verb.form(f"/workers/{worker.id}", Scope.WORKER, command, worker.name, back="/workers")


def _find_run(run_id: int, verb: Verb, session: Session) -> ActionForm:
    return form_of_run(_run(session, run_id), verb)


def _find_worker(worker_id: int, verb: Verb, session: Session) -> ActionForm:
    return _form_of_worker(_worker(session, worker_id), verb)


def _run(session: Session, run_id: int) -> Run:
    run = session.get(Run, run_id, options=[selectinload(Run.target), selectinload(Run.revision)])
    if run is None:
        raise NotFound("run", run_id)
    return run


def _worker(session: Session, worker_id: int) -> Worker:
    worker = session.get(Worker, worker_id)
    if worker is None:
        raise NotFound("worker", worker_id)
    return worker


def _change_run(run_id: int, verb: Verb, sent: Sent, actor: Actor) -> str:
    """Do it.  What is done already is no error: a double click sends a form twice."""
    with transaction() as session:
        run = _run(session, run_id)
        if sent[_SHA] != run.revision.sha:
            raise Conflict(f"Run {run_id} measures {run.revision.sha}, and not the commit that the form was sent for.")
        if verb is APPROVE:
            approved = 0 if run.state in _MEASURED else len(deliveries.approve(session, run_id))
            runs = f", {approved} runs" if approved > 1 else ""
            return f"Commit {run.revision.short} of {run.target.name} is approved{runs}."
        if verb is CANCEL:
            if not queue.cancel(session, run_id, actor.name) and run.state is not RunState.CANCELLED:
                raise Conflict(f"Run {run_id} has ended already: it is {run.state}.")
            return f"Run {run_id}: cancelled."
        if run.state not in OPEN_STATES:
            if run.attempt != sent.seen:
                raise Conflict(f"Run {run_id} was tried again after you opened the page, and is {run.state}.")
            revisions.retry(session, run_id)
        return f"Run {run_id}: {'held for approval' if run.state is RunState.HELD else 'queued'}."


def _change_worker(worker_id: int, verb: Verb, _: Sent, __: Actor) -> str:
    with transaction() as session:
        worker = queue.pause(session, _worker(session, worker_id).name, paused=verb is DRAIN)
        if verb is RESUME:
            return f"Worker {worker.name} takes runs again."
        ends = " after the one that it measures" if worker.run_id is not None else ""
        return f"Worker {worker.name} takes no run{ends}."


forms.add_forms(router, "/runs", (APPROVE, CANCEL, RETRY), _find_run, _change_run)
forms.add_forms(router, "/workers", (DRAIN, RESUME), _find_worker, _change_worker)
