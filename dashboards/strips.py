"""The small figures of lists: revisions as a strip, a sparkline, and nights of equal code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboards.drawing import Scale, bars, dots, line, place
from service.domain.health.strips import REVISIONS, Mark
from service.ledger.bisections.steps import StepMark
from service.reports.health.facts import EqualCodeSum

STEP = 7.0  # px a revision
MIDDLE = 10.0
HEIGHT = 20.0
SPARK_WIDTH, SPARK_HEIGHT = 84.0, 20.0
NIGHT_STEP, NIGHT_HEIGHT = 11.0, 52.0


def strip(marks: Sequence[Mark]) -> dict[str, str]:
    """The paths of a strip by class, the newest revision at the right."""
    first = (REVISIONS - len(marks)) * STEP + STEP / 2
    where = [(first + n * STEP, mark) for n, mark in enumerate(marks)]
    at = {mark: [x for x, each in where if each is mark] for mark in Mark}
    paths = {
        "steady": line_marks(at[Mark.STEADY]),
        "slower": bars((x, MIDDLE + 1, MIDDLE - 8) for x in at[Mark.SLOWER]),
        "faster": bars((x, MIDDLE - 1, MIDDLE + 8) for x in at[Mark.FASTER]),
        "failed": _crosses(at[Mark.FAILED]),
        "unmeasured": dots((x, MIDDLE) for x in at[Mark.UNMEASURED]),
    }
    return {name: path for name, path in paths.items() if path}


def line_marks(places: Sequence[float]) -> str:
    """Dashes of steady revisions."""
    return "".join(f"M{place(x - 2.3)} {place(MIDDLE)}h4.6" for x in places)


def search_strip(revisions: int, marks: Mapping[int, StepMark], width: float) -> dict[str, str]:
    """The paths of a bisection by class: its revisions from good to bad, and those that were measured."""
    across = Scale(0, max(1, revisions - 1), 4, width - 4)
    at = {mark: [across(n) for n, each in sorted(marks.items()) if each is mark] for mark in StepMark}
    paths = {
        "rest": f"M4 {place(MIDDLE)}H{place(width - 4)}" if revisions else "",
        "slower": bars((x, MIDDLE + 1, MIDDLE - 8) for x in at[StepMark.SLOWER]),
        "good": dots((x, MIDDLE) for x in at[StepMark.GOOD]),
        "failed": _crosses(at[StepMark.FAILED]),
        "pending": dots((x, MIDDLE) for x in at[StepMark.PENDING]),
    }
    return {name: path for name, path in paths.items() if path}


def _crosses(places: Sequence[float]) -> str:
    return "".join(f"M{place(x - 2.5)} {MIDDLE - 2.5}l5 5m0-5l-5 5" for x in places)


@dataclass(frozen=True)
class MiniTrend:
    """A line with its own range, and its last point."""

    path: str
    x: float
    y: float


def sparkline(points: Sequence[float | None]) -> MiniTrend | None:
    """The line through the points that are known; None where there are fewer than two."""
    known = [(n, value) for n, value in enumerate(points) if value is not None]
    if len(known) < 2:
        return None
    low, high = min(value for _, value in known), max(value for _, value in known)
    if high - low < 0.01 * high:  # noise must not look like a change
        low, high = (low + high) / 2 - 0.005 * high, (low + high) / 2 + 0.005 * high
    across = Scale(len(points) - REVISIONS, len(points) - 1, 2.0, SPARK_WIDTH - 4)
    up = Scale(low, high, SPARK_HEIGHT - 3, 3.0)
    path = line((across(n), up(value)) for n, value in known)
    last, value = known[-1]
    return MiniTrend(path, round(across(last), 1), round(up(value), 1))


@dataclass(frozen=True)
class Nights:
    """How much equal code differed by night: bars around zero, from minus to plus their spread."""

    bars: str
    alarms: str  # nights with false alarms
    width: float
    top: float  # the spread at the upper edge
    known: int


def nights(found: Sequence[EqualCodeSum]) -> Nights | None:
    """The figure; None where nothing was compared."""
    spreads = [(n, one.spread) for n, one in enumerate(found) if one.spread is not None]
    if not spreads:
        return None
    top = max(spread for _, spread in spreads) or 0.001
    up = Scale(-top, top, NIGHT_HEIGHT - 6, 6.0)
    drawn = bars((_x(n), up(spread) - 0.4, up(-spread) + 0.4) for n, spread in spreads)
    alarms = dots((_x(n), 3.0) for n, one in enumerate(found) if one.alarmed)
    return Nights(drawn, alarms, len(found) * NIGHT_STEP, top, len(spreads))


def _x(night: int) -> float:
    return night * NIGHT_STEP + NIGHT_STEP / 2
