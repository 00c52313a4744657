"""The front page: all targets, open regressions, gaps and workers."""

from collections import Counter

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dashboards.pages.regressions import by_incident
from dashboards.pages.rendering import page
from dashboards.pages.workers import machinery
from service.api.access import Reading, ReadingRoute
from service.db.engine import clock
from service.domain.states import (
    OPEN_REGRESSIONS,
    RegressionState,
)
from service.ledger import queries
from service.ledger.intake.targets import all_targets
from service.ledger.regressions import listing

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/")
def overview(session: Reading) -> str:
    """Show all targets with their latest revisions, open regressions, gaps and workers."""
    cards = [queries.card(session, target) for target in all_targets(session)]
    found = listing.listed(session, states=OPEN_REGRESSIONS, limit=20).items
    open_by_state = sum((Counter(card.standing) for card in cards), Counter[RegressionState]())
    return page(
        "overview.html",
        now=clock(session),
        cards=cards,
        open_by_state=open_by_state,
        groups=by_incident(session, found),
        listed=len(found),
        gaps=queries.gaps(session, limit=20).items,
        **machinery(session),
    )
