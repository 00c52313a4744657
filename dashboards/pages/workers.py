"""Workers and the queue."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.db.engine import clock
from service.ledger import queries

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/workers")
def workers(session: Reading) -> str:
    """Show workers and the queue."""
    return page("workers.html", now=clock(session), queue=queries.queue(session).items, **machinery(session))


def machinery(session: Session) -> dict[str, Any]:
    """Return what the table of workers and queues needs."""
    return {"workers": queries.workers(session), "waiting": queries.waiting(session), "gone_s": queries.WORKER_GONE_S}
