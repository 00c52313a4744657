"""One target: its mainline, one case over time, its pull requests and its recipe."""

import json
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from dashboards import figures
from dashboards.pages.regressions import by_incident
from dashboards.pages.rendering import page
from dashboards.pages.series import choice, parts
from kernels.cases import Metric
from service.api.access import Reading, ReadingRoute
from service.api.common import tagged
from service.db.engine import clock
from service.db.models import Target
from service.domain.metrics import metric_of
from service.domain.states import (
    OPEN_REGRESSIONS,
)
from service.ledger import queries
from service.ledger.changepoints import change_points
from service.ledger.intake.targets import target_named
from service.ledger.regressions import listing
from service.reports.report import readable
from service.reports.views import ChangePointView, Point

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/targets/{name}")
def target(
    name: str,
    session: Reading,
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    series: Annotated[str, Query(max_length=300)] = "",
) -> str:
    """Show one target."""
    found = target_named(session, name)
    choices = [choice(*triple) for triple in queries.measured_series(session, found)]
    chosen = series if series in choices else _first_choice(session, found, choices)
    points = _series(session, found, chosen) if chosen else []
    steps = _steps(session, found, chosen) if chosen else []
    card = queries.card(session, found, lines=25, before=before)
    regressions = listing.listed(session, found, OPEN_REGRESSIONS).items
    oldest = card.lines[-1].revision.ordinal if len(card.lines) == 25 else None
    return page(
        "target.html",
        now=clock(session),
        card=card,
        target=found,
        older=oldest if oldest else None,
        aside=queries.aside(session, found),
        groups=by_incident(session, regressions),
        listed=len(regressions),
        gaps=queries.gaps(session, found).items,
        choices=_by_metric(choices),
        chosen=chosen,
        stack_changes=[point for point in points if point.stack_changes],
        steps=steps,
        figure=f"/targets/{quote(name)}/figure.json?{urlencode({'series': chosen})}" if chosen else None,
    )


@router.get("/targets/{name}/figure.json")
def target_figure(
    request: Request, name: str, session: Reading, series: Annotated[str, Query(max_length=300)]
) -> Response:
    """Return the figure of one case over the mainline."""
    found = target_named(session, name)
    device, provider, case = parts(series)
    recipe = readable(found.recipe.text) if found.recipe else None
    sota = recipe.sota_on(device) if recipe else "SOTA"
    points, steps = _series(session, found, series), _steps(session, found, series)
    figure = figures.series(points, case, provider, sota, steps)
    return tagged(request, json.dumps({"series": figure}), "application/json")


def _by_metric(choices: Sequence[str]) -> list[tuple[Metric, list[str]]]:
    """Group the choices by metric, the kernel time first."""
    groups = [(metric, [one for one in choices if metric_of(one) is metric]) for metric in Metric]
    return [(metric, ones) for metric, ones in groups if ones]


def _first_choice(session: Session, target: Target, choices: list[str]) -> str | None:
    """Choose the case to show by default: one that regressed, else one behind SOTA, else any."""
    rows = [found.row for found in listing.listed(session, target, OPEN_REGRESSIONS, limit=1).items]
    rows += [found.gap for found in queries.gaps(session, target, limit=1).items]  # type: ignore[misc]
    preferred = [choice(row.device, row.provider, row.case) for row in rows]
    return next((one for one in preferred if one in choices), choices[0] if choices else None)


def _series(session: Session, target: Target, choice: str) -> list[Point]:
    device, provider, case = parts(choice)
    return queries.series(session, target, case, provider, device)


def _steps(session: Session, target: Target, choice: str) -> list[ChangePointView]:
    device, provider, case = parts(choice)
    return change_points.points_of(session, target, case, provider, device)
