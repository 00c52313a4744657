"""One target: its verdict, what needs a person, its mainline, its pull requests and its recipe."""

from typing import Annotated
from urllib.parse import quote

from fastapi import Query
from fastapi.responses import RedirectResponse, Response

from dashboards import strips, target_lines
from dashboards.pages.history.facts import parts
from dashboards.pages.history.trends import TrendAddress
from dashboards.pages.regressions.listed import ListAddress
from dashboards.pages.watching.changes import forms_of_target
from dashboards.rendering import commit_address, page, page_router
from dashboards.target_lines import lines as regression_lines
from service.api.access import Reading
from service.db.engine import clock
from service.domain.states import OPEN_REGRESSIONS
from service.ledger.health import fleet, mainline
from service.ledger.ingest.imported import any_imported
from service.ledger.reading import queries
from service.ledger.regressions.grouped import RegressionFilter, grouped
from service.ledger.targets import target_named
from service.reports.health import needs
from service.reports.health.lately import target_line
from service.reports.report import readable

router = page_router()
_LINES = 30  # revisions on one page
_CAUSES = 5  # lines of regressions


@router.get("/targets/{name}", response_model=None)
def target(
    name: str,
    session: Reading,
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    series: Annotated[str, Query(max_length=300)] = "",
) -> Response | str:
    """Show one target.  Comments of earlier versions link to a `series` here; it has a page of its own."""
    found = target_named(session, name)
    if series:
        return RedirectResponse(TrendAddress(found.name, *parts(series)).to(), 301)
    now = clock(session)
    end = mainline.newest_ordinal(session, found) + 1
    newest = mainline.mainline(session, found, end, _LINES + 1)
    shown = newest if before is None else mainline.mainline(session, found, min(before, end), _LINES + 1)
    lately = mainline.lately(session, found, newest[:_LINES], now)
    address = ListAddress(target=found.name)
    causes = grouped(session, RegressionFilter(states=OPEN_REGRESSIONS, target=found), now, limit=_CAUSES)
    behind = queries.open_counts(session, [found.id])[found.id][1]
    failed = fleet.failed_runs(session, [run.run_id for run in lately.failed])
    recipe = readable(found.recipe.text) if found.recipe else None
    line = target_line(lately, causes.found)
    changes = forms_of_target(found)
    return page(
        "target.html",
        now=now,
        target=found,
        sample=found.is_sample,
        imported=any_imported(session, found),
        href=f"/targets/{quote(found.name, safe='')}",
        verdict=target_lines.verdict(lately, causes.found, behind),
        address=address,
        found=causes,
        causes=regression_lines(causes.groups.items, {found.id: found}, commit_address, now),
        needs=needs.of_target(lately, failed, mainline.held_runs(session, found)),
        behind=behind,
        line=line,
        strip=strips.strip(line.marks, line.marks_in_words),
        spark=strips.sparkline(line.points),
        means=lately.means,
        week=target_lines.changes(lately),
        changes=changes,
        may_change=changes[0].allowed,
        devices=target_lines.devices(shown, recipe.devices if recipe else ()),
        newest=newest,
        rows=target_lines.rows(shown, _LINES),
        older=shown[_LINES - 1].ordinal if len(shown) > _LINES else None,
        later=before is not None and before < end,
        pulls=[(one, target_lines.cells(one.runs)) for one in mainline.open_pulls(session, found)],
        requested=[one for one in queries.aside(session, found) if one.run.pull is None],
    )
