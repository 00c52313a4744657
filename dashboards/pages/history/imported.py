"""Measurements made elsewhere: the series of a target, and the history of one.  No verdict and no gate uses them."""

from typing import Annotated

from fastapi import Query

from dashboards.drawing import Figure, Scale, bars, dots, place
from dashboards.rendering import page, page_router
from service.api.access import Reading
from service.db.engine import clock
from service.db.models import Target
from service.domain.imports.values import MISSING_WORDS
from service.domain.states import Better
from service.errors import NotFound
from service.ledger.ingest.imported import MAX_POINTS, MAX_SERIES, imported_items, imported_pairs, imported_points
from service.ledger.targets import target_named
from service.reports.imported import ImportedKey, ImportedSeries, imported_amount, imported_series

router = page_router()

_Revision = Annotated[str, Query(max_length=64)]
_Text = Annotated[str, Query(max_length=300)]
_WIDE, _NARROW = 960, 360  # px
_TICKS = 6  # revisions that are named below a figure
_TABLE = 200  # measurements in the table of a series


def address(target: Target, device: str, provider: str, case: str) -> str:
    """The URL of the page of a series."""
    return ImportedKey(target.id, target.name, device, provider, case).path


@router.get("/targets/{name}/imported", response_model=None)
def imported(name: str, session: Reading, q: _Text = "") -> str:
    """List the series of a target that were measured elsewhere, those whose name has `q`."""
    target = target_named(session, name)
    items, more = imported_items(session, target, q.strip())
    return page(
        "imported.html",
        now=clock(session),
        target=target,
        items=items,
        more=more,
        most=MAX_SERIES,
        query=q.strip(),
        address=address,
        amount=imported_amount,
        missing_words=MISSING_WORDS,
    )


@router.get("/targets/{name}/imported/series", response_model=None)
def imported_history(name: str, session: Reading, device: _Text, provider: _Text, case: _Text) -> str:
    """Show what was sent of one series, with the levels that its history has."""
    target = target_named(session, name)
    points = imported_points(session, target, device=device, provider=provider, case=case)
    if not points:
        raise NotFound("measurement", f"of {case} by {provider} on {device} that was made elsewhere")
    series = imported_series(points)
    label = f"{case} by {provider}; the table below has the same numbers"
    drawn = [figure_of(series, width, label) for width in (_WIDE, _NARROW)] if series.revisions else []
    return page(
        "imported_series.html",
        now=clock(session),
        target=target,
        device=device,
        provider=provider,
        case=case,
        points=points[: -_TABLE - 1 : -1],
        total=len(points),
        most=MAX_POINTS,
        series=series,
        figures=drawn,
        larger=series.better is Better.LARGER,
        amount=imported_amount,
        missing_words=MISSING_WORDS,
    )


@router.get("/targets/{name}/imported/compare", response_model=None)
def imported_compare(name: str, session: Reading, base: _Revision = "", head: _Revision = "") -> str:
    """Compare what was sent of two revisions, series by series."""
    target = target_named(session, name)
    asked = bool(base and head)
    pairs = imported_pairs(session, target, base, head) if asked else ()
    return page(
        "imported_compare.html",
        target=target,
        base=base,
        head=head,
        asked=asked,
        pairs=pairs[:MAX_SERIES],
        total=len(pairs),
        address=address,
        amount=imported_amount,
        missing_words=MISSING_WORDS,
    )


def figure_of(series: ImportedSeries, width: int, label: str) -> Figure:
    """Dots for revisions at even distances, lines for levels, and an upright line at each change."""
    values = [revision.value for revision in series.revisions]
    low, high = min(values), max(values)
    margin = (high - low) * 0.08 or high * 0.05 or 1.0
    x = Scale(-0.5, len(values) - 0.5, 84, width - 12)
    y = Scale(max(0.0, low - margin), high + margin, 190, 12)
    figure = Figure(width, 216, label, width="100%")
    figure.rows([(y(value), imported_amount(value, series.unit)) for value in y.ticks], 84, width - 12)
    every = -(-len(values) // (_TICKS if width == _WIDE else _TICKS // 2))
    figure.columns(((x(at), series.revisions[at].revision[:8]) for at in range(every // 2, len(values), every)), 208)
    for change in series.changes:
        kind = "slower" if series.worse(change) else "faster"
        figure.path(f"change {kind}", bars([(x(change.ordinal - 0.5), 8, 190)]))
    ends = [(x(level.first - 0.4), y(level.value), x(level.last + 0.4)) for level in series.levels]
    figure.path("level", "".join(f"M{place(start)} {place(at)}H{place(end)}" for start, at, end in ends))
    figure.path("dot", dots((x(at), y(value)) for at, value in enumerate(values)))
    return figure
