"""Charts to explore: what pages draw, as figures of Plotly."""

import json
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy.orm import Session

from kernelwatch.documents.figures import FigureDocument
from service.api.access import Reading, ReadingRoute
from service.api.common import CACHED, Cases, seconds, tagged
from service.api.objects import AnyName
from service.api.targets import NOT_COMPARABLE, Side
from service.db.models import Revision, Target
from service.domain.case_names import case_name
from service.domain.forges import commit_address
from service.domain.metrics import SeriesKey, metric_of
from service.errors import BadInput, NotFound
from service.forge.clients import repository_page
from service.ledger.reading import board, queries, trends
from service.ledger.reading.compare import compare
from service.ledger.targets import target_named
from service.reports.charts.board import BoardCell, BoardRun, cells_of
from service.reports.charts.trends import Shown, Unit, other_series, trend
from service.reports.figures.board import board_figure, roofline_figure
from service.reports.figures.comparison import comparison_figure
from service.reports.figures.frame import Commit
from service.reports.figures.trend import trend_figure
from service.reports.schema.base import Instant
from service.reports.views import Point

router = APIRouter(route_class=ReadingRoute, tags=["figures"])

_Case = Annotated[str, Query(max_length=120, description="For example rmsnorm.fwd.4096x1024.bf16-fp32.")]
_Provider = Annotated[str, Query(max_length=80, description="For example norms or quack.")]
_Device = Annotated[str, Query(max_length=40, description="For example h200.")]
_Others = Annotated[
    list[Annotated[str, Query(max_length=300)]] | None,
    Query(alias="with", description="Other series of the same metric, each as `device provider case`."),
]


@router.get("/targets/{name}/series/figure", response_model=FigureDocument, responses=CACHED)
def get_trend_figure(
    request: Request,
    name: AnyName,
    session: Reading,
    case: _Case,
    provider: _Provider,
    device: _Device,
    unit: Annotated[Unit, Query(description="Of the values: time, bytes or a count is `amount`.")] = Unit.AMOUNT,
    others: _Others = None,
    since: Annotated[Instant | None, Query(description="Only revisions committed at this time or later.")] = None,
    until: Annotated[Instant | None, Query(description="Only revisions committed before this time.")] = None,
    days: Annotated[int | None, Query(ge=1, le=9999, description="Shown at first; the others by the slider.")] = None,
) -> Response:
    """Draw the history of one case on the mainline, its newest 2,000 revisions, as a figure of Plotly."""
    target, wanted = target_named(session, name), other_series(others or ())
    between = seconds(since), seconds(until)
    key = SeriesKey.of(target.id, device, provider, case)
    points = _points(session, target, key, between)
    if not points:
        raise NotFound("series", f"{case} of {provider} on {device} at {name}", "Search for the case on its trend.")
    history = trends.with_changes(session, target, key, points, ceilings=unit is Unit.CEILING)
    series = trend(points, history.changes, key.metric, unit, history.ceilings)
    compared = [(other, _other(session, target, other, key, unit, between)) for other in wanted]
    sota, _ = trends.limit_to_sota(session, target, device, case)
    drawn = trend_figure(
        series,
        key.metric,
        f"{case} by {provider} on {device}",
        sota=sota,
        others=compared,
        days=days,
        commit=_commit_of(target),
    )
    return _tagged_figure(request, drawn)


@router.get("/targets/{name}/compare/figure", response_model=FigureDocument, responses=CACHED | NOT_COMPARABLE)
def get_comparison_figure(
    request: Request, name: AnyName, session: Reading, base: Side, head: Side, device: _Device, cases: Cases
) -> Response:
    """Draw the ratios of two revisions, releases or pull requests, case by case, as a figure of Plotly."""
    target = target_named(session, name)
    revisions = compare(session, target, base, head, device, cases)
    return _tagged_figure(request, comparison_figure(revisions, target.name, _commit_of(target)))


_Dtype = Annotated[str | None, Query(max_length=120, description="Only cases of these dtypes, as in bf16-fp32.")]
_Against = Annotated[
    str | None, Query(max_length=120, description="Another provider, or `best` of all; SOTA by default.")
]
_At = Annotated[str | None, Query(max_length=64, description="A revision; the newest that was measured by default.")]


@dataclass(frozen=True)
class _BoardChoice:
    """Which cases of which run a board shows, and against whom."""

    device: _Device
    dtype: _Dtype = None
    against: _Against = None
    at: _At = None


_Chosen = Annotated[_BoardChoice, Depends()]


@router.get("/targets/{name}/board/figure", response_model=FigureDocument, responses=CACHED)
def get_board_figure(request: Request, name: AnyName, session: Reading, chosen: _Chosen) -> Response:
    """Draw the times of a board over those of another provider, by the bytes of a call, as a figure of Plotly."""
    return _tagged_figure(request, board_figure(*_board(session, name, chosen)))


@router.get("/targets/{name}/roofline/figure", response_model=FigureDocument, responses=CACHED)
def get_roofline_figure(request: Request, name: AnyName, session: Reading, chosen: _Chosen) -> Response:
    """Draw GB/s and TFLOP/s of the cases of a board below the ceilings of their session, as a figure of Plotly."""
    return _tagged_figure(request, roofline_figure(*_board(session, name, chosen)))


def _board(
    session: Session, name: str, chosen: _BoardChoice
) -> tuple[list[BoardCell], BoardRun, str, str, str, Commit]:
    """The cases of a board, its run, and their names, as figures take them."""
    target = target_named(session, name)
    run = board.board(session, target, chosen.device, chosen.at or "")
    sota, limit = board.limit_to_sota(target, chosen.device)
    other = chosen.against or sota
    cases = [case for case in run.cases if not chosen.dtype or case_name(case.case).dtypes == chosen.dtype]
    cells = cells_of(cases, other, sota, run.copy_gb_s, limit)
    return cells, run, target.name, chosen.device, other, _commit_of(target)


def _points(
    session: Session, target: Target, key: SeriesKey, between: tuple[float | None, float | None]
) -> list[Point]:
    since, until = between
    on_mainline = Revision.ordinal.is_not(None)
    places = None if until is None else queries.MainlinePlaces(on_mainline & (Revision.committed_at < until))
    return queries.series(session, target, key.printed, key.provider, key.device, since=since, places=places)


def _other(
    session: Session,
    target: Target,
    named: str,
    of: SeriesKey,
    unit: Unit,
    between: tuple[float | None, float | None],
) -> tuple[Shown, ...]:
    """Another series in the same unit.  Raises NotFound, and BadInput for another metric."""
    device, provider, case = (*named.split(" "), "", "")[:3]
    if metric_of(case) is not of.metric:
        raise BadInput(f"{case} and {of.printed} are measured in different units; draw them in figures of their own.")
    points = _points(session, target, SeriesKey.of(target.id, device, provider, case), between)
    if not points:
        raise NotFound("series", f"{named} at {target.name}", "Take it out of `with`.")
    ceilings = trends.copies(session, points) if unit is Unit.CEILING else {}
    return trend(points, (), of.metric, unit, ceilings).shown


def _commit_of(target: Target) -> Commit:
    """The address of a commit at the forge of the target; empty where it has none."""
    kind = target.forge_kind
    if not kind:
        return lambda _: ""
    repository = repository_page(kind, str(target.forge))
    return lambda sha: commit_address(kind, repository, sha)


def _tagged_figure(request: Request, drawn: FigureDocument) -> Response:
    return tagged(request, json.dumps(drawn, allow_nan=False, separators=(",", ":")), "application/json")
