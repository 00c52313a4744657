"""The weekly report."""

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query
from sqlalchemy.orm import Session

from dashboards.pages.history.facts import address as facts_address
from dashboards.rendering import page, page_router
from dashboards.strips import stake_bar
from service.api.access import Reading
from service.db.engine import clock
from service.domain.weekly.weeks import Week
from service.ledger.reading import weekly
from service.ledger.targets import all_targets, target_named
from service.reports.weekly import words
from service.reports.weekly.report import compose

router = page_router()

TargetName = Annotated[str, Query(max_length=80)]
DeviceName = Annotated[str, Query(max_length=40)]


@router.get("/weekly")
def this_week(session: Reading, target: TargetName = "", device: DeviceName = "") -> str:
    """Show the report of the week that is not over."""
    return _page(session, Week.at(clock(session)), target, device)


@router.get("/weekly/{week}")
def one_week(week: str, session: Reading, target: TargetName = "", device: DeviceName = "") -> str:
    """Show what moved in a week, and which regressions and gaps to SOTA were opened and closed."""
    return _page(session, Week.parse(week), target, device)


def _page(session: Session, week: Week, target: str, device: str) -> str:
    of = target_named(session, target) if target else None
    chosen = {name: value for name, value in (("target", target), ("device", device)) if value}
    report = compose(weekly.facts(session, week, of, device or None))
    targets = all_targets(session)
    samples = [one for one in targets if one.is_sample] if of is None else []
    return page(
        "weekly.html",
        now=clock(session),
        report=report,
        words=words,
        stake_bar=stake_bar,
        facts_address=facts_address,
        previous=_address(week.previous, chosen),
        next=_address(week.next, chosen) if report.finished else None,
        targets=[one.name for one in targets],
        samples=[compose(weekly.facts(session, week, one, device or None)) for one in samples],
        devices=weekly.devices(session),
        query=f"?{urlencode({'week': str(week), **chosen})}",
    )


def _address(week: Week, chosen: Mapping[str, str]) -> str:
    return f"/weekly/{week}{f'?{urlencode(chosen)}' if chosen else ''}"
