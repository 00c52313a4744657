"""One regression: size, evidence, culprit, history and commands."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dashboards.pages.history.trends import figure_of
from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.api.common import Key
from service.db.engine import clock
from service.domain.regressions.lifecycle import Action, possible
from service.domain.states import OPEN_REGRESSIONS
from service.domain.text import short
from service.ledger import queries
from service.ledger.bisections import bisections
from service.ledger.intake.targets import target_named
from service.ledger.regressions import listing
from service.reports.views import RegressionHistory

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/regressions/{regression_id}")
def regression(regression_id: Key, session: Reading) -> str:
    """Show one regression: size, evidence, culprit, history and commands."""
    life = listing.one(session, regression_id)
    row, run = life.regressed.row, life.regressed.run
    found = queries.found_in(session, run.id)
    target = target_named(session, life.regressed.target)
    return page(
        "regression.html",
        now=clock(session),
        life=life,
        evidence=next((one for one in found.rows if (one.provider, one.case) == (row.provider, row.case)), None),
        searches=[bisections.one(session, search.id) for search in life.bisections],
        figure=figure_of(session, target, row.device, row.provider, row.case),
        commands=_commands(life),
    )


def _commands(life: RegressionHistory) -> list[tuple[str, str]]:
    """Return the commands that are possible in this state, with their meaning."""
    row = life.regressed.row
    command_of = f"kernelwatch regression {{}} {row.id}"
    every = (
        ("Accept it", Action.ACKNOWLEDGE, f"{command_of.format('acknowledge')} --reason WHY --until 2026-12-31"),
        ("Dismiss it", Action.DISMISS, f"{command_of.format('dismiss')} --reason WHY"),
        ("Reopen it", Action.REOPEN, command_of.format("reopen")),
        ("Assign it", Action.ASSIGN, f"{command_of.format('assign')} WHO"),
        ("Set a due date", Action.DUE, f"{command_of.format('due')} 2026-12-31"),
        ("Add a note", Action.NOTE, f"{command_of.format('note')} TEXT"),
    )
    able = [(what, command) for what, action, command in every if possible(row.state, action)]
    if row.good and row.culprit is None and row.state in OPEN_REGRESSIONS:
        ends = f"{short(row.good)}..{life.regressed.run.revision.short}"
        search = f"kernelwatch bisection start {life.regressed.target} {ends} --device {row.device} --case {row.case}"
        able.append(("Find the culprit", search))
    return able
