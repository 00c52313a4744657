"""What other places show of a target: Atom feeds, and badges for a README."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.orm import Session

from dashboards.rendering import page
from kernels.cases import Metric
from service.api.access import Reading, ReadingRoute
from service.api.common import PRIVATE, tagged
from service.db.models import Target
from service.errors import NotFound
from service.ledger.ingest.imported import imported_points
from service.ledger.reading import board as facts
from service.ledger.reading import news
from service.ledger.reading.runs import CaseFilter
from service.ledger.targets import find, target_named
from service.reports.feeds import badges, entries
from service.reports.feeds.badges import Badge
from service.reports.feeds.entries import FeedEntry
from service.reports.imported import ImportedKey, imported_series
from service.settings import settings

router = APIRouter(route_class=ReadingRoute, include_in_schema=False)
MAX_ENTRIES = 50
_Text = Annotated[str, Query(max_length=300)]
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
    host = entries.authority(settings().address)
    found = [entries.regressions_changed(host, one) for one in news.changes(session, target, MAX_ENTRIES)]
    found += [entries.run_failed(host, one) for one in news.failed_runs(session, target, MAX_ENTRIES)]
    found += [entries.configurations_drifted(host, one) for one in news.run_drifts(session, target, MAX_ENTRIES)]
    target_id = target.id if target else None
    if (week := news.ended_week(session, target)) is not None:
        found.append(entries.week_ended(host, week.digest, week.at, target_id))
    name = target.name if target else "all"
    place = f"/targets/{quote(target.name)}" if target else "/"
    title = target.name if target else "all targets"
    of = _FeedOf(entries.feed_id(host, target_id), title, f"/feeds/{quote(name)}.atom", place)
    return _written(request, of, found, target.created_at if target else 0.0)


@router.get("/feeds/{name}/imported.atom")
def imported_series_changes(
    request: Request, name: str, session: Reading, device: _Text, provider: _Text, case: _Text
) -> Response:
    """Return the changes of a series that was measured elsewhere."""
    target = target_named(session, name)
    points = imported_points(session, target, device=device, provider=provider, case=case)
    if not points:
        raise NotFound("measurement", f"of {case} by {provider} on {device} that was made elsewhere")
    series = imported_series(points)
    host, key = entries.authority(settings().address), ImportedKey(target.id, target.name, device, provider, case)
    of = _FeedOf(
        entries.imported_feed_id(host, key),
        f"{case} of {target.name}, measured elsewhere",
        f"/feeds/{quote(target.name, safe='')}/imported.atom?{key.query}",
        key.path,
    )
    found = [entries.imported_changed(host, key, series, change) for change in series.changes]
    return _written(request, of, found, points[0].at)


@dataclass(frozen=True)
class _FeedOf:
    """What a feed is about: its id, its title, and the addresses of the feed and of the page."""

    id: str
    title: str
    here: str
    page: str


def _written(request: Request, of: _FeedOf, found: Sequence[FeedEntry], begun: float) -> Response:
    address = settings().address
    newest = sorted(found, key=lambda one: (-one.updated, one.id))[:MAX_ENTRIES]
    updated = max((one.updated for one in newest), default=begun)
    text = page(
        "feed.atom",
        id=of.id,
        title=f"kernelwatch: {of.title}",
        updated=updated,
        address=address,
        here=f"{address}{of.here}",
        page=f"{address}{of.page}",
        entries=newest,
    )
    return tagged(request, text, _ATOM, modified=updated)


KEPT_S = 300  # by proxies; shields.io keeps nothing for less

Device = Annotated[str | None, Query(max_length=40)]
Word = Annotated[str | None, Query(max_length=40)]
StaleDays = Annotated[int, Query(ge=1, le=3650)]


class Form(StrEnum):
    SVG = "svg"
    JSON = "json"


@router.get("/badges/{name}/status.{form}")
def status(
    request: Request, name: str, form: Form, session: Reading, device: Device = None, stale_days: StaleDays = 30
) -> Response:
    """Return whether the mainline has open regressions."""
    target = find(session, name)
    if target is None:
        return _not_found(request, form)
    return _drawn(request, form, target, badges.status(facts.status(session, target, device), stale_days))


@router.get("/badges/{name}/sota.{form}")
def sota(
    request: Request,
    name: str,
    form: Form,
    session: Reading,
    device: Device = None,
    dtype: Word = None,
    op: Word = None,
    direction: Word = None,
    provider: Annotated[str | None, Query(max_length=80)] = None,
    metric: Metric = Metric.KERNEL,
    stale_days: StaleDays = 30,
) -> Response:
    """Return the geometric mean of the ratios to SOTA of the newest measured revision."""
    target = find(session, name)
    if target is None:
        return _not_found(request, form)
    which = CaseFilter(provider, op, metric)
    found = facts.sota(session, target, device, which, dtype=dtype, direction=direction)
    return _drawn(request, form, target, badges.sota(found, stale_days))


def _drawn(request: Request, form: Form, target: Target, badge: Badge) -> Response:
    public = settings().public_read and not target.private
    return _response(request, form, badge, f"max-age={KEPT_S}" if public else PRIVATE)


def _not_found(request: Request, form: Form) -> Response:
    """The same for a target that does not exist and for one that the reader may not know of."""
    return _response(request, form, badges.UNKNOWN, PRIVATE, status=404)


def _response(request: Request, form: Form, badge: Badge, caching: str, *, status: int = 200) -> Response:
    if form is Form.JSON:
        shields = {
            "schemaVersion": 1,
            "label": badge.label,
            "message": badge.message,
            "color": badge.colour.value,
            "isError": badge.is_error,
            "cacheSeconds": KEPT_S,
        }
        return tagged(request, json.dumps(shields), "application/json", caching=caching, status=status)
    left, right = badges.placed(badge)
    svg = page(
        "badge.svg", badge=badge, left=left, right=right, font_px=int(badges.FONT_PX), padding_px=badges.PADDING_PX
    )
    return tagged(request, svg, "image/svg+xml; charset=utf-8", caching=caching, status=status)
