"""The facts of one case over the mainline: registers, spills, occupancy and configurations, and what moved them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Query
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from dashboards.drawing import Figure, Scale, bars, place
from dashboards.rendering import page, page_router
from service.api.access import Reading
from service.db.engine import clock
from service.db.models import Target
from service.domain.codefacts.history import FactsAt, FactsMove, configuration, configuration_spans, moves, tracks
from service.domain.states import MovedBy
from service.errors import NotFound
from service.ledger.reading import histories, queries
from service.ledger.targets import target_named
from service.reports.views import Drift

router = page_router()

_Text = Annotated[str, Query(max_length=300)]
WIDTH, HEIGHT = 640, 24
_NAMED = 3  # differences in the heading
BY_WORDS = {
    MovedBy.COMMIT: "the commit",
    MovedBy.STACK: "another stack",
    MovedBy.NOTHING: "no commit",
}
BY_MARKS = {MovedBy.COMMIT: "●", MovedBy.STACK: "■", MovedBy.NOTHING: "◆"}


def address(target: str, device: str, provider: str, case: str) -> str:
    """The URL of the page of a case."""
    query = urlencode({"device": device, "provider": provider, "case": case})
    return f"/targets/{quote(target)}/facts?{query}"


@router.get("/targets/{name}/facts", response_model=None)
def facts(name: str, session: Reading, device: _Text = "", provider: _Text = "", case: _Text = "") -> Response | str:
    """Show the facts of one case.  Without a case, go to the one whose configuration drifted last, else to any."""
    target = target_named(session, name)
    drifts = histories.drifts(session, target)
    if not case:
        return RedirectResponse(address(target.name, *_chosen(session, target, drifts)), 303)
    found = histories.facts_over(session, target, device, provider, case)
    if not found:
        named = f"{case} of {provider or 'no provider'} on {device or 'no device'}"
        raise NotFound("facts", f"of {named} at {target.name}", "Search for the case on the trend of its target.")
    history = [at for _, at in found]
    moved = moves(history)
    verdict, about = headline(history, moved)
    return page(
        "facts.html",
        now=clock(session),
        target=target,
        device=device,
        provider=provider,
        case=case,
        verdict=verdict,
        about=about,
        configuration=configuration(history[-1].head),
        history=history,
        spans=configuration_spans(history)[::-1],
        points={point.run_id: point for point, _ in found},
        tracks=drawn(history),
        events=event_marks(history, moved),
        moved=moved[::-1],
        drifts=drifts,
        address=address,
        by_words=BY_WORDS,
        by_marks=BY_MARKS,
        MovedBy=MovedBy,
    )


def _chosen(session: Session, target: Target, drifts: list[Drift]) -> tuple[str, str, str]:
    if drifts:
        return drifts[0].device, drifts[0].provider, drifts[0].case
    measured = queries.measured_series(session, target)
    if not measured:
        raise NotFound("facts", f"of {target.name}: nothing was measured on its mainline yet")
    return measured[0]


def choice(device: str, provider: str, case: str) -> str:
    """Name a series as the list of a target's page and its URL do."""
    return f"{device} {provider} {case}"


def parts(chosen: str) -> tuple[str, str, str]:
    """Split the name of a series into device, provider and case; missing ones are empty."""
    device, provider, case = (*chosen.split(" "), "", "")[:3]
    return device, provider, case


@dataclass(frozen=True)
class DrawnTrack:
    """One fact in a row: its steps, its value now, and the range of its values."""

    label: str
    steps: Figure
    now: str
    before: str  # the range, where it moved
    moves: int


def drawn(history: Sequence[FactsAt]) -> list[DrawnTrack]:
    """Each fact as a line of steps, in `WIDTH` x `HEIGHT` px; those that moved first."""
    x = Scale(0, max(1, len(history) - 1), 2, WIDTH - 2)
    found = []
    for track in tracks(history):
        (first, value), *steps = track.values
        low, high = min(value for _, value in track.values), max(value for _, value in track.values)
        y = Scale(low, high, HEIGHT - 4, 4)
        path = f"M{place(x(first))} {place(y(value))}"
        path += "".join(f"H{place(x(at))}V{place(y(one))}" for at, one in steps) or f"H{place(x(first) + 2)}"
        figure = Figure(WIDTH, HEIGHT, preserveAspectRatio="none")
        figure.path("step moving" if track.moves else "step", path)
        spread = f"{low:,g} to {high:,g}" if low != high else ""
        found.append(DrawnTrack(track.label, figure, f"{track.values[-1][1]:,g}", spread, track.moves))
    return sorted(found, key=lambda one: not one.moves)


def event_marks(history: Sequence[FactsAt], moved: Sequence[FactsMove]) -> Figure | None:
    """The places of what moved, as upright lines by their cause."""
    x = Scale(0, max(1, len(history) - 1), 2, WIDTH - 2)
    place_of = {one.run_id: n for n, one in enumerate(history)}
    name = f"{len(moved)} changes; the table below lists them"
    figure = Figure(WIDTH, HEIGHT, name, preserveAspectRatio="none")
    for by in MovedBy:
        lines = [(x(place_of[one.at.run_id]), 3.0, HEIGHT - 3.0) for one in moved if one.by is by]
        figure.path(f"moved-by {by.value}", bars(lines))
    return figure if moved else None


def headline(history: Sequence[FactsAt], moved: Sequence[FactsMove]) -> tuple[str, FactsMove | None]:
    """What to know first, and the move that it is about."""
    if not history:
        return "No facts yet", None
    if not moved:
        revisions = f"{len(history)} revision{'s' * (len(history) != 1)}"
        return (f"The same code over {revisions}" if len(history) > 1 else "Compiled once"), None
    last = moved[-1]
    more = len(last.differences) - _NAMED
    text = ", ".join(last.differences[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    if last.by is MovedBy.NOTHING:
        return f"Without a commit: {text}", last
    return f"{text[:1].upper()}{text[1:]}", last
