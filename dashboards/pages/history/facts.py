"""The facts of one case over the mainline: registers, spills, occupancy and configurations, and what moved them."""

from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy.orm import Session

from dashboards import fact_tracks
from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.db.engine import clock
from service.db.models import Target
from service.domain.codefacts.history import configuration, configuration_spans, moves
from service.domain.states import MovedBy
from service.errors import NotFound
from service.ledger import queries
from service.ledger.intake.targets import target_named
from service.ledger.reading import histories
from service.reports.views import Drift

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)

_Text = Annotated[str, Query(max_length=300)]


def address(target: str, device: str, provider: str, case: str) -> str:
    """The URL of the page of a case."""
    query = urlencode({"device": device, "provider": provider, "case": case})
    return f"/targets/{quote(target)}/facts?{query}"


@router.get("/targets/{name}/facts", response_model=None)
def facts(name: str, session: Reading, device: _Text = "", provider: _Text = "", case: _Text = "") -> Response | str:
    """Show the facts of one case.  Without a case, go to the one whose configuration drifted last, else to any."""
    target = target_named(session, name)
    drifts = histories.drifts(session, target)
    if not case:
        return RedirectResponse(address(target.name, *_chosen(session, target, drifts)), 303)
    found = histories.facts_over(session, target, device, provider, case)
    if not found:
        named = f"{case} of {provider or 'no provider'} on {device or 'no device'}"
        raise NotFound("facts", f"of {named} at {target.name}", "Search for the case on the trend of its target.")
    history = [at for _, at in found]
    moved = moves(history)
    verdict, about = fact_tracks.headline(history, moved)
    return page(
        "facts.html",
        now=clock(session),
        target=target,
        device=device,
        provider=provider,
        case=case,
        verdict=verdict,
        about=about,
        configuration=configuration(history[-1].head),
        history=history,
        spans=configuration_spans(history)[::-1],
        points={point.run_id: point for point, _ in found},
        tracks=fact_tracks.drawn(history),
        events=fact_tracks.event_marks(history, moved),
        moved=moved[::-1],
        drifts=drifts,
        address=address,
        by_words=fact_tracks.BY_WORDS,
        by_marks=fact_tracks.BY_MARKS,
        MovedBy=MovedBy,
    )


def _chosen(session: Session, target: Target, drifts: list[Drift]) -> tuple[str, str, str]:
    if drifts:
        return drifts[0].device, drifts[0].provider, drifts[0].case
    measured = queries.measured_series(session, target)
    if not measured:
        raise NotFound("facts", f"of {target.name}: nothing was measured on its mainline yet")
    return measured[0]


def choice(device: str, provider: str, case: str) -> str:
    """Name a series as the list of a target's page and its URL do."""
    return f"{device} {provider} {case}"


def parts(chosen: str) -> tuple[str, str, str]:
    """Split the name of a series into device, provider and case; missing ones are empty."""
    device, provider, case = (*chosen.split(" "), "", "")[:3]
    return device, provider, case
