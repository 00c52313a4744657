"""The pages: each endpoint queries the ledger and fills a template.  The URL holds the state."""

from collections.abc import Mapping

from fastapi import Response
from fastapi.responses import HTMLResponse

from dashboards.pages import (
    bisections,
    controls,
    docs,
    health,
    problems,
    pulls,
    runs,
    search,
    sign_in,
    studies,
    targets,
    workers,
)
from dashboards.pages.admin import people, policies
from dashboards.pages.history import boards, calibration, compare, facts, imported, trends
from dashboards.pages.news import feeds, weekly
from dashboards.pages.regressions import code, incidents, triage
from dashboards.pages.regressions import listed as regressions
from dashboards.pages.watching import changes, new, recipe
from dashboards.rendering import page

# Pages for people, in the order of docs/reading.md.
PAGES = (
    health,
    search,
    new,  # before the targets, whose names would match its address
    targets,
    recipe,
    changes,
    trends,
    facts,
    imported,
    compare,
    boards,
    pulls,
    runs,
    regressions,
    incidents,
    code,
    triage,
    bisections,
    workers,
    controls,
    calibration,
    weekly,
    studies,
    docs,
    policies,
    people,
    problems,
)
MODULES = (*PAGES, feeds, sign_in)  # each has a `router`


def error_page(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Render an error for people."""
    return HTMLResponse(page("error.html", status=status, detail=detail), status, headers=dict(headers or {}))
