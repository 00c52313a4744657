"""Badges: a label and a message with a colour, and how wide their texts are.  Pure."""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from kernels.cases import Metric
from service.domain.metrics import WORDS
from service.domain.states import OPEN_REGRESSIONS, RegressionState
from service.domain.stats import counts
from service.domain.text import DAY_S, counted, one_line
from service.domain.weekly.weeks import TIMES

LEVEL, BEHIND = 1.02, 1.05  # times SOTA up to which it is level, and from which it is clearly behind
MAX_TEXT = 60

# Advance widths of DejaVu Sans in 1/1000 em, from the space on; Verdana's differ by 3 % on average.
_ASCII = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636, 636, 636,
    636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863,
    748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635,
    615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636,
    337, 636, 838,
)  # fmt: skip
_OTHER = {"×": 838, "·": 318, "…": 1000, "–": 500, "−": 838}
_USUAL, _WIDE = 650, 1000
FONT_PX = 11.0
PADDING_PX = 6.0


class Colour(StrEnum):
    """Grounds on which white text has a contrast of at least 4.5."""

    GOOD = "#22752d"
    FAIR = "#8a6100"
    BAD = "#c22f2f"
    BEHIND = "#6a49c8"
    UNKNOWN = "#5f6b7a"


@dataclass(frozen=True)
class Badge:
    """What a badge says.  `title` is the whole sentence, for screen readers and the pointer."""

    label: str
    message: str
    colour: Colour
    title: str
    is_error: bool = False


@dataclass(frozen=True)
class Placed:
    """A text at its place in the picture, in px: where its half begins, how wide that is, and how wide the text is."""

    text: str
    x: float
    width: float
    text_width: float


@dataclass(frozen=True)
class StatusFacts:
    """What is open on the mainline of a target, and what became of its newest measured revision."""

    target: str
    device: str | None
    now: float
    measured_at: float | None  # when the last run with a result ended
    by_state: Mapping[RegressionState, int] = field(default_factory=dict)
    build_failed: bool = False
    wrong: int = 0  # cases with a wrong result


@dataclass(frozen=True)
class SotaFacts:
    """The ratios to SOTA of the newest measured revision, at the cases that were chosen."""

    target: str
    device: str | None
    now: float
    measured_at: float | None = None
    revision: str | None = None
    sota: str | None = None  # the provider
    dtype: str | None = None
    op: str | None = None
    direction: str | None = None
    metric: Metric = Metric.KERNEL
    ratios: Sequence[float] = ()


UNKNOWN = Badge("kernelwatch", "not found", Colour.UNKNOWN, "kernelwatch: there is no such target", is_error=True)


def status(facts: StatusFacts, stale_days: int) -> Badge:
    """`no regressions`, `3 regressions`, `build failed`, …; grey where nothing was measured lately."""
    label = f"kernelwatch {facts.device}" if facts.device else "kernelwatch"
    where = f"{facts.target}{f' on {facts.device}' if facts.device else ''}"
    if facts.measured_at is None:
        return _badge(label, "not measured", Colour.UNKNOWN, f"{where}: nothing was measured yet")
    message, colour = _standing(facts)
    return _aged(label, message, colour, f"{where}: {message}", facts.measured_at, facts.now, stale_days)


def _standing(facts: StatusFacts) -> tuple[str, Colour]:
    accepted = facts.by_state.get(RegressionState.ACKNOWLEDGED, 0)
    still_open = sum(facts.by_state.get(state, 0) for state in OPEN_REGRESSIONS) - accepted
    if still_open:
        return counted(still_open, "regression"), Colour.BAD
    if facts.build_failed:
        return "build failed", Colour.BAD
    if facts.wrong:
        return counted(facts.wrong, "wrong result"), Colour.BAD
    if accepted:
        return f"{counted(accepted, 'regression')} accepted", Colour.FAIR
    return "no regressions", Colour.GOOD


def sota(facts: SotaFacts, stale_days: int) -> Badge:
    """`0.934 × time of quack`: the geometric mean of time over time, so that below 1 is faster than SOTA."""
    metric = None if facts.metric is Metric.KERNEL else facts.metric.value
    chosen = [one for one in (facts.device, facts.dtype, facts.op, facts.direction, metric) if one]
    label = " ".join(chosen) or "SOTA"
    where = f"{facts.target}{f' ({label})' if chosen else ''}"
    if facts.measured_at is None:
        return _badge(label, "not measured", Colour.UNKNOWN, f"{where}: nothing was measured yet")
    if not facts.ratios or facts.sota is None:
        return _badge(label, "not compared", Colour.UNKNOWN, f"{where}: SOTA was not measured at these cases")
    mean = math.exp(math.fsum(map(math.log, facts.ratios)) / len(facts.ratios))
    colour = Colour.GOOD if mean <= LEVEL else Colour.FAIR if mean <= BEHIND else Colour.BEHIND
    cases = counted(len(facts.ratios), "case")
    if facts.metric.counts:
        message = f"{math.log(mean) / counts.EFFECT:+.2g} {WORDS[facts.metric].name} over {facts.sota}"
        title = f"{where}: {message}, the mean of {cases}; below 0 is fewer"
    else:
        amount, less = ("time", "faster") if facts.metric in TIMES else ("memory", "less")
        message = f"{mean:.3f} × {amount} of {facts.sota}"
        title = f"{where}: {message}, the geometric mean of {cases}; below 1 is {less}"
    return _aged(label, message, colour, title, facts.measured_at, facts.now, stale_days)


def _aged(
    label: str, message: str, colour: Colour, title: str, measured_at: float, now: float, stale_days: int
) -> Badge:
    """Add when it was measured; what is old loses its colour."""
    on = f"{datetime.fromtimestamp(measured_at, UTC):%Y-%m-%d}"
    days = int((now - measured_at) / DAY_S)
    if days < stale_days:
        return _badge(label, message, colour, f"{title}; measured on {on}")
    old = f"{message} · {days:,} days old"
    return _badge(label, old, Colour.UNKNOWN, f"{title}; nothing was measured since {on}")


def _badge(label: str, message: str, colour: Colour, title: str) -> Badge:
    return Badge(one_line(label, MAX_TEXT), one_line(message, MAX_TEXT), colour, one_line(title))


def placed(badge: Badge) -> tuple[Placed, Placed]:
    """The two halves of a badge, side by side."""
    left = text_px(badge.label)
    right = text_px(badge.message)
    begin = left + 2 * PADDING_PX
    return Placed(badge.label, 0.0, begin, left), Placed(badge.message, begin, right + 2 * PADDING_PX, right)


def text_px(text: str) -> float:
    """How wide a text is."""
    return round(sum(map(_advance, text)) * FONT_PX / 1000, 1)


def _advance(character: str) -> int:
    if " " <= character <= "~":
        return _ASCII[ord(character) - ord(" ")]
    if character in _OTHER:
        return _OTHER[character]
    if unicodedata.combining(character):
        return 0
    return _WIDE if unicodedata.east_asian_width(character) in "WF" else _USUAL
