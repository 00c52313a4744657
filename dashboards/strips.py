"""The small figures of lists: revisions as a strip, a sparkline, and nights of equal code."""

from collections.abc import Mapping, Sequence

from dashboards.drawing import Figure, Scale, bars, dots, line, place, rings
from service.domain.health.overview import REVISIONS, Mark
from service.ledger.bisections.steps import StepMark
from service.reports.health.facts import EqualCodeSum

STEP = 7.0  # px a revision
MIDDLE = 10.0
HEIGHT = 20.0
SPARK_WIDTH = 84.0
NIGHT_STEP, NIGHT_HEIGHT = 11.0, 52.0


def strip(marks: Sequence[Mark], label: str) -> Figure:
    """A strip of revisions, the newest at the right."""
    first = (REVISIONS - len(marks)) * STEP + STEP / 2
    where = [(first + n * STEP, mark) for n, mark in enumerate(marks)]
    at = {mark: [x for x, each in where if each is mark] for mark in Mark}
    paths = {
        "steady": "".join(f"M{place(x - 2.3)} {place(MIDDLE)}h4.6" for x in at[Mark.STEADY]),
        "slower": bars((x, MIDDLE + 1, MIDDLE - 8) for x in at[Mark.SLOWER]),
        "faster": bars((x, MIDDLE - 1, MIDDLE + 8) for x in at[Mark.FASTER]),
        "failed": _crosses(at[Mark.FAILED]),
        "unmeasured": dots((x, MIDDLE) for x in at[Mark.UNMEASURED]),
    }
    return _strip(REVISIONS * STEP, label, paths)


def search_strip(revisions: int, marks: Mapping[int, StepMark], width: float) -> Figure:
    """A strip of a bisection: its revisions from good to bad, and those that were measured."""
    across = Scale(0, max(1, revisions - 1), 4, width - 4)
    at = {mark: [across(n) for n, each in sorted(marks.items()) if each is mark] for mark in StepMark}
    paths = {
        "rest": f"M4 {place(MIDDLE)}H{place(width - 4)}" if revisions else "",
        "slower": bars((x, MIDDLE + 1, MIDDLE - 8) for x in at[StepMark.SLOWER]),
        "good": dots((x, MIDDLE) for x in at[StepMark.GOOD]),
        "failed": _crosses(at[StepMark.FAILED]),
        "pending": rings((x, MIDDLE) for x in at[StepMark.PENDING]),
    }
    return _strip(width, f"{revisions} revisions, {len(marks)} of them measured", paths)


def _strip(width: float, label: str, paths: Mapping[str, str]) -> Figure:
    figure = Figure(width, HEIGHT, label, width=width, height=HEIGHT)
    for kind, path in paths.items():
        if path:
            figure.path(kind, path)
    return figure


def _crosses(places: Sequence[float]) -> str:
    return "".join(f"M{place(x - 2.5)} {MIDDLE - 2.5}l5 5m0-5l-5 5" for x in places)


def sparkline(points: Sequence[float | None]) -> Figure | None:
    """The line through the points that are known, with its own range; None where there are fewer than two."""
    known = [(n, value) for n, value in enumerate(points) if value is not None]
    if len(known) < 2:
        return None
    low, high = min(value for _, value in known), max(value for _, value in known)
    if high - low < 0.01 * high:  # noise must not look like a change
        low, high = (low + high) / 2 - 0.005 * high, (low + high) / 2 + 0.005 * high
    across = Scale(len(points) - REVISIONS, len(points) - 1, 2.0, SPARK_WIDTH - 4)
    up = Scale(low, high, HEIGHT - 3, 3.0)
    figure = Figure(SPARK_WIDTH, HEIGHT, kind="spark", width=SPARK_WIDTH, height=HEIGHT)
    figure.path("", line((across(n), up(value)) for n, value in known))
    last, value = known[-1]
    figure.add("circle", cx=across(last), cy=up(value), r=2)
    return figure


STAKE_WIDTH, STAKE_HEIGHT = 110.0, 12.0


def stake_bar(share: float, stake_us: float) -> Figure:
    """A share of the most time at stake as a bar: from the left where it is slower, from the right where faster."""
    slower = stake_us > 0
    kind = f"stake {'slower' if slower else 'faster'}"
    figure = Figure(STAKE_WIDTH, STAKE_HEIGHT, kind=kind, width=STAKE_WIDTH, height=STAKE_HEIGHT)
    width = max(1.0, share * STAKE_WIDTH)
    figure.add("rect", x=0.0 if slower else STAKE_WIDTH - width, y=1, width=width, height=STAKE_HEIGHT - 2)
    return figure


def nights(found: Sequence[EqualCodeSum], days: int) -> Figure | None:
    """How much equal code differed by night: bars around zero, with their spread; None where nothing was compared."""
    spreads = [(n, one.spread) for n, one in enumerate(found) if one.spread is not None]
    if not spreads:
        return None
    top = max(spread for _, spread in spreads) or 0.001
    up = Scale(-top, top, NIGHT_HEIGHT - 6, 6.0)
    width, most = len(found) * NIGHT_STEP, f"{top * 100:.2f}"
    name = f"How much equal code differed on {len(spreads)} of {days} days: at most {most} per cent"
    figure = Figure(width + 52, 66, name, kind="nights")
    figure.add("rect", kind="band", x=0, y=6, width=width, height=40)
    figure.across("axis", 26, 0, width)
    figure.path("night", bars((_x(n), up(spread) - 0.4, up(-spread) + 0.4) for n, spread in spreads))
    figure.path("alarm", dots((_x(n), 3.0) for n, one in enumerate(found) if one.alarmed))
    figure.text(width + 4, 12, f"+{most} %")
    figure.text(width + 4, 48, f"−{most} %")
    figure.text(0, 62, f"{days} days ago")
    figure.text(width, 62, "today", anchor="end")
    return figure


def _x(night: int) -> float:
    return night * NIGHT_STEP + NIGHT_STEP / 2
