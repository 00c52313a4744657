"""One incident: all cases that one event made slower, with one triage for all of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dashboards.pages.forms import ActionForm
from dashboards.pages.regressions.triage import Verb, forms_of, of_incident
from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.api.common import Key
from service.db.engine import clock
from service.db.models import RegressionRow
from service.domain.states import OPEN_REGRESSIONS, RegressionState
from service.ledger.bisections import bisections
from service.ledger.regressions import decisions, listing

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)

MAX_CASES = 60  # the largest; the JSON has all
MAX_EVENTS = 30


@router.get("/incidents/{incident_id}")
def incident(incident_id: Key, session: Reading) -> str:
    """Show one incident: its size, cause, cases and history, and the forms that apply to all of its cases."""
    happening = listing.incident(session, incident_id)
    rows = happening.regressions
    subject = of_incident(session, happening)
    offered = forms_of(subject) if rows else {}
    events = decisions.in_common(session, [row.id for row in rows])
    undecided = [row for row in rows if _is_undecided(row)]
    return page(
        "incident.html",
        now=clock(session),
        happening=happening,
        target=subject.target,
        forms_by_verb=offered,
        primary=_primary(undecided, offered),
        first=[*undecided, *rows][0] if rows else None,
        undecided=len(undecided),
        states=Counter(row.state for row in rows),
        worst=rows[0] if rows else None,
        mean=geometric_mean(row.ratio for row in rows) if rows else None,
        culprits=sorted({row.culprit for row in rows if row.culprit}),
        goods=sorted({row.good for row in rows if row.good}),
        assignees=sorted({row.assignee for row in rows if row.assignee}),
        runs=sorted({row.run_id for row in rows}),
        rows=sorted(rows, key=lambda row: row.state not in OPEN_REGRESSIONS)[:MAX_CASES],
        events=events[-MAX_EVENTS:],
        searches=[bisections.one(session, one) for one in bisections.of_incident(session, incident_id)],
    )


def _is_undecided(row: RegressionRow) -> bool:
    return row.state in OPEN_REGRESSIONS and row.state is not RegressionState.ACKNOWLEDGED


def _primary(undecided: Sequence[RegressionRow], offered: Mapping[Verb, ActionForm]) -> Verb | None:
    """The form of the next step."""
    if not undecided:
        return None
    if any(row.assignee is None for row in undecided):
        return Verb.ASSIGN
    unsearched = any(row.state is RegressionState.OPEN for row in undecided)
    return Verb.BISECT if Verb.BISECT in offered and unsearched else Verb.ACKNOWLEDGE
