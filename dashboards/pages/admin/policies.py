"""The versions of policies that made verdicts: their values, differences, and the runs that they judged."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import HTMLResponse

from dashboards.rendering import flat, page
from service.api.access import Acting, Reading, ReadingRoute, needs, permit
from service.api.common import Cursor
from service.db.engine import clock
from service.domain.access import Scope
from service.ledger import policies

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)
Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
_LINES = 30
_RUNS = 20  # of one version


@router.get("/policies")
@needs(Scope.ADMIN)
def listed(session: Reading, actor: Acting, cursor: Cursor = None) -> str:
    """Show the versions, the newest first, each with its difference to the one before."""
    permit(actor, Scope.ADMIN)
    found = policies.listed(session, cursor, _LINES)
    lines = []
    for row in found.items:
        before = policies.before(session, row)
        lines.append((row, differences(before.values, row.values) if before else None))
    uses = policies.uses(session)
    return page("policies.html", now=clock(session), lines=lines, uses=uses, sample=policies.SAMPLE, next=found.next)


@router.get("/policies/{digest}")
@needs(Scope.ADMIN)
def one(digest: Digest, session: Reading, actor: Acting) -> str:
    """Show one version: its values, what differs from the version before, and the last runs that it judged."""
    permit(actor, Scope.ADMIN)
    row = policies.one(session, digest)
    before = policies.before(session, row)
    runs = policies.uses(session).get(row.id, [])
    return page(
        "policy.html",
        now=clock(session),
        row=row,
        values=flat(row.values),
        before=before,
        differs=differences(before.values, row.values) if before else [],
        runs=runs[:_RUNS],
        used=len(runs),
        targets=sorted({one.target.name for one in runs}),
        sample=policies.SAMPLE,
    )


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The keys that differ, each with both values; `–` for none."""
    old, new = dict(flat(before)), dict(flat(after))
    return [(key, old.get(key, "–"), new.get(key, "–")) for key in old | new if old.get(key) != new.get(key)]
