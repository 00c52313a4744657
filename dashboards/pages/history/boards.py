"""The board: where a target is ahead of the best known kernels, and where behind."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy.orm import Session

from dashboards import boards
from dashboards.pages.rendering import page
from dashboards.runs.case_names import case_name
from service.api.access import Reading, ReadingRoute
from service.db.engine import clock
from service.db.models import RunTotals, Target
from service.ledger.intake.targets import all_targets, target_named
from service.ledger.reading import board as reading
from service.ledger.reading.board import BoardRun
from service.reports.report import readable

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)

_GAPS = 12  # that are listed before the others are unfolded
_SAMPLES = 40  # bars of the strip of the past
_Text = Annotated[str, Query(max_length=120)]


@dataclass(frozen=True)
class BoardAddress:
    """What the address of a board says."""

    target: str
    device: str
    dtype: str = ""
    against: str = ""
    at: str = ""

    def to(self, **changed: str) -> str:
        values = {"device": self.device, "dtype": self.dtype, "against": self.against, "at": self.at} | changed
        return f"/targets/{quote(self.target)}/board?{urlencode({key: one for key, one in values.items() if one})}"


@router.get("/board")
def board_of_all(session: Reading) -> str:
    """List the targets that have a board, with their newest geometric mean against SOTA."""
    return page("boards.html", rows=newest_by_target(session), now=clock(session))


def newest_by_target(session: Session) -> list[tuple[Target, list[tuple[RunTotals, float]]]]:
    """Each target with a board: the newest totals of its devices, with the geometric mean against SOTA."""
    targets = all_targets(session)
    newest = defaultdict[int, list[tuple[RunTotals, float]]](list)
    for one in reading.newest_compared(session, [target.id for target in targets]):
        newest[one.target_id].append((one, math.exp(one.sota_log / one.sota_cases)))
    return [(target, newest[target.id]) for target in targets if target.id in newest]


@router.get("/targets/{name}/board", response_model=None)
def board(
    name: str,
    session: Reading,
    device: _Text = "",
    dtype: _Text = "",
    against: _Text = "",
    at: Annotated[str, Query(max_length=64)] = "",
) -> Response | str:
    """Show a target against SOTA or another provider, at its newest revision or an earlier one."""
    target = target_named(session, name)
    devices = reading.measured_devices(session, target)
    if not device and devices:
        totals = reading.newest_compared(session, [target.id])
        first = max(totals, key=lambda one: one.sota_cases).device if totals else devices[0]
        return RedirectResponse(BoardAddress(target.name, first).to(), 303)
    address = BoardAddress(target.name, device, dtype, against, at)
    shown = reading.board(session, target, device, at)
    values = board_values(target, address, shown, devices, past_bars(session, target, device))
    return page("board.html", now=clock(session), **values)


def board_values(
    target: Target, address: BoardAddress, shown: BoardRun, devices: Sequence[str], past: "Sequence[PastBar]"
) -> dict[str, Any]:
    """What the template shows of a run, without the time."""
    sota = sota_of(target, address.device)
    against = address.against or sota
    dtype = address.dtype
    chosen = [case for case in shown.cases if not dtype or case_name(case.case).dtypes == dtype]
    return {
        "target": target,
        "address": address,
        "run": shown,
        "board": boards.compose(chosen, against, sota, shown.copy_gb_s, target.name),
        "sota": sota,
        "against": against,
        "others": boards.providers(shown.cases),
        "dtypes": boards.dtypes(shown.cases),
        "devices": devices,
        "past": past,
        "steps": boards.STEPS,
        "best": boards.BEST,
        "short_number": boards.short_number,
        "most_gaps": _GAPS,
    }


def sota_of(target: Target, device: str) -> str:
    """The provider that is SOTA on a device."""
    recipe = readable(target.recipe.text) if target.recipe else None
    return recipe.sota_on(device) if recipe else "SOTA"


@dataclass(frozen=True)
class PastBar:
    """A bar of the strip: a revision with its geometric mean against SOTA."""

    revision: str
    committed_at: float
    geomean: float
    x: float
    y: float
    height: float


def past_bars(session: Session, target: Target, device: str) -> list[PastBar]:
    """Bars of revisions at even distances, the newest included."""
    some = reading.past(session, target, device, _SAMPLES)
    widest = max((abs(one.geomean - 1) for one in some), default=0.1) or 0.1
    width = 1000 / max(len(some), 1)
    return [
        PastBar(
            one.revision,
            one.committed_at,
            one.geomean,
            n * width,
            30 - max(0.0, (one.geomean - 1) / widest * 28),
            max(1.0, abs(one.geomean - 1) / widest * 28),
        )
        for n, one in enumerate(some)
    ]
