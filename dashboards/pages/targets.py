"""One target: its mainline, its pull requests and its recipe."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from dashboards.pages.history.series import parts
from dashboards.pages.history.trends import TrendAddress
from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.db.engine import clock
from service.ledger import queries
from service.ledger.intake.targets import target_named

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/targets/{name}", response_model=None)
def target(
    name: str,
    session: Reading,
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    series: Annotated[str, Query(max_length=300)] = "",
) -> Response | str:
    """Show one target.  Comments of earlier versions link to a `series` here; it has a page of its own."""
    found = target_named(session, name)
    if series:
        return RedirectResponse(TrendAddress(found.name, *parts(series)).to(), 301)
    card = queries.card(session, found, lines=25, before=before)
    oldest = card.lines[-1].revision.ordinal if len(card.lines) == 25 else None
    return page(
        "target.html",
        now=clock(session),
        card=card,
        target=found,
        older=oldest if oldest else None,
        aside=queries.aside(session, found),
        gaps=queries.gaps(session, found).items,
    )
