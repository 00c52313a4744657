"""Start, cancel, retry and approve runs."""

from typing import Any

from fastapi import APIRouter, Response

from kernelwatch.documents.runs import ApprovedRunsDocument, RequestedRunsDocument, RunItem
from service.api.access import Acting, WritingRoute, needs
from service.api.common import Key
from service.api.writes.objects import document, permitted_run, permitted_target
from service.db.engine import reading, transaction
from service.domain.access import Scope
from service.domain.states import RunState
from service.errors import Conflict
from service.ledger.intake import deliveries
from service.ledger.reading import queries
from service.ledger.runs import queue, revisions
from service.reports.schema.requests import RunRequest
from service.reports.schema.runs import requested_runs_document, run_item

router = APIRouter(route_class=WritingRoute, tags=["runs"])
_KNOWN: dict[int | str, dict[str, Any]] = {200: {"description": "All of its runs were there already."}}


@router.post("/runs", response_model=RequestedRunsDocument, status_code=201, responses=_KNOWN)
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


@router.post("/runs/{run_id}/cancel", response_model=RunItem)
@needs(Scope.RUN)
def cancel_run(run_id: Key, actor: Acting) -> RunItem:
    """Cancel a run.  A run that is cancelled stays as it is."""
    with transaction() as session:
        run = permitted_run(session, actor, Scope.RUN, run_id)
        if not queue.cancel(session, run_id, actor.name) and run.state is not RunState.CANCELLED:
            raise Conflict(f"Run {run_id} has ended already: it is {run.state}.")
        return run_item(run)


@router.post("/runs/{run_id}/retry", response_model=RunItem)
@needs(Scope.RUN)
def retry_run(run_id: Key, actor: Acting) -> RunItem:
    """Queue a run again that ended without a result: failed, cancelled, superseded or skipped."""
    with transaction() as session:
        permitted_run(session, actor, Scope.RUN, run_id)
        revisions.retry(session, run_id)
    return _item(run_id)


@router.post("/runs/{run_id}/approve", response_model=ApprovedRunsDocument)
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
