"""What figures that the server draws share: scales, ticks at round numbers, and the paths of SVG.  Pure.

Positions are in px of the figure's `viewBox`, values in the unit of their axis.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain

_STEPS = (1.0, 2.0, 5.0, 10.0)
_HOUR_S, _DAY_S = 3600.0, 86_400.0
_TIME_STEPS_S = (
    *(_HOUR_S * hours for hours in (1, 3, 6, 12)),
    *(_DAY_S * days for days in (1, 2, 7, 14)),
)
_MONTH_STEPS = (1, 2, 3, 6, 12, 24, 60, 120)


@dataclass(frozen=True)
class Scale:
    """Maps the values `low` to `high` to the positions `start` to `end`, on a linear or a logarithmic axis.

    `end` may be before `start`, as on the y axis of an SVG.  Values beyond the ends have positions beyond the ends.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._ends
        at = math.log(value) if self.log else value
        share = (at - low) / (high - low) if high != low else 0.5
        return self.start + share * (self.end - self.start)

    @cached_property
    def _ends(self) -> tuple[float, float]:
        return (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)

    def within(self, value: float) -> float:
        """The position of a value, at one of the ends if it is beyond."""
        return self(min(max(value, self.low), self.high))

    @property
    def ticks(self) -> list[float]:
        """Round values on the axis, about one for 45 px."""
        most = max(2, int(abs(self.end - self.start) / 45))
        return log_ticks(self.low, self.high, most) if self.log else ticks(self.low, self.high, most)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between `low` and `high`, at most `most` of them."""
    if not high > low:
        return [low]
    step = _step((high - low) / max(most, 1))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if last - first + 1 > most:
        step = _step(step * 1.01)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [_rounded(n * step, step) for n in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values on a logarithmic axis; on one of less than a factor of 3 they are as on a linear one."""
    if high / low < 3:
        return ticks(low, high, most)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for digits in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        found = [digit * 10.0**power for power in powers for digit in digits]
        found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]


def time_ticks(low: float, high: float, most: int = 8) -> list[tuple[float, str]]:
    """Moments on a date axis in UTC, in seconds since the epoch, with their labels: `14:00`, `21 Nov`, `Nov 2026`."""
    length = max(high - low, 1.0)
    for step_s in _TIME_STEPS_S:
        if length / step_s <= most:
            return _even_times(low, high, step_s)
    first, last = datetime.fromtimestamp(low, UTC), datetime.fromtimestamp(high, UTC)
    months = (last.year - first.year) * 12 + last.month - first.month + 1
    every = next((step for step in _MONTH_STEPS if months / step <= most), _MONTH_STEPS[-1])
    found = []
    for month in range(first.year * 12 + first.month - 1, last.year * 12 + last.month):
        if month % every == 0:
            at = datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)
            if low <= at.timestamp() <= high:
                found.append((at.timestamp(), f"{at:%Y}" if every >= 12 else f"{at:%b %Y}"))
    return found


def _even_times(low: float, high: float, step_s: float) -> list[tuple[float, str]]:
    day = datetime.fromtimestamp(low, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    begin = day - timedelta(days=day.toordinal() % max(1, int(step_s // _DAY_S)))
    first = math.ceil((low - begin.timestamp()) / step_s)
    last = math.floor((high - begin.timestamp()) / step_s)
    moments = [begin + timedelta(seconds=n * step_s) for n in range(first, last + 1)]
    return [(at.timestamp(), f"{at.day} {at:%b}" if at.hour == 0 else f"{at:%H:%M}") for at in moments]


def line(points: Iterable[tuple[float, float]]) -> str:
    """The `d` of a path through points."""
    return f"M{_written('L%.1f %.1f', points)[1:]}"


def dots(points: Iterable[tuple[float, float]]) -> str:
    """The `d` of a path that draws a dot at each point, with `stroke-linecap: round`: one node for all of them."""
    return _written("M%.1f %.1fh0", points)


def bars(points: Iterable[tuple[float, float, float]]) -> str:
    """The `d` of a path of upright lines: x, and y at both ends."""
    return _written("M%.1f %.1fV%.1f", points)


def area(points: Sequence[tuple[float, float, float]]) -> str:
    """The `d` of the area between two lines: x, and y of the upper and of the lower one."""
    if not points:
        return ""
    there = [(x, top) for x, top, _ in points]
    back = [(x, bottom) for x, _, bottom in reversed(points)]
    return f"{line([*there, *back])}Z"


def _written(part: str, points: Iterable[tuple[float, ...]]) -> str:
    """The text of all points, each as `part`.  Formatting all at once takes a third of the time of one by one."""
    numbers = list(chain.from_iterable(points))
    text = part * (len(numbers) // part.count("%")) % tuple(numbers)
    return _NEEDLESS.sub("", text)


_NEEDLESS = re.compile(r"\.0(?!\d)")


def place(value: float) -> str:
    """A position in a path, to a tenth of a px."""
    return f"{value:.1f}".removesuffix(".0")


def _step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(digit * power for digit in _STEPS if digit * power >= least * (1 - 1e-9))


def _rounded(value: float, step: float) -> float:
    """Without the error of the multiplication: 0.30000000000000004 is 0.3."""
    return round(value, max(0, 2 - math.floor(math.log10(step))))
