"""Targets, their revisions and runs, and the histories of their cases."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from kernelwatch.documents.base import Page
from kernelwatch.documents.regressions import RegressionItem
from kernelwatch.documents.runs import RunItem
from kernelwatch.documents.targets import DriftItem, GapItem, RevisionDocument, RevisionItem, TargetDocument, TargetItem
from service.api.access import Reading, ReadingRoute
from service.api.common import (
    CACHED,
    Cursor,
    DeviceName,
    Expanded,
    Limit,
    PullNumber,
    RegressionStates,
    RevisionName,
    RunStates,
    Since,
    WithEvents,
    page_of,
    page_of_regressions,
    page_of_runs,
    run_items,
    seconds,
    tagged_json,
)
from service.domain.states import MovedBy, Purpose
from service.ledger.reading import histories, queries, revisions
from service.ledger.reading.runs import RunFilter
from service.ledger.targets import by_name, target_named
from service.reports.schema.targets import gap_item, revision_document, revision_item, target_document, target_item

router = APIRouter(route_class=ReadingRoute, prefix="/targets", tags=["targets"])


@router.get("", response_model=Page[TargetItem])
def list_targets(
    session: Reading,
    expand: Annotated[list[Literal["counts"]] | None, Query(description="`counts` adds what is open.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[TargetItem]:
    """List targets by name."""
    found = by_name(session, cursor, limit)
    if not expand:
        return page_of(found, target_item)
    counts = queries.open_counts(session, [target.id for target in found.items])
    return page_of(found, lambda target: target_item(target, *counts[target.id]))


@router.get("/{name}", response_model=TargetDocument, responses=CACHED)
def get_target(request: Request, name: str, session: Reading) -> Response:
    """Get one target with its recipe and the numbers of its open regressions and cases behind SOTA."""
    target = target_named(session, name)
    regressions, behind = queries.open_counts(session, [target.id])[target.id]
    return tagged_json(request, target_document(target, open_regressions=regressions, behind_sota=behind))


@router.get("/{name}/revisions", response_model=Page[RevisionItem])
def list_revisions(
    name: str,
    session: Reading,
    expand: Annotated[list[Literal["runs"]] | None, Query(description="`runs` adds its runs, with counts.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RevisionItem]:
    """List its revisions, the newest first."""
    found = queries.revisions(session, target_named(session, name), cursor, limit)
    if not expand:
        return page_of(found, revision_item)
    runs = revisions.runs_of(session, [row.id for row in found.items])
    return page_of(found, lambda row: revision_item(row, run_items(runs.get(row.id, ()))))


@router.get("/{name}/revisions/{revision}", response_model=RevisionDocument, responses=CACHED)
def get_revision(
    request: Request,
    name: str,
    revision: Annotated[str, Path(max_length=100, description="A sha or its beginning, or a version.")],
    session: Reading,
) -> Response:
    """Get one revision with its runs and the checks of its code."""
    found = revisions.one(session, target_named(session, name), revision)
    return tagged_json(request, revision_document(found.row, run_items(found.runs), found.checks))


@router.get("/{name}/runs", response_model=Page[RunItem])
def list_runs(
    name: str,
    session: Reading,
    device: DeviceName = None,
    state: RunStates = None,
    purpose: Purpose | None = None,
    pull: PullNumber = None,
    revision: RevisionName = None,
    since: Since = None,
    expand: Expanded = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RunItem]:
    """List its runs, the newest first."""
    of = target_named(session, name)
    which = RunFilter(of, device, state or (), purpose, pull, revision, seconds(since))
    return page_of_runs(session, which, cursor, limit, expand)


@router.get("/{name}/regressions", response_model=Page[RegressionItem])
def list_regressions(
    name: str,
    session: Reading,
    state: RegressionStates = None,
    expand: WithEvents = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RegressionItem]:
    """List its confirmed regressions, the newest first."""
    return page_of_regressions(session, target_named(session, name), state, cursor, limit, expand)


@router.get("/{name}/gaps", response_model=Page[GapItem])
def list_gaps(name: str, session: Reading, cursor: Cursor = None, limit: Limit = 50) -> Page[GapItem]:
    """List its mainline cases that are slower than SOTA, the largest gap first."""
    return page_of(queries.gaps(session, target_named(session, name), cursor, limit), gap_item)


@router.get("/{name}/drifts", response_model=Page[DriftItem])
def list_drifts(
    name: str,
    session: Reading,
    device: DeviceName = None,
    by: Annotated[MovedBy | None, Query(description="What changed the configuration.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[DriftItem]:
    """List its configurations that changed, the newest first."""
    where = histories.drifts_of(target_named(session, name), device, by)
    found = histories.drift_page(session, where, cursor, limit)
    return page_of(found, DriftItem.model_validate)
