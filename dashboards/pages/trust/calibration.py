"""False-alarm rates of equal code, and quarantined cases."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dashboards.pages.rendering import page
from service.api.access import Reading, ReadingRoute
from service.db.engine import clock
from service.ledger.calibration import quarantines, rates

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)


MAX_CASES = 30  # of a calibration


CALIBRATED_DAYS = 90


@router.get("/calibration")
def calibration(session: Reading) -> str:
    """Show the false-alarm rates of each worker, and the quarantined cases."""
    now = clock(session)
    found = rates.rates(session, since=now - CALIBRATED_DAYS * 86_400.0)
    every = quarantines.listed(session, released=True)
    return page(
        "calibration.html",
        now=now,
        days=CALIBRATED_DAYS,
        metrics=rates.by_metric(found),
        worst=[one for one in found if one.rate.differed][:MAX_CASES],
        quarantined=[one for one in every if one[0].released_at is None],
        released=[one for one in every if one[0].released_at is not None][:MAX_CASES],
    )
