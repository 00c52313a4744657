"""Facts of compiled code over revisions as lines of steps, and the sentence that leads their page.  Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.drawing import Figure, Scale, bars, place
from service.domain.codefacts.history import FactsAt, FactsMove, FactTrack, tracks
from service.domain.states import MovedBy

WIDTH, HEIGHT = 640, 24
_NAMED = 3  # differences in the heading
BY_WORDS = {
    MovedBy.COMMIT: "the commit",
    MovedBy.STACK: "another stack",
    MovedBy.NOTHING: "no commit",
}
BY_MARKS = {MovedBy.COMMIT: "●", MovedBy.STACK: "■", MovedBy.NOTHING: "◆"}


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
    found = [_drawn(one, x) for one in tracks(history)]
    return sorted(found, key=lambda one: not one.moves)


def _drawn(track: FactTrack, x: Scale) -> DrawnTrack:
    values = [value for _, value in track.values]
    low, high = min(values), max(values)
    y = Scale(low, high, HEIGHT - 4, 4)
    first, value = track.values[0]
    path = f"M{place(x(first))} {place(y(value))}"
    path += "".join(f"H{place(x(at))}V{place(y(one))}" for at, one in track.values[1:]) or f"H{place(x(first) + 2)}"
    figure = Figure(WIDTH, HEIGHT, preserveAspectRatio="none")
    figure.path("step moving" if track.moves else "step", path)
    spread = f"{low:,g} to {high:,g}" if low != high else ""
    return DrawnTrack(track.label, figure, f"{values[-1]:,g}", spread, track.moves)


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
