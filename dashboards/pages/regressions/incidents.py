"""One regression, and one incident: all cases that one event made slower, with their triage."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import geometric_mean

from dashboards.forms import ActionForm
from dashboards.pages.history.trends import figure_of
from dashboards.pages.regressions.triage import ACKNOWLEDGE, ASSIGN, BISECT, forms_of, of_incident, of_regression
from dashboards.rendering import page, page_router
from dashboards.runs.strips import rounds_figure
from service.api.access import Reading
from service.api.common import Key
from service.db.engine import clock
from service.db.models import RegressionRow
from service.domain.states import OPEN_REGRESSIONS, RegressionState
from service.domain.text import short
from service.errors import NotFound
from service.ledger.bisections import bisections
from service.ledger.reading import brief
from service.ledger.regressions import decisions, listing
from service.ledger.targets import target_named
from service.reports.report import Report
from service.reports.views import BisectionView, RegressionHistory

router = page_router()

MAX_CASES = 60  # the largest; the JSON has all
MAX_EVENTS = 30


@router.get("/incidents/{incident_id}")
def incident(incident_id: Key, session: Reading) -> str:
    """Show one incident: its size, cause, worst case, cases and history, and the forms that apply to all cases."""
    happening = listing.incident(session, incident_id)
    rows = happening.regressions
    target = target_named(session, happening.target)
    subject = of_incident(session, happening)
    offered = forms_of(subject) if rows else {}
    events = decisions.in_common(session, {row.id: row.case for row in rows})
    undecided = [row for row in rows if _is_undecided(row)]
    first = next(iter([*undecided, *rows]), None)
    return page(
        "incident.html",
        now=clock(session),
        happening=happening,
        target=target,
        forms_by_verb=offered,
        primary=_primary(undecided, offered),
        first=first,
        figure=figure_of(session, target, first.device, first.provider, first.case) if first else None,
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


def _primary(undecided: Sequence[RegressionRow], offered: Mapping[str, ActionForm]) -> str | None:
    """The verb of the next step."""
    if not undecided:
        return None
    if any(row.assignee is None for row in undecided):
        return ASSIGN.name
    unsearched = any(row.state is RegressionState.OPEN for row in undecided)
    return BISECT.name if BISECT.name in offered and unsearched else ACKNOWLEDGE.name


MAX_SIBLINGS = 8  # of the incident; its page lists all


@router.get("/regressions/{regression_id}")
def regression(regression_id: Key, session: Reading) -> str:
    """Show one regression: what to do, evidence, culprit and history."""
    life = listing.one(session, regression_id)
    row, run = life.regressed.row, life.regressed.run
    evidence: Report | None = None
    with suppress(NotFound):  # only its history shows the regression
        evidence = brief.of_case(session, run.id, row.case, row.provider).report
    samples = brief.samples_of_case(session, run.id, row.case)
    timed = [one for one in samples if one.provider == row.provider or one.role in brief.OTHERS]
    target = target_named(session, life.regressed.target)
    subject = of_regression(session, life)
    searches = [bisections.one(session, search.id) for search in life.bisections]
    offered = forms_of(subject)
    return page(
        "regression.html",
        now=clock(session),
        life=life,
        target=target,
        forms_by_verb=offered,
        primary=_primary([row] if _is_undecided(row) else [], offered),
        next_step=next_step(life, searches),
        report=evidence,
        evidence=evidence.rows[0] if evidence else None,
        rounds=rounds_figure(row.case, timed),
        siblings=life.siblings[:MAX_SIBLINGS],
        events=life.events[-MAX_EVENTS:],
        searches=searches,
        live=any(not search.done for search in searches),
        figure=figure_of(session, target, row.device, row.provider, row.case),
    )


def next_step(life: RegressionHistory, searches: Sequence[BisectionView]) -> str:
    """What has to be done now, or why nothing has."""
    row, fix = life.regressed.row, life.regressed.fixed_by
    match row.state:
        case RegressionState.FIXED:
            return f"Fixed by {fix.revision.short}." if fix else "Its revision is no longer on the mainline."
        case RegressionState.REMOVED:
            since = f" since {fix.revision.short}" if fix else ""
            return f"Not measured any more{since}: the recipe has no such case. It opens again if it is measured again."
        case RegressionState.DISMISSED:
            return "Dismissed. It does not come back automatically."
        case RegressionState.ACKNOWLEDGED:
            return "Accepted. Its revision is a baseline for later ones."
        case RegressionState.BISECTING if running := next((one for one in searches if not one.done), None):
            return f"The search for the culprit goes on: {len(running.steps)} of at most {running.row.max_runs} runs."
    if row.culprit:
        return f"Fix or revert {short(row.culprit)}, or acknowledge the regression with a reason."
    if row.good:
        return "Find the culprit, or dismiss the regression with a reason."
    return "Assign it, and look for the cause."
