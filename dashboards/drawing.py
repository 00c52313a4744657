"""What figures that the server draws share: scales, ticks at round numbers, the paths of SVG, and its elements.  Pure.

Positions are in px of the figure's `viewBox`, values in the unit of their axis.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from itertools import chain

from markupsafe import escape

from service.domain.text import DAY_S

_STEPS = (1.0, 2.0, 5.0, 10.0)
_HOUR_S = 3600.0
_TIME_STEPS_S = (
    *(_HOUR_S * hours for hours in (1, 3, 6, 12)),
    *(DAY_S * days for days in (1, 2, 7, 14)),
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
    # Without the error of the multiplication: 0.30000000000000004 is 0.3.
    return [round(n * step, max(0, 2 - math.floor(math.log10(step)))) for n in range(first, last + 1)]


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
    begin = day - timedelta(days=day.toordinal() % max(1, int(step_s // DAY_S)))
    first = math.ceil((low - begin.timestamp()) / step_s)
    last = math.floor((high - begin.timestamp()) / step_s)
    moments = [begin + timedelta(seconds=n * step_s) for n in range(first, last + 1)]
    return [(at.timestamp(), f"{at.day} {at:%b}" if at.hour == 0 else f"{at:%H:%M}") for at in moments]


class Figure:
    """An SVG that is drawn part by part, what is behind first.

    Attributes are named with `_` for `-`, and `kind` is the class; one that is empty is left out.
    """

    def __init__(self, width: float, height: float, label: str = "", /, **attributes: object) -> None:
        """With a label it is a picture of that name, else it decorates what the page says."""
        self.width, self.height = width, height
        named = {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
        self._attributes = named | attributes
        self._parts = list[str]()

    def add(self, tag: str, text: str = "", title: str = "", **attributes: object) -> None:
        inside = f"<title>{escape(title)}</title>{escape(text)}" if title else escape(text)
        self._parts.append(f"<{tag}{_attributes(attributes)}{f'>{inside}</{tag}>' if inside else '/>'}")

    def path(self, kind: str, d: str) -> None:
        self._parts.append(f'<path{_attributes({"kind": kind})} d="{d}"/>')

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "", title: str = "") -> None:
        self.add("text", text, title, x=x, y=y, text_anchor=anchor, kind=kind)

    @contextmanager
    def within(self, tag: str, title: str = "", **attributes: object) -> Iterator[None]:
        """What is added in the block is in an element."""
        self._parts.append(f"<{tag}{_attributes(attributes)}>")
        if title:
            self._parts.append(f"<title>{escape(title)}</title>")
        yield
        self._parts.append(f"</{tag}>")

    def across(self, kind: str, y: float, left: float, right: float) -> None:
        self.path(kind, f"M{place(left)} {place(y)}H{place(right)}")

    def rows(self, ticks: Iterable[tuple[float, str]], left: float, right: float, gap: float = 5) -> None:
        """Lines across at y, each with its text at the left."""
        for y, text in ticks:
            self.across("grid", y, left, right)
            self.text(left - gap, y + 4, text, anchor="end")

    def columns(self, ticks: Iterable[tuple[float, str]], y: float) -> None:
        """Texts below the figure at x."""
        for x, text in ticks:
            self.text(x, y, text, anchor="middle")

    def series(self, kind: str, parts: Sequence[Sequence[tuple[float, float]]], name: str, x: float, y: float) -> None:
        """A line with dots, in parts where values are missing, and its name at its end."""
        with self.within("g", kind=kind):
            self.path("ln", "".join(line(part) for part in parts if len(part) > 1))
            self.path("pt", dots(point for part in parts for point in part))
            self.text(x, y + 4, name)

    def interval(self, scale: Scale, low: float, value: float, high: float) -> None:
        """A line from `low` to `high` in the middle, with a dot; what is beyond the scale is at its end."""
        y = self.height / 2
        self.across("", y, scale.within(low), scale.within(high))
        self.path("o", dots([(scale.within(value), y)]))

    def __html__(self) -> str:
        head = _attributes({"viewBox": f"0 0 {place(self.width)} {place(self.height)}"} | self._attributes)
        return f"<svg{head}>{''.join(self._parts)}</svg>"


def _attributes(given: Mapping[str, object]) -> str:
    return "".join(
        [
            f' {_attribute(name)}="{place(one) if isinstance(one, float) else escape(one)}"'
            for name, one in given.items()
            if one != ""
        ]
    )


@cache
def _attribute(name: str) -> str:
    return "class" if name == "kind" else name.replace("_", "-")


def apart(places: Sequence[float], gap: float, top: float = -math.inf, bottom: float = math.inf) -> list[float]:
    """The places of names in a column, moved between `top` and `bottom` so that no two are closer than `gap`."""
    moved = list(places)
    order = sorted(range(len(moved)), key=moved.__getitem__)
    last = top - gap
    for n in order:
        last = moved[n] = max(moved[n], last + gap)
    for n in reversed(order):
        bottom = moved[n] = min(moved[n], bottom)
        bottom -= gap
    return moved


def spread_labels(labels: Iterable[tuple[float, str, int]]) -> list[tuple[float, str]]:
    """Of places, texts and numbers, those whose texts do not touch; powers of two have precedence."""
    kept: list[tuple[float, str]] = []
    for x, text, _ in sorted(labels, key=lambda one: (one[2].bit_count() != 1, one[0])):
        if all(abs(x - other) > 3.3 * (len(text) + len(taken)) + 5 for other, taken in kept):
            kept.append((x, text))
    return sorted(kept)


def line(points: Iterable[tuple[float, float]]) -> str:
    """The `d` of a path through points."""
    return f"M{_written('L%.1f %.1f', points)[1:]}"


def dots(points: Iterable[tuple[float, float]]) -> str:
    """The `d` of a path that draws a dot at each point, with `stroke-linecap: round`: one node for all of them."""
    return _written("M%.1f %.1fh0", points)


def triangles(points: Iterable[tuple[float, float]], *, up: bool) -> str:
    """The `d` of a path of triangles, each with its middle at a point."""
    half, part = (3.8, "M%.1f %.1fl4.4 -7.6l4.4 7.6z") if up else (-3.8, "M%.1f %.1fl4.4 7.6l4.4 -7.6z")
    return _written(part, ((x - 4.4, y + half) for x, y in points))


def rings(points: Iterable[tuple[float, float]]) -> str:
    """The `d` of a path of small circles, which are hollow without a fill."""
    return _written("M%.1f %.1fa2.2 2.2 0 1 0 4.4 0a2.2 2.2 0 1 0 -4.4 0", ((x - 2.2, y) for x, y in points))


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


def micros(value: float | None) -> str:
    """Format a time in µs without its unit, for a column: `7.31`, `69.1`, `2,285`."""
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 999.95 else f"{value:,.0f}"


def _step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(digit * power for digit in _STEPS if digit * power >= least * (1 - 1e-9))
