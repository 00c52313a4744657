"""Start, cancel, retry and approve runs; pause, drain and resume workers."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from kernelwatch.documents.runs import ApprovedRunsDocument, RequestedRunsDocument, RunItem, WorkerItem
from service.api.access import Acting, WritingRoute, needs, permit
from service.api.common import Key
from service.api.writes.objects import document, permitted_run, permitted_target
from service.db.engine import clock, reading, transaction
from service.domain.access import Actor, Scope
from service.domain.states import RunState
from service.domain.text import WORKER_GONE_S, is_recent
from service.errors import Conflict
from service.ledger.intake import deliveries
from service.ledger.reading import queries
from service.ledger.runs import queue, revisions
from service.reports.schema.requests import RunRequest
from service.reports.schema.runs import requested_runs_document, run_item, worker_item

router = APIRouter(route_class=WritingRoute)
_KNOWN: dict[int | str, dict[str, Any]] = {200: {"description": "All of its runs were there already."}}
# The name of a worker holds a slash: HOST/DEVICE-NUMBER.
WorkerName = Annotated[str, Path(max_length=120, pattern=r"^[^\x00-\x1f\x7f]+$")]


@router.post("/runs", response_model=RequestedRunsDocument, status_code=201, responses=_KNOWN, tags=["runs"])
@needs(Scope.RUN)
def start_runs(body: RunRequest, actor: Acting) -> Response:
    """Queue one revision to be measured.  A revision that was measured already is not measured again.

    A commit that is on no branch of the repository may be a stranger's: its runs are held until they are approved.
    """
    permitted_target(actor, Scope.RUN, body.target)
    requested = deliveries.request_runs(
        body.target, body.revision, device=body.device, suite=body.suite, again=body.again
    )
    with reading() as session:
        found = requested_runs_document(queries.runs_with_ids(session, requested.ids), requested.created)
    return document(found, 201 if requested.created else 200)


@router.post("/runs/{run_id}/cancel", response_model=RunItem, tags=["runs"])
@needs(Scope.RUN)
def cancel_run(run_id: Key, actor: Acting) -> RunItem:
    """Cancel a run.  A run that is cancelled stays as it is."""
    with transaction() as session:
        run = permitted_run(session, actor, Scope.RUN, run_id)
        if not queue.cancel(session, run_id, actor.name) and run.state is not RunState.CANCELLED:
            raise Conflict(f"Run {run_id} has ended already: it is {run.state}.")
        return run_item(run)


@router.post("/runs/{run_id}/retry", response_model=RunItem, tags=["runs"])
@needs(Scope.RUN)
def retry_run(run_id: Key, actor: Acting) -> RunItem:
    """Queue a run again that ended without a result: failed, cancelled, superseded or skipped."""
    with transaction() as session:
        permitted_run(session, actor, Scope.RUN, run_id)
        revisions.retry(session, run_id)
    return _item(run_id)


@router.post("/runs/{run_id}/approve", response_model=ApprovedRunsDocument, tags=["runs"])
@needs(Scope.RUN)
def approve_run(run_id: Key, actor: Acting) -> ApprovedRunsDocument:
    """Approve the held runs of exactly this commit, on every device.  A later push is held again."""
    with transaction() as session:
        permitted_run(session, actor, Scope.RUN, run_id)
        ids = [one.id for one in deliveries.approve(session, run_id)]
    with reading() as session:
        return ApprovedRunsDocument(items=[run_item(one) for one in queries.runs_with_ids(session, ids)])


def _item(run_id: int) -> RunItem:
    with reading() as session:
        [run] = queries.runs_with_ids(session, [run_id])
        return run_item(run)


@router.post("/workers/{name:path}/pause", response_model=WorkerItem, tags=["workers"])
@needs(Scope.WORKER)
def pause_worker(name: WorkerName, actor: Acting) -> WorkerItem:
    """Let a worker take no further run.  The run that it measures goes on."""
    return _paused(name, actor, paused=True)


@router.post("/workers/{name:path}/drain", response_model=WorkerItem, tags=["workers"])
@needs(Scope.WORKER)
def drain_worker(name: WorkerName, actor: Acting) -> WorkerItem:
    """Let a worker end its run and take no other; it is drained when `run_id` is null."""
    return _paused(name, actor, paused=True)


@router.post("/workers/{name:path}/resume", response_model=WorkerItem, tags=["workers"])
@needs(Scope.WORKER)
def resume_worker(name: WorkerName, actor: Acting) -> WorkerItem:
    """Let a worker take runs again."""
    return _paused(name, actor, paused=False)


def _paused(name: str, actor: Actor, *, paused: bool) -> WorkerItem:
    permit(actor, Scope.WORKER)
    with transaction() as session:
        row = queue.pause(session, name, paused=paused)
        return worker_item(row, online=is_recent(row.seen_at, clock(session), WORKER_GONE_S))
