"""One case over the mainline: its levels and changes, in a window and a unit, with other series."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Query
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from dashboards import trends
from dashboards.drawing import Figure
from dashboards.links import SERVICE, ServiceLinks
from dashboards.pages.history.facts import choice, parts
from dashboards.rendering import page, page_router
from dashboards.trends import Mark
from kernels.cases import Case, Metric
from service.api.access import Reading
from service.db.engine import clock
from service.db.models import Revision, Target
from service.domain.metrics import SeriesKey, metric_of
from service.domain.states import OPEN_REGRESSIONS
from service.errors import BadInput, NotFound
from service.ledger.reading import queries
from service.ledger.reading import trends as reading
from service.ledger.reading.trends import SeriesHistory
from service.ledger.regressions import listing
from service.ledger.targets import target_named
from service.reports.charts.trends import MAX_OTHERS, SeriesChange, Shown, Trend, Unit, day, headline, other_series
from service.reports.charts.trends import trend as trend_of
from service.reports.views import Point

router = page_router()

_RECENT = 1000  # revisions of the mainline that are read: the newest, or as many that are spread over a longer time
_FEW = 50  # points
_USUAL_DAYS = 110
_WINDOWS = ((30, "30 d"), (_USUAL_DAYS, "110 d"), (365, "1 y"))
_FOUND = 30  # series that a search lists
_ROWS = 200  # revisions of the table
_NAMED = 3000  # revisions that the script can name
_NEIGHBOURS = 6
_WIDE, _NARROW = 1216, 344  # px
_RECENT_OF_NEIGHBOURS = 300  # revisions: they are drawn small
_Text = Annotated[str, Query(max_length=300)]


@dataclass(frozen=True)
class TrendAddress:
    """What the address of a trend says."""

    target: str
    device: str
    provider: str
    case: str
    unit: Unit = Unit.AMOUNT
    from_zero: bool = False
    days: str = ""  # of the window, or "all"
    since: date | None = None
    until: date | None = None
    a: str = ""
    b: str = ""
    others: tuple[str, ...] = ()
    query: str = ""

    def to(self, **changed: object) -> str:
        """The same with changes; empty values are left out."""
        values = {
            "device": self.device,
            "provider": self.provider,
            "case": self.case,
            "unit": "" if self.unit is Unit.AMOUNT else self.unit.value,
            "range": "zero" if self.from_zero else "",
            "days": self.days,
            "since": self.since or "",
            "until": self.until or "",
            "a": self.a,
            "b": self.b,
            "with": list(self.others),
        } | changed
        if "days" in changed and "since" not in changed:
            values |= {"since": "", "until": ""}
        kept = {key: value for key, value in values.items() if value not in ("", None, [])}
        return f"/targets/{quote(self.target)}/trend?{urlencode(kept, doseq=True)}"

    def figure(self, days: str) -> str:
        """The figure to explore of the same series, dates and unit, which begins with so many `days`."""
        asked: dict[str, object] = {"device": self.device, "provider": self.provider, "case": self.case}
        if self.unit is not Unit.AMOUNT:
            asked["unit"] = self.unit.value
        if self.since:
            asked["since"] = f"{self.since}T00:00:00Z"
        if self.until:
            asked["until"] = f"{self.until + timedelta(days=1)}T00:00:00Z"
        if days.isdecimal():
            asked["days"] = days
        path = f"/api/v1/targets/{quote(self.target)}/series/figure"
        return f"{path}?{urlencode(asked | {'with': self.others}, doseq=True)}"


@router.get("/targets/{name}/trend", response_model=None)
def trend(
    name: str,
    session: Reading,
    device: _Text = "",
    provider: _Text = "",
    case: _Text = "",
    unit: Unit = Unit.AMOUNT,
    range_: Annotated[str, Query(alias="range", pattern="^(own|zero)?$")] = "",
    days: Annotated[str, Query(pattern="^([1-9][0-9]{0,3}|all)?$")] = "",
    since: date | None = None,
    until: date | None = None,
    a: Annotated[str, Query(max_length=64)] = "",
    b: Annotated[str, Query(max_length=64)] = "",
    with_: Annotated[list[_Text] | None, Query(alias="with")] = None,
    q: _Text = "",
) -> Response | str:
    """Show one case over the mainline.  Without a case, go to the one that matters most."""
    target = target_named(session, name)
    if not case:
        return _chosen(session, target)
    at = TrendAddress(
        target.name,
        device,
        provider,
        case,
        unit,
        range_ == "zero",
        days,
        since,
        until,
        a,
        b,
        other_series(with_ or ()),
        q,
    )
    return page("trend.html", now=clock(session), **trend_values(session, target, at))


def _chosen(session: Session, target: Target) -> Response:
    """Go to a case that regressed, else to one behind SOTA, else to any."""
    rows = [found.row for found in listing.listed(session, target, OPEN_REGRESSIONS, limit=1).items]
    rows += [found.gap for found in queries.gaps(session, target, limit=1).items]  # type: ignore[misc]
    triples = [(row.device, row.provider, row.case) for row in rows] or queries.measured_series(session, target)[:1]
    if not triples:
        raise NotFound("series", f"of {target.name}: nothing was measured on its mainline yet")
    device, provider, case = triples[0]
    return RedirectResponse(TrendAddress(target.name, device, provider, case).to(), 303)


def _series(session: Session, target: Target, at: TrendAddress, known: Sequence[Point] | None = None) -> SeriesHistory:
    if known is None:
        points, every = _points(session, target, at, (at.device, at.provider, at.case))
    else:
        points, every = known, 1
    if not any(point.median is not None for point in points):
        raise _no_series(target, at)
    return _with_changes(session, target, at, points, every)


def _with_changes(
    session: Session, target: Target, at: TrendAddress, points: Sequence[Point], every: int = 1
) -> SeriesHistory:
    key = SeriesKey.of(target.id, at.device, at.provider, at.case)
    return reading.with_changes(session, target, key, points, every=every, ceilings=at.unit is Unit.CEILING)


def _no_series(target: Target, at: TrendAddress) -> NotFound:
    named = f"{at.case} of {at.provider or 'no provider'} on {at.device or 'no device'}"
    return NotFound("series", f"{named} at {target.name}", "Search for the case on the trend of its target.")


def _points(
    session: Session, target: Target, at: TrendAddress, series: tuple[str, str, str]
) -> tuple[Sequence[Point], int]:
    """The points of a series, and the distance between their revisions: 1 for every one.

    They are of the newest revisions, or of as many that are spread over the time of the address.
    """
    older = at.days == "all" or at.since is not None or at.until is not None
    places = (
        queries.spread_places(session, target, _RECENT) if older else queries.newest_places(session, target, _RECENT)
    )
    every = places.every
    if every > 1 and (at.since or at.until):  # half of them in the window, half over the whole
        window = queries.spread_places(session, target, _RECENT // 2, *_dates(at))
        whole = queries.spread_places(session, target, _RECENT // 2)
        places, every = queries.MainlinePlaces(window.where | whole.where, whole.every), window.every
    points = _at(session, target, series, places)
    # Of a series that is measured seldom, or no longer, read all revisions.
    if not points or (every > 1 and len(points) < _FEW):
        return _at(session, target, series), 1
    return points, every


def _at(
    session: Session, target: Target, series: tuple[str, str, str], places: queries.MainlinePlaces | None = None
) -> Sequence[Point]:
    device, provider, case = series
    return queries.series(session, target, case, provider, device, places=places, limit=_RECENT)


def _window(at: TrendAddress, points: Sequence[Point]) -> list[Point]:
    """The points that are shown: of the dates of the address, else the last days, else all."""
    newest = points[-1].committed_at
    if at.since or at.until:
        low, high = _dates(at)
        return [point for point in points if (low or 0.0) <= point.committed_at < (high or math.inf)]
    if at.days == "all":
        return list(points)
    days = int(at.days or _USUAL_DAYS)
    recent = [point for point in points if point.committed_at > newest - days * 86_400.0]
    return recent if at.days or len(recent) >= 20 else list(points)


def _dates(at: TrendAddress) -> tuple[float | None, float | None]:
    """The times of the address: from the first, before the second."""
    low = _seconds(at.since) if at.since else None
    return low, _seconds(at.until + timedelta(days=1)) if at.until else None


def _shown_days(at: TrendAddress, window: Sequence[Point], points: Sequence[Point]) -> str:
    """Which of the windows is shown; none where the address has dates."""
    if at.since or at.until:
        return ""
    return at.days or ("all" if len(window) == len(points) else str(_USUAL_DAYS))


def _seconds(of: date) -> float:
    return (of - date(1970, 1, 1)).total_seconds()


def trend_values(
    session: Session,
    target: Target,
    at: TrendAddress,
    points: Sequence[Point] | None = None,
    links: ServiceLinks = SERVICE,
) -> dict[str, Any]:
    """What the template shows of a series, without the time; `points` if they are known.  Raises NotFound."""
    metric = metric_of(at.case)
    series = _series(session, target, at, points)
    sota, behind = reading.limit_to_sota(session, target, at.device, at.case)
    window = _window(at, series.points)
    found = trend_of(window, series.changes, metric, at.unit, series.ceilings)
    whole = len(window) == len(series.points)
    everything = found.shown if whole else trend_of(series.points, (), metric, at.unit, series.ceilings).shown
    marks = _marks(series, found.shown, links)
    others = [(one, _other(session, target, one, at, window)) for one in at.others]
    picked = {name: sha for name, sha in (("A", at.a), ("B", at.b)) if sha}
    starts = {name: [one for one in found.shown if one.point.revision.startswith(sha)] for name, sha in picked.items()}
    chosen = {name: ones[0] for name, ones in starts.items() if ones}
    verdict, change = headline(found, metric)
    shown_days = _shown_days(at, window, series.points)
    wide, narrow = (
        trends.draw(
            found,
            name,
            width=width,
            everything=everything,
            others=others,
            marks=marks,
            chosen=chosen,
            behind=behind,
            from_zero=at.from_zero,
            sota=sota,
        )
        for width, name in ((_WIDE, f"{verdict}; the table of revisions has the same numbers"), (_NARROW, verdict))
    )
    return {
        "target": target,
        "at": at,
        "metric": metric,
        "verdict": verdict,
        "change": change,
        "before": _before(found, change),
        "later": _later(found.shown, everything),
        "in_window": [one for one in found.changes if _is_within(one, found.shown)],
        "trend": found,
        "wide": wide,
        "narrow": narrow,
        "others": others,
        "chosen": chosen,
        "between": _between(chosen),
        "sota": sota,
        "behind": behind,
        "units": _units(metric),
        "windows": _WINDOWS,
        "shown_days": shown_days,
        "figure": at.figure(shown_days),
        "total": len(series.points) if len(series.points) < _RECENT and series.every == 1 else None,
        "every": series.every,
        "found_series": _search(session, target, at) if at.query else None,
        "most_with": MAX_OTHERS,
        "hover": _hover(found),
        "day": day,
    }


@dataclass(frozen=True)
class SeriesFigure:
    """The figure of a series on another page."""

    address: str  # of its own page
    wide: Figure
    narrow: Figure


def figure_of(session: Session, target: Target, device: str, provider: str, case: str) -> SeriesFigure | None:
    """The figure of the last months of a series; None where nothing was measured."""
    at = TrendAddress(target.name, device, provider, case)
    try:
        series = _series(session, target, at)
    except NotFound:
        return None
    sota, behind = reading.limit_to_sota(session, target, at.device, at.case)
    found = trend_of(_window(at, series.points), series.changes, metric_of(case), Unit.AMOUNT)
    marks = _marks(series, found.shown, SERVICE)
    name = f"{case} over the mainline"
    wide, narrow = (
        trends.draw(found, text, width=width, marks=marks, behind=behind, sota=sota)
        for width, text in ((_WIDE, f"{name}; its trend has the same numbers"), (_NARROW, name))
    )
    return SeriesFigure(at.to(), wide, narrow)


def _units(metric: Metric) -> list[tuple[Unit, str]]:
    if metric.counts:
        return [(Unit.AMOUNT, "count")]
    amount = "memory" if metric is Metric.MEMORY else "time"
    units = [(Unit.AMOUNT, amount), (Unit.RATIO, "× SOTA")]
    if metric is Metric.KERNEL:
        units[1:1] = [(Unit.GB_S, "GB/s"), (Unit.CEILING, "% of ceiling")]
    return units


def _other(session: Session, target: Target, named: str, at: TrendAddress, window: Sequence[Point]) -> Sequence[Shown]:
    """Another series in the same unit and window.  Raises NotFound, and BadInput for another metric."""
    device, provider, case = parts(named)
    if metric_of(case) is not metric_of(at.case):
        raise BadInput(f"{case} and {at.case} are measured in different units; show them on pages of their own.")
    points, _ = _points(session, target, at, (device, provider, case))
    if not points:
        raise NotFound("series", f"{named} at {target.name}", "Take it out of the address.")
    low, high = (window[0].ordinal, window[-1].ordinal) if window else (0, 0)
    within = [point for point in points if low <= point.ordinal <= high]
    ceilings = reading.copies(session, within) if at.unit is Unit.CEILING and within else {}
    return trend_of(within, (), metric_of(case), at.unit, ceilings).shown


def _before(found: Trend, change: SeriesChange | None) -> float | None:
    """The level before a change, in the unit of the axis."""
    if change is None:
        return None
    ahead = [level for level in found.levels if level.points[0].point.ordinal < change.ordinal]
    return ahead[-1].value if ahead else None


def _later(shown: Sequence[Shown], everything: Sequence[Shown]) -> Shown | None:
    """The newest revision, where the window ends before it."""
    return everything[-1] if shown and everything and shown[-1].at < everything[-1].at else None


def _is_within(change: SeriesChange, shown: Sequence[Shown]) -> bool:
    return bool(shown) and shown[0].point.ordinal <= change.ordinal <= shown[-1].point.ordinal


def _marks(series: SeriesHistory, shown: Sequence[Shown], links: ServiceLinks) -> list[Mark]:
    """Changes of the stack, and incidents, as they concern this series."""
    moved = [
        Mark(one.at, one.point.stack_changes[0], "; ".join(one.point.stack_changes), "stack")
        for one in shown
        if one.point.stack_changes
    ]
    by_ordinal = {one.point.ordinal: one.at for one in shown}
    opened = [
        Mark(
            by_ordinal[one.run.revision.ordinal],
            f"regression {one.row.id}",
            f"{one.row.state.value}: {one.row.cause_text or 'cause not known'}",
            "incident",
            links.regression(one.row.id),
        )
        for one in series.regressions
        if one.run.revision.ordinal in by_ordinal
    ]
    return [*moved, *opened]


def _between(chosen: Mapping[str, Shown]) -> tuple[float, int] | None:
    """The ratio of B to A, and how many revisions are between them."""
    if len(chosen) < 2 or not (chosen["A"].value and chosen["B"].value):
        return None
    first, second = chosen["A"], chosen["B"]
    return second.value / first.value, abs(second.point.ordinal - first.point.ordinal)


def _search(session: Session, target: Target, at: TrendAddress) -> list[str]:
    """The series that have every word of the search in their device, provider or case; those of this device first."""
    words = at.query.lower().split()
    triples = sorted(queries.measured_series(session, target), key=lambda triple: triple[0] != at.device)
    named = [choice(*triple) for triple in triples]
    return [one for one in named if all(word in one.lower() for word in words)][:_FOUND]


def _hover(found: Trend) -> str:
    """What the script needs to name the points: x in px of the wide figure, value, revision, run, day."""
    x = trends.across(found, _WIDE)
    rows = [
        [round(x(one.at), 1), found.said(one.value), one.point.revision[:12], one.point.run_id, day(one.at)]
        for one in found.shown[-_NAMED:]
    ]
    return json.dumps(rows, separators=(",", ":"))


@router.get("/targets/{name}/trend/revisions")
def revisions(
    name: str,
    session: Reading,
    device: _Text,
    provider: _Text,
    case: _Text,
    a: _Text = "",
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
) -> str:
    """Show the revisions of a series as a table, the newest first."""
    target = target_named(session, name)
    at = TrendAddress(target.name, device, provider, case, days="all", a=a)
    older = None if before is None else queries.MainlinePlaces(Revision.ordinal < before)
    points = queries.series(session, target, case, provider, device, places=older, limit=_ROWS + 1)
    if not points and before is None:
        raise _no_series(target, at)
    series = _with_changes(session, target, at, points)
    rows = series.points[::-1]
    return page(
        "trend_revisions.html",
        target=target,
        at=at,
        points=rows[:_ROWS],
        next=rows[_ROWS - 1].ordinal if len(rows) > _ROWS else None,
        changes={change.ordinal: change for change in series.changes},
        now=clock(session),
    )


@router.get("/targets/{name}/trend/neighbours")
def neighbours(name: str, session: Reading, device: _Text, provider: _Text, case: _Text) -> str:
    """Show the cases that are the most like this one, each with its own range: did they move too?"""
    target = target_named(session, name)
    at = TrendAddress(target.name, device, provider, case)
    alike = sorted(
        (one for one in queries.measured_series(session, target) if one != (device, provider, case)),
        key=lambda one: _distance(one, (device, provider, case)),
    )
    shown = []
    for other in alike[:_NEIGHBOURS]:
        there = TrendAddress(target.name, *other)
        places = queries.newest_places(session, target, _RECENT_OF_NEIGHBOURS)
        series = _series(session, target, there, _at(session, target, other, places))
        found = trend_of(_window(there, series.points), series.changes, metric_of(other[2]), Unit.AMOUNT)
        shown.append((there, found, trends.sparkline(found), headline(found, metric_of(other[2]))))
    return page("trend_neighbours.html", target=target, at=at, neighbours=shown)


def _distance(one: tuple[str, str, str], other: tuple[str, str, str]) -> tuple[float, ...]:
    """How unlike two series are: metric, op and direction, device, provider, dtype, then shape in powers of two."""
    here, there = _parsed(one[2]), _parsed(other[2])
    differs = (metric_of(one[2]) != metric_of(other[2]), one[0] != other[0], one[1] != other[1])
    if here is None or there is None:
        return (*differs, 9.0, 9.0, 9.0)
    shape = abs(math.log2(here.rows / there.rows)) + abs(math.log2(here.cols / there.cols))
    op = (here.op != there.op) + (here.direction != there.direction)
    return (differs[0], op + differs[1] + differs[2], shape, here.dtype != there.dtype)


def _parsed(case: str) -> Case | None:
    """A case; None for one that another version wrote."""
    try:
        return Case.parse(case)
    except ValueError:
        return None
