"""One run: its result, its figures, the facts and the comment."""

import json
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from dashboards import figures
from dashboards.pages import comments, facts, telemetry
from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.api.common import Key, tagged
from service.db.engine import clock
from service.db.models import OutboxMessage, Run
from service.domain.forges import pull_noun
from service.domain.states import (
    OPEN_STATES,
    OutboxState,
    RunState,
)
from service.ledger import queries
from service.ledger.queries import Glance
from service.ledger.runs import build_logs
from service.reports import markdown, notes

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)
_COMMENT_STATES = {
    OutboxState.SENT: "Comment on the {}",
    OutboxState.WAITING: "Comment on the {}, not sent yet",
}


@router.get("/runs/{run_id}")
def run(run_id: Key, session: Reading) -> str:
    """Show one run: its result, the figures, the facts and the comment."""
    whole = queries.whole_run(session, run_id)
    found = queries.report_on(session, whole)
    comment = markdown.comment(*(queries.pull_reports(session, whole) if whole.pull is not None else (found,)))
    messages = _messages(session, whole)
    return page(
        "run.html",
        now=clock(session),
        run=whole,
        report=found,
        attempts=queries.attempts(session, run_id),
        build_log=build_logs.characters(session, run_id),
        ahead=queries.ahead_of(session, whole) if whole.state is RunState.QUEUED else None,
        comment=comment,
        comment_html=comments.as_html(comment),
        messages=messages,
        comment_state=_comment_state(session, whole, messages),
        without_sota=notes.without_sota(found),
        live=whole.state in OPEN_STATES,
        opened=whole.regressions,
        figures=figures.against_parent(found) is not None or figures.against_sota(found) is not None,
        others=_others(session, whole),
        stack_change=queries.stack_change(session, whole),
        limits=markdown.limits(found),
        ceilings=markdown.ceilings(found),
        drawable=figures.most_rows(found),
        most_drawn=figures.MAX_ROWS,
        sides=facts.sides,
        board=telemetry.board(found.telemetry),
        trials=telemetry.trials(found.telemetry),
        other_telemetry=telemetry.rest(found.telemetry),
    )


def _messages(session: Session, whole: Run) -> Sequence[OutboxMessage]:
    """Return the messages of this run, and the comment of its pull request, whichever run wrote it last."""
    of_run = OutboxMessage.run_id == whole.id
    of_pull = OutboxMessage.key == f"comment:{whole.target_id}:{whole.pull}"
    return session.scalars(select(OutboxMessage).where(of_run | of_pull).order_by(OutboxMessage.id)).all()


def _comment_state(session: Session, whole: Run, messages: Sequence[OutboxMessage]) -> str:
    """Return a heading for the comment that says whether the pull request shows it."""
    comment = next((one for one in messages if one.kind == "comment"), None)
    # A newer head of the pull request takes the comment over.
    if (
        comment is None
        or comment.run_id is None
        or session.get_one(Run, comment.run_id).revision_id != whole.revision_id
    ):
        return "Preview of the comment"
    return _COMMENT_STATES.get(comment.state, "Preview of the comment").format(pull_noun(whole.target.forge_kind))


def _others(session: Session, whole: Run) -> list[Glance]:
    """Return the other runs of the revision, on this and other devices."""
    return [
        one for one in queries.glances(session, queries.runs_of(session, whole.revision_id)) if one.run.id != whole.id
    ]


@router.get("/runs/{run_id}/figure.json")
def run_figure(request: Request, run_id: Key, session: Reading) -> Response:
    """Return the figures of a run: against its parent, and against SOTA."""
    found = queries.found_in(session, run_id)
    both = {"parent": figures.against_parent(found), "sota": figures.against_sota(found)}
    return tagged(request, json.dumps(both), "application/json")
