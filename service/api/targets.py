"""Targets, and what was found in them."""

from typing import Annotated

from fastapi import APIRouter, Query

from service.api.common import Cursor, Limit, Place, Reading, ReadingRoute, one_page
from service.api.schemas import (
    GapOut,
    Page,
    PointOut,
    Problem,
    RegressionOut,
    RevisionOut,
    RunOut,
    SeriesOut,
    TargetOut,
    TargetWhole,
)
from service.domain.metrics import metric_of
from service.domain.states import RegressionState
from service.ledger import queries
from service.ledger.intake.targets import all_targets, target_named
from service.ledger.regressions import listing

router = APIRouter(route_class=ReadingRoute, prefix="/targets", tags=["targets"], responses={404: {"model": Problem}})


@router.get("", response_model=Page[TargetOut])
def list_targets(session: Reading) -> Page[TargetOut]:
    """Everything that is watched, by name."""
    return Page(items=[TargetOut.of(target) for target in all_targets(session)])


@router.get("/{name}", response_model=TargetWhole)
def get_target(name: str, session: Reading) -> TargetWhole:
    """One target with its recipe and what is open in it."""
    target = target_named(session, name)
    card = queries.card(session, target, lines=1)
    return TargetWhole(
        **TargetOut.of(target).model_dump(),
        recipe=target.recipe.text if target.recipe else None,
        open_regressions=card.regressions,
        behind_sota=card.behind,
    )


@router.get("/{name}/revisions", response_model=Page[RevisionOut])
def list_revisions(name: str, session: Reading, cursor: Cursor = None, limit: Limit = 50) -> Page[RevisionOut]:
    """Its revisions, the latest commit first."""
    page = queries.revisions(session, target_named(session, name), cursor, limit)
    return Page(items=[RevisionOut.model_validate(row) for row in page.items], next=page.next)


@router.get("/{name}/runs", response_model=Page[RunOut])
def list_runs(
    name: str,
    session: Reading,
    device: str | None = None,
    revision: Annotated[str | None, Query(max_length=100, description="A sha, its beginning, or a version.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RunOut]:
    """Its runs, the newest first."""
    page = queries.runs(session, target_named(session, name), device, cursor, limit, revision=revision)
    return Page(items=[RunOut.of(run) for run in page.items], next=page.next)


@router.get("/{name}/regressions", response_model=Page[RegressionOut])
def list_regressions(
    name: str, session: Reading, state: RegressionState | None = None, cursor: Cursor = None, limit: Limit = 50
) -> Page[RegressionOut]:
    """Its confirmed regressions, the newest first."""
    page = listing.listed(session, target_named(session, name), () if state is None else (state,), cursor, limit)
    return Page(items=[RegressionOut.of(found) for found in page.items], next=page.next)


@router.get("/{name}/gaps", response_model=Page[GapOut])
def list_gaps(name: str, session: Reading, cursor: Place = 0, limit: Limit = 50) -> Page[GapOut]:
    """Its mainline cases that run behind SOTA, the furthest first."""
    gaps = queries.gaps(session, target_named(session, name), cursor + limit + 1)
    found, following = one_page(gaps, cursor, limit)
    return Page(items=[GapOut.of(one) for one in found], next=following)


@router.get("/{name}/series", response_model=SeriesOut)
def get_series(
    name: str,
    session: Reading,
    case: Annotated[str, Query(description="e.g. rmsnorm.fwd.4096x1024.bf16-fp32")],
    provider: str,
    device: str,
) -> SeriesOut:
    """What one case took over the mainline; empty when it was never measured."""
    points = queries.series(session, target_named(session, name), case, provider, device)
    shown = [PointOut.model_validate(point) for point in points]
    metric = metric_of(case)
    return SeriesOut(
        target=name, case=case, provider=provider, device=device, metric=metric.value, unit=metric.unit, points=shown
    )
