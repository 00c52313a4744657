"""Forms that approve, cancel and retry runs, and that drain and resume workers."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy.orm import Session, selectinload

from dashboards import forms
from dashboards.forms import ActionForm, Field, FieldKind, Sent
from service.api.access import Reading, ReadingRoute
from service.api.common import Key
from service.db.engine import transaction
from service.db.models import Run, Worker
from service.domain.access import Actor, Scope
from service.domain.states import OPEN_STATES, Purpose, RunState
from service.errors import Conflict, NotFound
from service.ledger.intake import deliveries
from service.ledger.runs import queue, revisions

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)

_SHA = "sha"  # the field with the commit that was shown
_MEASURED = (RunState.QUEUED, RunState.LEASED, RunState.DONE)
_UNMEASURED = (RunState.FAILED, RunState.CANCELLED, RunState.SUPERSEDED, RunState.SKIPPED)


class RunVerb(StrEnum):
    """What a person may do to a run, as the last part of an address."""

    APPROVE = "approve"
    CANCEL = "cancel"
    RETRY = "retry"


class WorkerVerb(StrEnum):
    """The same for a worker."""

    DRAIN = "drain"
    RESUME = "resume"


_TITLES: Mapping[RunVerb, str] = {
    RunVerb.APPROVE: "Approve",
    RunVerb.CANCEL: "Cancel run",
    RunVerb.RETRY: "Retry",
}
_ABOUT: Mapping[RunVerb, str] = {
    RunVerb.APPROVE: "It runs the code of exactly this commit, on every device. A later push is held again.",
    RunVerb.CANCEL: "A run that is being measured stops within seconds, and what it measured is discarded.",
    RunVerb.RETRY: "It is queued again with new attempts; a commit that was never approved is held again.",
}


def forms_of_run(run: Run, back: str = "") -> Sequence[ActionForm]:
    """The forms that the state of a run allows, the most useful first."""
    if run.state is RunState.HELD:
        return [form_of_run(run, RunVerb.APPROVE, back), form_of_run(run, RunVerb.CANCEL, back)]
    if run.state in OPEN_STATES:
        return [form_of_run(run, RunVerb.CANCEL, back)]
    if run.state in _UNMEASURED and run.purpose is Purpose.WATCH:
        return [form_of_run(run, RunVerb.RETRY, back)]
    return []


def form_of_run(run: Run, verb: RunVerb, back: str = "") -> ActionForm:
    """One form of a run.  It carries the commit that its page shows."""
    commit = f"commit {run.revision.sha} of {run.target.name}"
    questions = {
        RunVerb.APPROVE: f"Run the code of {commit}?",
        RunVerb.CANCEL: f"Cancel run {run.id} of {commit}?",
        RunVerb.RETRY: "",
    }
    return ActionForm(
        address=f"/runs/{run.id}/{verb}",
        title=_TITLES[verb],
        button=_TITLES[verb],
        back=back or f"/runs/{run.id}",
        scope=Scope.RUN,
        command=f"kernelwatch run {verb} {run.id}",
        target=run.target,
        fields=(Field(_SHA, "Commit", FieldKind.HIDDEN, run.revision.sha, required=True, max_length=64),),
        about=_ABOUT[verb],
        question=questions[verb],
        seen=run.attempt,
    )


def form_of_worker(worker: Worker) -> ActionForm:
    """The form that drains a worker, or resumes one that is drained."""
    return _worker_form(worker, WorkerVerb.DRAIN if worker.paused_at is None else WorkerVerb.RESUME)


def _worker_form(worker: Worker, verb: WorkerVerb) -> ActionForm:
    drains = verb is WorkerVerb.DRAIN
    return ActionForm(
        address=f"/workers/{worker.id}/{verb}",
        title="Drain" if drains else "Resume",
        button="Drain" if drains else "Resume",
        back="/workers",
        scope=Scope.WORKER,
        command=f"kernelwatch worker {verb} {worker.name}",
        about="It ends its run and takes no other until somebody resumes it." if drains else "It takes runs again.",
        question=f"Drain {worker.name}?" if drains else "",
    )


@router.get("/runs/{run_id}/{verb}")
def run_form(run_id: Key, verb: RunVerb, session: Reading) -> str:
    """Show one form of a run."""
    return forms.shown(session, _find_run(run_id, verb, session))


@router.post("/runs/{run_id}/{verb}", max_body_size=forms.MAX_FORM)
async def change_run(request: Request, run_id: Key, verb: RunVerb) -> Response:
    """Do to a run what its form says."""
    return await forms.submitted(request, partial(_find_run, run_id, verb), partial(_change_run, run_id, verb))


@router.get("/workers/{worker_id}/{verb}")
def worker_form(worker_id: Key, verb: WorkerVerb, session: Reading) -> str:
    """Show one form of a worker."""
    return forms.shown(session, _find_worker(worker_id, verb, session))


@router.post("/workers/{worker_id}/{verb}", max_body_size=forms.MAX_FORM)
async def change_worker(request: Request, worker_id: Key, verb: WorkerVerb) -> Response:
    """Drain or resume a worker."""
    find, apply = partial(_find_worker, worker_id, verb), partial(_change_worker, worker_id, verb)
    return await forms.submitted(request, find, apply)


def _find_run(run_id: int, verb: RunVerb, session: Session) -> ActionForm:
    return form_of_run(_run(session, run_id), verb)


def _find_worker(worker_id: int, verb: WorkerVerb, session: Session) -> ActionForm:
    return _worker_form(_worker(session, worker_id), verb)


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


def _change_run(run_id: int, verb: RunVerb, sent: Sent, actor: Actor) -> str:
    """Do it.  What is done already is no error: a double click sends a form twice."""
    with transaction() as session:
        run = _run(session, run_id)
        if sent[_SHA] != run.revision.sha:
            raise Conflict(f"Run {run_id} measures {run.revision.sha}, and not the commit that the form was sent for.")
        match verb:
            case RunVerb.APPROVE:
                approved = 0 if run.state in _MEASURED else len(deliveries.approve(session, run_id))
                runs = f", {approved} runs" if approved > 1 else ""
                return f"Commit {run.revision.short} of {run.target.name} is approved{runs}."
            case RunVerb.CANCEL:
                if not queue.cancel(session, run_id, actor.name) and run.state is not RunState.CANCELLED:
                    raise Conflict(f"Run {run_id} has ended already: it is {run.state}.")
                return f"Run {run_id}: cancelled."
            case RunVerb.RETRY:
                if run.state not in OPEN_STATES:
                    if run.attempt != sent.seen:
                        raise Conflict(f"Run {run_id} was tried again after you opened the page, and is {run.state}.")
                    revisions.retry(session, run_id)
                return f"Run {run_id}: {'held for approval' if run.state is RunState.HELD else 'queued'}."


def _change_worker(worker_id: int, verb: WorkerVerb, _: Sent, __: Actor) -> str:
    with transaction() as session:
        worker = queue.pause(session, _worker(session, worker_id).name, paused=verb is WorkerVerb.DRAIN)
        if verb is WorkerVerb.RESUME:
            return f"Worker {worker.name} takes runs again."
        ends = " after the one that it measures" if worker.run_id is not None else ""
        return f"Worker {worker.name} takes no run{ends}."
