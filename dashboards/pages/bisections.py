"""One bisection, step by step."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.api.common import Key
from service.db.engine import clock
from service.ledger.bisections import bisections

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/bisections/{bisection_id}")
def bisection(bisection_id: Key, session: Reading) -> str:
    """Show one bisection with its steps."""
    return page("bisection.html", now=clock(session), search=bisections.one(session, bisection_id))
