"""How well measurements repeat here: false-alarm rates, quarantined cases, and how the statistics work."""

from markupsafe import Markup
from sqlalchemy.orm import Session

from dashboards.rendering import page, page_router
from dashboards.runs.strips import rounds_figure
from kernels.cases import Role
from service.api.access import Reading
from service.db.engine import clock
from service.ledger.calibration import error_rates, quarantines
from service.ledger.reading import brief
from service.reports import words

router = page_router()


MAX_CASES = 30  # of a calibration


CALIBRATED_DAYS = 90


@router.get("/calibration")
def calibration(session: Reading) -> str:
    """Show the false-alarm rates of each worker, and the quarantined cases."""
    now = clock(session)
    found = error_rates.rates(session, since=now - CALIBRATED_DAYS * 86_400.0)
    every = quarantines.listed(session, released=True)
    return page(
        "calibration.html",
        now=now,
        days=CALIBRATED_DAYS,
        metrics=error_rates.by_metric(found),
        worst=[one for one in found if one.rate.differed][:MAX_CASES],
        quarantined=[one for one in every if one[0].released_at is None],
        released=[one for one in every if one[0].released_at is not None][:MAX_CASES],
    )


DAYS = 30
_SIDES = (Role.HEAD, Role.PARENT)


@router.get("/statistics")
def statistics(session: Reading) -> str:
    """Explain how a verdict is made, with the error rates that were measured here."""
    now = clock(session)
    example = error_rates.newest_example(session)
    return page(
        "statistics.html",
        now=now,
        days=DAYS,
        runs=error_rates.RUNS,
        rates=error_rates.error_rates(session, now - DAYS * 86_400.0),
        quarantined=len(quarantines.listed(session)),
        example=example,
        reason=words.of_verdict(example.verdict) if example else "",
        figure=_figure(session, example) if example else None,
    )


def _figure(session: Session, example: error_rates.Example) -> Markup | None:
    """The rounds of both sides; None where their samples were deleted."""
    verdict = example.verdict
    samples = brief.samples_of_case(session, example.run.id, verdict.case)
    sides = [one for one in samples if one.provider == verdict.provider and one.role in _SIDES]
    return rounds_figure(verdict.case, sides)
