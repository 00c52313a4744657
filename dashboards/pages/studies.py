"""Studies: published results next to what was measured here."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dashboards.pages.rendering import page
from dashboards.study_figures import HEIGHT, LEFT, RIGHT, WIDTH, chart
from kernels.studies.catalogue import STUDIES
from service.api.access import Reading, ReadingRoute
from service.api.common import LARGEST_KEY
from service.domain.studies.sessions import Claims, control, stacks, study_named
from service.ledger.studies import sessions

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)

_Device = Annotated[str, Query(max_length=40)]
_Session = Annotated[int | None, Query(ge=1, le=LARGEST_KEY)]
WORDS = {True: "holds", False: "does not hold", None: "undecided"}
TONES = {True: "holds", False: "fails", None: "undecided"}


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
        figures=[one for figure in found.report.figures if (one := chart(figure))] if found else [],
        words=WORDS,
        tones=TONES,
        size=(WIDTH, HEIGHT, LEFT, RIGHT),
    )
