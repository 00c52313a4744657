"""The list of regressions."""

from collections.abc import Sequence
from enum import StrEnum
from urllib.parse import urlencode

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.api.common import Cursor
from service.db.engine import clock
from service.db.models import Incident
from service.domain.states import OPEN_REGRESSIONS, RegressionState
from service.ledger import queries
from service.ledger.bisections import bisections
from service.ledger.regressions import listing
from service.reports.views import RegressionView

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)

MAX_GAPS = 500  # on one page

IncidentGroup = tuple[Incident | None, list[RegressionView]]


class StateFilter(StrEnum):
    """The regressions that the page lists."""

    ALL_OPEN = "all-open"
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    BISECTING = "bisecting"
    BLAMED = "blamed"
    FIXED = "fixed"
    DISMISSED = "dismissed"


@router.get("/regressions")
def regressions(session: Reading, state: StateFilter | None = None, cursor: Cursor = None) -> str:
    """List confirmed regressions of all mainlines, bisections, and cases behind SOTA."""
    states = OPEN_REGRESSIONS if state is StateFilter.ALL_OPEN else (RegressionState(state.value),) if state else ()
    found = listing.listed(session, states=states, cursor=cursor)
    query = {"cursor": found.next} | ({"state": state.value} if state else {})
    return page(
        "regressions.html",
        now=clock(session),
        groups=by_incident(session, found.items),
        state=state.value if state else "",
        states=list(RegressionState),
        next=f"/regressions?{urlencode(query)}" if found.next else None,
        searches=bisections.listed(session, limit=20).items,
        gaps=queries.gaps(session, limit=MAX_GAPS).items,
    )


def by_incident(session: Session, found: Sequence[RegressionView]) -> list[IncidentGroup]:
    """Group regressions by incident, ordered by the newest of each."""
    known = queries.events_of(session, [one.row for one in found])
    groups: dict[int, list[RegressionView]] = {}
    for one in found:
        groups.setdefault(one.row.incident_id or -one.row.id, []).append(one)
    return [(known.get(incident_id), ones) for incident_id, ones in groups.items()]
