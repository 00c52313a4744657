"""The audit log: who changed what, with a link to each thing."""

import re
from collections.abc import Collection
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dashboards.pages.rendering import page
from service.api.access import Acting, Reading, ReadingRoute, needs, permit
from service.api.common import Cursor
from service.db.engine import clock
from service.db.models import AuditEntry
from service.domain.access import Scope
from service.ledger.access import audit
from service.ledger.intake.targets import all_targets

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)
_LINES = 50
_OBJECT = re.compile(r"(?P<noun>[a-z ]+) (?P<name>\S.*)")
# The page of a thing, by its noun; the thing is named by the rest of an entry's object.
_PAGES = {
    "run": "/runs/{}",
    "regression": "/regressions/{}",
    "incident": "/incidents/{}",
    "bisection": "/bisections/{}",
    "key": "/keys?ended=true#key-{}",
    "person": "/people",
    "worker": "/workers",
}


@router.get("/audit")
@needs(Scope.ADMIN)
def log(
    session: Reading,
    actor: Acting,
    target: Annotated[str, Query(max_length=80)] = "",
    by: Annotated[str, Query(max_length=120)] = "",
    action: Annotated[str, Query(max_length=40)] = "",
    cursor: Cursor = None,
) -> str:
    """Show what was changed, by whom and from where, the newest first."""
    permit(actor, Scope.ADMIN)
    filters = {"target": target.strip(), "by": by.strip(), "action": action.strip()}
    chosen = {name: value for name, value in filters.items() if value}
    found = audit.listed(
        session,
        target=chosen.get("target"),
        actor=chosen.get("by"),
        action=chosen.get("action"),
        cursor=cursor,
        limit=_LINES,
    )
    targets = [one.name for one in all_targets(session)]
    return page(
        "audit.html",
        now=clock(session),
        entries=[(one, address_of(one, targets)) for one in found.items],
        filters=filters,
        chosen=chosen,
        targets=targets,
        first="/audit?" + urlencode(chosen) if cursor else "",
        older="/audit?" + urlencode(chosen | {"cursor": found.next}) if found.next else "",
        json="/api/v1/audit?" + urlencode(chosen),
    )


def address_of(entry: AuditEntry, targets: Collection[str]) -> str:
    """The page of what an entry is about; empty where there is none."""
    found = _OBJECT.fullmatch(entry.object or "")
    noun, name = (found["noun"], found["name"]) if found else ("", "")
    if noun in _PAGES:
        return _PAGES[noun].format(quote(name, safe=""))
    target = name if noun == "target" else entry.target
    if target not in targets:  # removed
        return ""
    pull = f"/pulls/{name}" if noun == "pull request" and name.isdecimal() else ""
    return f"/targets/{quote(target or '', safe='')}{pull}"
