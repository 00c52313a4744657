"""One bisection, step by step, and the form that stops it."""

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy.orm import Session

from dashboards.pages import forms
from dashboards.pages.forms import ActionForm, Sent
from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.api.common import Key
from service.db.engine import clock, transaction
from service.db.models import Target
from service.domain.access import Actor, Scope
from service.domain.regressions.lifecycle import MAX_NAME
from service.domain.states import OPEN_SEARCHES
from service.ledger.access import audit
from service.ledger.bisections import bisections
from service.reports.views import BisectionView

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/bisections/{bisection_id}")
def bisection(bisection_id: Key, session: Reading) -> str:
    """Show one bisection with its revisions and its steps."""
    search = bisections.one(session, bisection_id)
    stopping = None if search.done else _stopping(session, search)
    return page("bisection.html", now=clock(session), search=search, stopping=stopping)


@router.get("/bisections/{bisection_id}/stop")
def stop_form(bisection_id: Key, session: Reading) -> str:
    """Show the form that stops a bisection."""
    return forms.shown(session, _find(bisection_id, session))


@router.post("/bisections/{bisection_id}/stop", max_body_size=forms.MAX_FORM)
async def stop(request: Request, bisection_id: Key) -> Response:
    """Stop a bisection, after a question: it cannot go on afterwards."""
    return await forms.submitted(request, partial(_find, bisection_id), partial(_stop, bisection_id))


def _find(bisection_id: int, session: Session) -> ActionForm:
    return _stopping(session, bisections.one(session, bisection_id))


def _stopping(session: Session, search: BisectionView) -> ActionForm:
    number = search.row.id
    return ActionForm(
        address=f"/bisections/{number}/stop",
        title="Stop it",
        button="Stop the bisection",
        back=f"/bisections/{number}",
        scope=Scope.RUN,
        command=f"kernelwatch bisection stop {number}",
        target=session.get_one(Target, search.row.target_id),
        about="Its queued step is cancelled and its steps are kept. A stopped bisection cannot go on.",
        question=f"Stop bisection {number}?",
    )


def _stop(bisection_id: int, _: Sent, actor: Actor) -> str:
    with transaction() as session:
        row = bisections.one(session, bisection_id).row
        mine = audit.is_recorded(session, actor, "bisection.stop", f"bisection {bisection_id}")
        if row.state in OPEN_SEARCHES or not mine:
            bisections.stop(session, bisection_id, actor.name[:MAX_NAME])
    return f"Bisection {bisection_id}: stopped."
