"""Runs, workers and the queue: what was measured, and what to measure, cancel, approve and pause."""

from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from fastapi.responses import PlainTextResponse

from kernels.cases import Role
from kernelwatch.documents.base import Page
from kernelwatch.documents.runs import (
    ApprovedRunsDocument,
    KernelTextItem,
    MeasurementItem,
    QueueItem,
    RequestedRunsDocument,
    RunDocument,
    RunItem,
    SamplesDocument,
    VerdictItem,
    WorkerItem,
)
from service.api.access import Acting, Reading, api_router, needs, permit
from service.api.common import (
    CACHED,
    Cases,
    Cursor,
    DeviceName,
    Expanded,
    Key,
    Limit,
    PullNumber,
    Purposes,
    RevisionName,
    RunStates,
    Since,
    Tables,
    TargetName,
    page_of,
    page_of_runs,
    seconds,
    tagged,
    tagged_json,
)
from service.api.objects import document, permitted_run, permitted_target
from service.db.engine import clock, reading, transaction
from service.db.models import Run
from service.domain.access import Actor, Scope
from service.domain.states import BaselineKind, CellState, Outcome, RunState
from service.domain.text import ONE_LINE, printable
from service.errors import Conflict
from service.ledger import phases, stored_texts
from service.ledger.intake import deliveries
from service.ledger.reading import queries, runs
from service.ledger.reading.runs import RunFilter
from service.ledger.runs import queue, revisions
from service.ledger.runs.queue import NO_PLACE
from service.ledger.targets import target_named
from service.reports import markdown
from service.reports.schema.requests import RunRequest
from service.reports.schema.runs import (
    kernel_text_item,
    measurement_items,
    queue_item,
    requested_runs_document,
    run_item,
    samples_document,
    verdict_item,
    worker_item,
)

router = api_router()


class MarkdownResponse(PlainTextResponse):
    media_type = "text/markdown"


@router.get("/runs", response_model=Page[RunItem], tags=["runs"])
def list_all_runs(
    session: Reading,
    target: TargetName = None,
    device: DeviceName = None,
    state: RunStates = None,
    purpose: Purposes = None,
    pull: PullNumber = None,
    revision: RevisionName = None,
    since: Since = None,
    expand: Expanded = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RunItem]:
    """List runs of all targets, the newest first."""
    of = target_named(session, target) if target else None
    which = RunFilter(of, device, state or (), purpose, pull, revision, seconds(since))
    return page_of_runs(session, which, cursor, limit, expand)


@router.get("/runs/{run_id}", response_model=RunDocument, responses=CACHED, tags=["runs"])
def get_run(
    request: Request,
    run_id: Key,
    session: Reading,
    tables: Tables = False,
) -> Response:
    """Get one run with its verdicts and measurements.  Send If-None-Match to poll it."""
    return tagged_json(request, queries.run_document(session, run_id, tables=tables))


@router.get("/runs/{run_id}/measurements", response_model=Page[MeasurementItem], tags=["runs"])
def list_measurements(
    run_id: Key,
    session: Reading,
    cases: Cases,
    role: Annotated[Role | None, Query(description="Only contenders in this role.")] = None,
    state: Annotated[CellState | None, Query(description="Only measurements in this state.")] = None,
    tables: Tables = False,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[MeasurementItem]:
    """List what the contenders of a run took."""
    found = runs.measurements(session, run_id, cases, role=role, state=state, cursor=cursor, limit=limit)
    return Page(items=measurement_items(found.page.items, found.telemetry, tables=tables), next=found.page.next)


@router.get("/runs/{run_id}/verdicts", response_model=Page[VerdictItem], tags=["runs"])
def list_verdicts(
    run_id: Key,
    session: Reading,
    cases: Cases,
    outcome: Annotated[list[Outcome] | None, Query(description="May be repeated; all by default.")] = None,
    baseline_kind: Annotated[BaselineKind | None, Query(description="Only against this kind of baseline.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[VerdictItem]:
    """List what a run decided about its cases."""
    page, report = runs.verdicts(
        session, run_id, cases, outcomes=outcome or (), baseline_kind=baseline_kind, cursor=cursor, limit=limit
    )
    return page_of(page, lambda one: verdict_item(one, report))


@router.get("/runs/{run_id}/samples", response_model=SamplesDocument, responses=CACHED, tags=["runs"])
def get_samples(
    request: Request,
    run_id: Key,
    session: Reading,
    contender: Annotated[str, Query(max_length=120, description="For example `head:norms`.")],
    case: Annotated[str, Query(max_length=120, description="For example rmsnorm.fwd.4096x1024.bf16-fp32.")],
) -> Response:
    """Get the raw samples of one contender at one case."""
    found = runs.samples(session, run_id, contender, case)
    return tagged_json(
        request,
        samples_document(
            found.measurement, screening=found.screening, confirmation=found.confirmation, apart=found.apart
        ),
    )


@router.get("/runs/{run_id}/comment", response_class=MarkdownResponse, responses=CACHED, tags=["runs"])
def get_comment(
    request: Request,
    run_id: Key,
    session: Reading,
    also: Annotated[list[Key] | None, Query(max_length=50, description="Other runs, in the same comment.")] = None,
) -> Response:
    """Get the result of a run as Markdown, as a pull request shows it."""
    reports = [queries.found_in(session, one) for one in dict.fromkeys((run_id, *(also or ())))]
    return tagged(request, markdown.comment(*reports), "text/markdown; charset=utf-8")


@router.get("/runs/{run_id}/log", response_class=PlainTextResponse, responses=CACHED, tags=["runs"])
def get_log(request: Request, run_id: Key, session: Reading) -> Response:
    """Get the whole build log of the run's revision."""
    return tagged(request, printable(stored_texts.log_of(session, run_id)), "text/plain; charset=utf-8")


@router.get("/runs/{run_id}/code", response_model=Page[KernelTextItem], tags=["runs"])
def list_code(
    run_id: Key,
    session: Reading,
    case: Annotated[str | None, Query(max_length=120, description="Only texts of this case.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[KernelTextItem]:
    """List the stored texts of compiled code of a run, and of the facts check of its revision."""
    return page_of(stored_texts.listed(session, run_id, case, cursor, limit), kernel_text_item)


@router.get("/runs/{run_id}/code/{sha256}", response_class=PlainTextResponse, responses=CACHED, tags=["runs"])
def get_code(
    request: Request,
    run_id: Key,
    sha256: Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="As in the list of the run's texts.")],
    session: Reading,
) -> Response:
    """Get one text of compiled code."""
    return tagged(request, stored_texts.text_of_run(session, run_id, sha256), "text/plain; charset=utf-8")


@router.get("/workers", response_model=Page[WorkerItem], tags=["runs", "workers"])
def list_workers(session: Reading, cursor: Cursor = None, limit: Limit = 50) -> Page[WorkerItem]:
    """List all workers ever seen, by name; `online` is true for those seen in the last minute."""
    now = clock(session)
    seconds = phases.mean_seconds_of_a_day(session, now)
    return page_of(queries.workers_by_name(session, cursor, limit), lambda row: worker_item(row, now, seconds))


@router.get("/queue", response_model=Page[QueueItem], tags=["runs", "workers"])
def list_queue(session: Reading, cursor: Cursor = None, limit: Limit = 200) -> Page[QueueItem]:
    """List runs in progress, then waiting runs in the order in which they will be taken."""
    places = queue.places(session)

    def shown(run: Run) -> QueueItem:
        place = places.get(run.id, NO_PLACE)
        return queue_item(run, place.position, place.eta_s)

    return page_of(queries.queue(session, cursor, limit), shown)


_KNOWN: dict[int | str, dict[str, Any]] = {200: {"description": "All of its runs were there already."}}
# The name of a worker holds a slash: HOST/DEVICE-NUMBER.
WorkerName = Annotated[str, Path(max_length=120, pattern=ONE_LINE, description="The name of the worker.")]


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
        now = clock(session)
        return worker_item(row, now, phases.mean_seconds_of_a_day(session, now))
