"""Targets, their revisions and runs, and the histories of their cases."""

from typing import Annotated

from fastapi import APIRouter, Query

from service.api.common import Cursor, Limit, Place, Reading, ReadingRoute
from service.domain.states import RegressionState
from service.ledger import queries
from service.ledger.intake.targets import all_targets, target_named
from service.ledger.regressions import listing
from service.reports.schema.base import Page, Problem, one_page
from service.reports.schema.regressions import RegressionItem
from service.reports.schema.runs import RunItem
from service.reports.schema.targets import GapItem, RevisionItem, SeriesDocument, TargetDocument, TargetItem

router = APIRouter(route_class=ReadingRoute, prefix="/targets", tags=["targets"], responses={404: {"model": Problem}})


@router.get("", response_model=Page[TargetItem])
def list_targets(session: Reading) -> Page[TargetItem]:
    """List all targets by name."""
    return Page(items=[TargetItem.of(target) for target in all_targets(session)])


@router.get("/{name}", response_model=TargetDocument)
def get_target(name: str, session: Reading) -> TargetDocument:
    """Get one target with its recipe and the numbers of its open regressions and cases behind SOTA."""
    target = target_named(session, name)
    card = queries.card(session, target, lines=1)
    return TargetDocument.whole(target, open_regressions=card.regressions, behind_sota=card.behind)


@router.get("/{name}/revisions", response_model=Page[RevisionItem])
def list_revisions(name: str, session: Reading, cursor: Cursor = None, limit: Limit = 50) -> Page[RevisionItem]:
    """List its revisions, the newest first."""
    page = queries.revisions(session, target_named(session, name), cursor, limit)
    return Page(items=[RevisionItem.model_validate(row) for row in page.items], next=page.next)


@router.get("/{name}/runs", response_model=Page[RunItem])
def list_runs(
    name: str,
    session: Reading,
    device: str | None = None,
    revision: Annotated[str | None, Query(max_length=100, description="A sha or its beginning, or a version.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RunItem]:
    """List its runs, the newest first."""
    page = queries.runs(session, target_named(session, name), device, cursor, limit, revision=revision)
    return Page(items=[RunItem.of(run) for run in page.items], next=page.next)


@router.get("/{name}/regressions", response_model=Page[RegressionItem])
def list_regressions(
    name: str,
    session: Reading,
    state: Annotated[list[RegressionState] | None, Query(description="May be repeated; all by default.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RegressionItem]:
    """List its confirmed regressions, the newest first."""
    page = listing.listed(session, target_named(session, name), state or (), cursor, limit)
    return Page(items=[RegressionItem.of(found) for found in page.items], next=page.next)


@router.get("/{name}/gaps", response_model=Page[GapItem])
def list_gaps(name: str, session: Reading, cursor: Place = 0, limit: Limit = 50) -> Page[GapItem]:
    """List its mainline cases that are slower than SOTA, the largest gap first."""
    gaps = queries.gaps(session, target_named(session, name), cursor + limit + 1)
    found, following = one_page(gaps, cursor, limit)
    return Page(items=[GapItem.of(one) for one in found], next=following)


@router.get("/{name}/series", response_model=SeriesDocument)
def get_series(
    name: str,
    session: Reading,
    case: Annotated[str, Query(description="For example rmsnorm.fwd.4096x1024.bf16-fp32.")],
    provider: str,
    device: str,
) -> SeriesDocument:
    """Get the history of one case on the mainline; it is empty if the case was never measured."""
    points = queries.series(session, target_named(session, name), case, provider, device)
    return SeriesDocument.of(points, target=name, case=case, provider=provider, device=device)
