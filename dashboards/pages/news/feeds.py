"""Atom feeds: the newest entries of one target, or of all that the reader may see."""

from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.api.common import tagged
from service.db.models import Target
from service.ledger.intake.targets import target_named
from service.ledger.reading import news
from service.reports.feeds import entries
from service.settings import settings

router = APIRouter(route_class=ReadingRoute, include_in_schema=False)
MAX_ENTRIES = 50
_ATOM = "application/atom+xml; charset=utf-8"


@router.get("/feeds/all.atom")
def all_targets(request: Request, session: Reading) -> Response:
    """Return the newest entries of all targets."""
    return _feed(request, session, None)


@router.get("/feeds/{name}.atom")
def one_target(request: Request, name: str, session: Reading) -> Response:
    """Return the newest entries of one target."""
    return _feed(request, session, target_named(session, name))


def _feed(request: Request, session: Session, target: Target | None) -> Response:
    address = settings().address
    host = entries.authority(address)
    found = [entries.regressions_changed(host, one) for one in news.changes(session, target, MAX_ENTRIES)]
    found += [entries.run_failed(host, one) for one in news.failed_runs(session, target, MAX_ENTRIES)]
    found += [entries.configurations_drifted(host, one) for one in news.run_drifts(session, target, MAX_ENTRIES)]
    target_id = target.id if target else None
    found += [entries.week_ended(host, one.report, one.at, target_id) for one in news.ended_weeks(session, target)]
    newest = sorted(found, key=lambda one: (-one.updated, one.id))[:MAX_ENTRIES]
    updated = max((one.updated for one in newest), default=target.created_at if target else 0.0)
    text = page(
        "feed.atom",
        id=entries.feed_id(host, target_id),
        title=f"kernelwatch: {target.name if target else 'all targets'}",
        updated=updated,
        address=address,
        here=f"{address}/feeds/{quote(target.name) if target else 'all'}.atom",
        page=f"{address}/targets/{quote(target.name)}" if target else f"{address}/",
        entries=newest,
    )
    return tagged(request, text, _ATOM, modified=updated)
