"""Studies: published results next to what was measured here."""

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

from fastapi import Query

from dashboards.drawing import Figure, Scale, apart, spread_labels, ticks
from dashboards.rendering import page, page_router
from kernels.studies.catalogue import STUDIES
from kernels.studies.study import StudyFigure
from service.api.access import Reading
from service.api.common import LARGEST_KEY
from service.domain.studies.sessions import Claims, control, stacks, study_named
from service.ledger.studies import sessions
from service.reports.charts.board import short_number

router = page_router()

_Device = Annotated[str, Query(max_length=40)]
_Session = Annotated[int | None, Query(ge=1, le=LARGEST_KEY)]
WORDS = {True: "holds", False: "does not hold", None: "undecided"}
TONES = {True: "holds", False: "fails", None: "undecided"}
LEFT, RIGHT, TOP, BOTTOM = 48.0, 352.0, 10.0, 222.0
_LABEL = 13.0  # px between names
_WIDE = 0.5  # share of the largest value, above which the y axis need not begin at 0


@router.get("/studies")
def studies(session: Reading) -> str:
    """List the studies, with the session of each that is shown first."""
    every = sessions.listed(session)
    lines = []
    for study in STUDIES.values():
        own = [one for one in every if one.row.study == study.name]
        shown = sessions.preferred(own)
        lines.append((study, shown, len(own), sessions.claims(session, shown) if shown else None))
    return page("studies.html", lines=lines)


@router.get("/studies/{name}")
def one_study(name: str, reading: Reading, device: _Device = "", session: _Session = None) -> str:
    """Show a study: claims, figures and tables of one of its sessions."""
    study = study_named(name)
    views = sessions.listed(reading, name)
    on_device = [one for one in views if not device or one.row.device == device]
    view = sessions.one(reading, session, name) if session else sessions.preferred(on_device)
    found = sessions.evaluated(reading, view) if view else None
    return page(
        "study.html",
        study=study,
        device=device,
        views=views,
        view=view,
        found=found,
        claims=Claims.of(found.report) if found else None,
        stacks=stacks(found.results) if found else [],
        control=control(found.results) if found else None,
        figures=[(one.title, figure) for one in found.report.figures if (figure := chart(one))] if found else [],
        words=WORDS,
        tones=TONES,
    )


def chart(study: StudyFigure) -> Figure | None:
    """Draw a figure; None if nothing of it was measured."""
    measured = {name: ys for name, ys in study.series.items() if any(one is not None for one in ys)}
    if not measured or not study.xs:
        return None
    x = Scale(min(study.xs), max(study.xs), LEFT, RIGHT, log=True)
    y = _y_scale([one for ys in measured.values() for one in ys if one is not None], study.limit)
    figure = Figure(500, 270, f"{study.y_label} against {study.x_label}: {', '.join(measured)}")
    figure.rows([(y(value), f"{value:,g}") for value in ticks(y.low, y.high, 5)], LEFT, RIGHT)
    texts = [short_number(int(value)) if value == int(value) else f"{value:g}" for value in study.xs]
    figure.columns(
        spread_labels([(x(value), text, int(value)) for value, text in zip(study.xs, texts, strict=True)]), 240
    )
    figure.columns([((LEFT + RIGHT) / 2, study.x_label)], 260)
    if study.limit:
        name, limit = study.limit
        figure.across("ceiling", y(limit), LEFT, RIGHT)
        figure.text(LEFT + 4, y(limit) - 4, name)
    lines = [
        [
            [(x(at), y(value)) for at, value in part if value is not None]
            for missing, part in groupby(zip(study.xs, ys, strict=False), lambda one: one[1] is None)
            if not missing
        ]
        for ys in measured.values()
    ]
    ends = apart([parts[-1][-1][1] for parts in lines], _LABEL, TOP, BOTTOM + 4)
    for n, (name, parts, end) in enumerate(zip(measured, lines, ends, strict=True)):
        figure.series(f"l{n % 8}", parts, name, RIGHT + 8, end)
    return figure


def _y_scale(values: Sequence[float], limit: tuple[str, float] | None) -> Scale:
    """From 0, unless all values are so close to each other that nothing could be seen."""
    every = [*values, limit[1]] if limit else list(values)
    low, high = min(every), max(every)
    if low < _WIDE * high:
        return Scale(min(0.0, low), high * 1.05, BOTTOM, TOP)
    margin = 0.1 * (high - low) or 0.05 * high
    return Scale(low - margin, high + margin, BOTTOM, TOP)
