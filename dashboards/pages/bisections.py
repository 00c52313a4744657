"""The list of bisections, one of them step by step, and the form that stops it."""

from functools import partial
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query, Request
from fastapi.responses import Response
from sqlalchemy.orm import Session

from dashboards import forms
from dashboards.forms import ActionForm, Sent
from dashboards.rendering import page, page_router
from dashboards.strips import search_strip
from service.api.access import Reading
from service.api.common import Cursor, Key
from service.db.engine import clock, transaction
from service.db.models import Bisection, Target
from service.domain.access import Actor, Scope
from service.domain.regressions.lifecycle import MAX_NAME
from service.domain.states import OPEN_SEARCHES, SearchState
from service.ledger import audit
from service.ledger.bisections import bisections
from service.ledger.bisections.steps import counts, progress_of
from service.ledger.targets import target_named
from service.reports.views import BisectionView

router = page_router()
_LISTED = 40  # on one page
STRIP_WIDTH = 110


@router.get("/bisections")
def listed(
    session: Reading,
    state: SearchState | None = None,
    target: Annotated[str, Query(max_length=80)] = "",
    cursor: Cursor = None,
) -> str:
    """List the searches for culprits, the newest first, with how far they are."""
    of = target_named(session, target) if target else None
    where = [Bisection.state == state] if state else []
    found = bisections.listed(session, of, where=where, cursor=cursor, limit=_LISTED)
    by_state = counts(session, of)
    kept = {key: value for key, value in (("state", state and state.value), ("target", target)) if value}
    return page(
        "bisections.html",
        now=clock(session),
        lines=[
            (one, search_strip(len(one.row.line), one.marks, STRIP_WIDTH)) for one in progress_of(session, found.items)
        ],
        state=state,
        target=of,
        states=[(one, by_state.get(one, 0)) for one in SearchState],
        count=sum(by_state.values()),
        running=sum(by_state.get(one, 0) for one in OPEN_SEARCHES),
        open_states=OPEN_SEARCHES,
        next=f"/bisections?{urlencode(kept | {'cursor': found.next})}" if found.next else None,
    )


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
        mine = audit.is_recorded(session, "bisection.stop", f"bisection {bisection_id}", actor=actor)
        if row.state in OPEN_SEARCHES or not mine:
            bisections.stop(session, bisection_id, actor.name[:MAX_NAME])
    return f"Bisection {bisection_id}: stopped."
