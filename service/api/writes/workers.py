"""Pause, drain and resume workers."""

from typing import Annotated

from fastapi import APIRouter, Path

from kernelwatch.documents.runs import WorkerItem
from service.api.access import Acting, WritingRoute, needs, permit
from service.db.engine import clock, transaction
from service.domain.access import Actor, Scope
from service.domain.text import WORKER_GONE_S, is_recent
from service.ledger.runs import queue
from service.reports.schema.runs import worker_item

router = APIRouter(route_class=WritingRoute, tags=["workers"])
# The name of a worker holds a slash: HOST/DEVICE-NUMBER.
WorkerName = Annotated[str, Path(max_length=120, pattern=r"^[^\x00-\x1f\x7f]+$")]


@router.post("/workers/{name:path}/pause", response_model=WorkerItem)
@needs(Scope.WORKER)
def pause_worker(name: WorkerName, actor: Acting) -> WorkerItem:
    """Let a worker take no further run.  The run that it measures goes on."""
    return _paused(name, actor, paused=True)


@router.post("/workers/{name:path}/drain", response_model=WorkerItem)
@needs(Scope.WORKER)
def drain_worker(name: WorkerName, actor: Acting) -> WorkerItem:
    """Let a worker end its run and take no other; it is drained when `run_id` is null."""
    return _paused(name, actor, paused=True)


@router.post("/workers/{name:path}/resume", response_model=WorkerItem)
@needs(Scope.WORKER)
def resume_worker(name: WorkerName, actor: Acting) -> WorkerItem:
    """Let a worker take runs again."""
    return _paused(name, actor, paused=False)


def _paused(name: str, actor: Actor, *, paused: bool) -> WorkerItem:
    permit(actor, Scope.WORKER)
    with transaction() as session:
        row = queue.pause(session, name, paused=paused)
        return worker_item(row, online=is_recent(row.seen_at, clock(session), WORKER_GONE_S))
