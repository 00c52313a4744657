"""The board: where a target is ahead of the best known kernels, and where behind."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Depends, Query, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from dashboards import boards, rooflines
from dashboards.drawing import Figure, bars
from dashboards.links import SERVICE, ServiceLinks
from dashboards.rendering import calendar, page, page_router
from service.api.access import Reading
from service.api.common import tagged
from service.db.engine import clock
from service.db.models import RunTotals, Target
from service.domain import roofline
from service.domain.case_names import case_name
from service.domain.text import short
from service.ledger.reading import board as reading
from service.ledger.targets import all_targets, target_named
from service.reports.charts import board as cells
from service.reports.charts.board import BoardRun
from service.reports.encoders import csv_text
from service.reports.schema.base import rfc3339

router = page_router()

_GAPS = 10  # that are listed before the others are unfolded
_SAMPLES = 40  # bars of the strip of the past, and as many releases as there are
_Text = Annotated[str, Query(max_length=120)]


@dataclass(frozen=True)
class BoardAddress:
    """What the address of a board says."""

    target: str
    device: str
    dtype: str = ""
    against: str = ""
    at: str = ""

    def to(self, page: str = "board", **changed: str) -> str:
        """The address of the board, or of another rendering of it, with changes."""
        values = {"device": self.device, "dtype": self.dtype, "against": self.against, "at": self.at} | changed
        return f"/targets/{quote(self.target)}/{page}?{urlencode({key: one for key, one in values.items() if one})}"

    def figure(self, what: str) -> str:
        """The figure to explore of the `board` or its `roofline`."""
        return f"/api/v1{self.to(f'{what}/figure')}"


def _chosen(
    name: str,
    device: _Text = "",
    dtype: _Text = "",
    against: _Text = "",
    at: Annotated[str, Query(max_length=64)] = "",
) -> BoardAddress:
    return BoardAddress(name, device, dtype, against, at)


Chosen = Annotated[BoardAddress, Depends(_chosen)]


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
def board(session: Reading, at: Chosen) -> Response | str:
    """Show a target against SOTA or another provider, at its newest revision or an earlier one."""
    target = target_named(session, at.target)
    devices = reading.measured_devices(session, target)
    if not at.device and devices:
        return RedirectResponse(_with_device(session, at).to(), 303)
    return page("board.html", now=clock(session), **_values(session, target, at, devices))


def _with_device(session: Session, at: BoardAddress) -> BoardAddress:
    """Without a device, that which was compared with SOTA last, or else any that was measured."""
    if at.device:
        return at
    target = target_named(session, at.target)
    totals = reading.newest_compared(session, [target.id])
    newest = max(totals, key=lambda one: one.at).device if totals else None
    return replace(at, device=newest or next(iter(reading.measured_devices(session, target)), ""))


class Part(StrEnum):
    """Parts of a board that are fetched when they are opened."""

    GAPS = "gaps"
    SMALL = "small"


@router.get("/targets/{name}/board.csv")
def board_csv(request: Request, session: Reading, at: Chosen) -> Response:
    """The cases of the board as CSV."""
    at = _with_device(session, at)
    found = _composed(session, at)
    text = csv_text(_RECORD, (_record(cell, found).values() for cell in found.board.cells))
    file = f"{at.target}-board-{at.device}-{found.run.revision[:12]}.csv"
    answer = tagged(request, text, "text/csv; charset=utf-8")
    answer.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(file, safe='')}"
    return answer


@router.get("/targets/{name}/board.json")
def board_json(request: Request, session: Reading, at: Chosen) -> Response:
    """The cases of the board as JSON, with the run and the ceilings of its session."""
    at = _with_device(session, at)
    found = _composed(session, at)
    run = found.run
    whole = {
        "target": at.target,
        "device": at.device,
        "run": run.run_id,
        "revision": run.revision,
        "committed_at": rfc3339(run.committed_at),
        "instead_of": run.instead_of or None,
        "against": found.against,
        "dtypes": at.dtype or None,
        "geomean": found.board.geomean,
        "copy_gb_s": run.copy_gb_s,
        "matmul_tflop_s": run.matmul_tflop_s,
        "cases": [_record(cell, found) for cell in found.board.cells],
    }
    return tagged(request, json.dumps(whole), "application/json")


@router.get("/targets/{name}/board/{part}")
def board_part(session: Reading, at: Chosen, part: Part) -> str:
    """Show all gaps of a board, or its small batches and single shapes."""
    values = _values(session, target_named(session, at.target), at, [])
    return page("board_part.html", now=clock(session), **values, part=part)


def _composed(session: Session, at: BoardAddress) -> "Composed":
    target = target_named(session, at.target)
    return composed(target, at, reading.board(session, target, at.device, at.at))


@dataclass(frozen=True)
class Composed:
    """The board of an address, and what it was made of."""

    run: BoardRun
    board: boards.Board
    sota: str
    against: str


def composed(target: Target, at: BoardAddress, run: BoardRun) -> Composed:
    """The board of an address from the run that it shows."""
    sota, limit = reading.limit_to_sota(target, at.device)
    against = at.against or sota
    chosen = [case for case in run.cases if not at.dtype or case_name(case.case).dtypes == at.dtype]
    return Composed(run, boards.compose(chosen, against, sota, run.copy_gb_s, target.name, limit), sota, against)


def _values(session: Session, target: Target, at: BoardAddress, devices: Sequence[str]) -> dict[str, Any]:
    shown = reading.board(session, target, at.device, at.at)
    return board_values(target, at, shown, devices, past_of(session, target, at.device, shown))


def board_values(
    target: Target,
    address: BoardAddress,
    shown: BoardRun,
    devices: Sequence[str],
    past: "Past",
    links: ServiceLinks = SERVICE,
) -> dict[str, Any]:
    """What the template shows of a run, without the time."""
    found = composed(target, address, shown)
    return {
        "target": target,
        "address": address,
        "run": shown,
        "board": found.board,
        "small_geomean": boards.geometric_mean(found.board.small),
        "roofline": rooflines.draw(
            found.board.cells,
            shown,
            found.against,
            lambda case: links.trend(target.name, address.device, case.provider, case.case),
        ),
        "sota": found.sota,
        "against": found.against,
        "others": boards.providers(shown.cases),
        "dtypes": boards.dtypes(shown.cases),
        "devices": devices,
        "past": past,
        "past_bars": _past_bars(past, address, shown.revision),
        "sample": target.is_sample,
        "steps": cells.STEPS,
        "best": cells.BEST,
        "short_number": cells.short_number,
        "plain_shape": boards.plain_shape,
        "most_gaps": _GAPS,
    }


_RECORD = (
    "provider", "case", "op", "direction", "rows", "columns", "dtypes", "model", "median_us", "gb_s", "percent_of_copy",
    "in_cache", "flop_per_byte", "tflop_s", "against", "other", "other_us", "ratio", "behind", "behind_since",
    "at_stake_us",
)  # fmt: skip


def _record(cell: cells.BoardCell, found: Composed) -> dict[str, object]:
    """One case of the board for programs; None where something is not known."""
    case, name, work = cell.case, cell.name, roofline.work(cell.case.case)
    other = cells.other_time(case, found.against)
    values = (
        case.provider, case.case, name.op or None, name.direction or None, name.rows, name.columns, name.dtypes or None,
        name.model or None, case.own.median, case.own.gb_s, cell.share, case.in_cache, work and work.intensity,
        work and work.flops / case.own.median / 1e6, found.against, cell.other or None, other and other.median,
        cell.ratio, cell.behind, case.behind_since and case.behind_since.revision,
        cell.at_stake if cell.behind else None,
    )  # fmt: skip
    return dict(zip(_RECORD, values, strict=True))


@dataclass(frozen=True)
class Past:
    """Some revisions that were compared with SOTA, and the neighbours of the one that is shown."""

    runs: Sequence[reading.PastRun]
    before: str
    after: str

    @property
    def releases(self) -> set[str | None]:
        """The revisions that are or were the pinned baseline."""
        return {one.pinned for one in self.runs} & {one.revision for one in self.runs}


def past_of(session: Session, target: Target, device: str, shown: BoardRun) -> Past:
    """The past of a board, with all releases, the revision that is shown, and the newest."""
    some = reading.past(session, target, device, _SAMPLES, shown.revision)
    on_mainline = shown.ordinal is not None
    return Past(some, *(reading.neighbours(session, target, device, shown.ordinal or 0) if on_mainline else ("", "")))


def _past_bars(past: Past, address: BoardAddress, shown: str) -> Figure | None:
    """Each revision of the past as a bar from the mean 1, which leads to its board."""
    if len(past.runs) < 2:
        return None
    size = {"width": "100%", "height": 48, "preserveAspectRatio": "none"}
    figure = Figure(1000, 60, "Revisions", kind="past", role="group", **size)
    figure.across("one", 30, 0, 1000)
    widest = max(abs(one.geomean - 1) for one in past.runs) or 0.1
    width = 1000 / len(past.runs)
    for n, one in enumerate(past.runs):
        x, height, slower = n * width, abs(one.geomean - 1) / widest * 28, one.geomean > 1
        release, current = one.revision in past.releases, one.revision == shown
        title = f"{short(one.revision)}, {calendar(one.committed_at)[:10]}: {one.geomean:.3f}{', release' * release}"
        link = {"href": address.to(at=one.revision[:12]), "aria_current": "true" if current else ""}
        with figure.within("a", title, **link):
            figure.add("rect", kind="hit", x=x, y=0, width=width, height=60)
            kind = f"{'over' if slower else 'under'}{' shown' * current}"
            y, inner = 30 - height * slower, max(width - 2, 1)
            figure.add("rect", kind=kind, x=x + 1, y=y, width=inner, height=max(1.0, height))
            if release:
                figure.path("release", bars([(x + width / 2, 0, 60)]))
    return figure
