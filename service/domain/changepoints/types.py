"""Values of change detection: a measured revision, a change of level, and the thresholds."""

import math
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class Seen:
    """One mainline revision of a series."""

    ordinal: int  # its place on the mainline
    value: float  # in the unit of the metric, > 0
    reference: float | None = None  # SOTA's value of the same session, for the control variate
    stack: int | None = None  # id of the stack; an epoch ends where it changes

    def __post_init__(self) -> None:
        for name, number in (("value", self.value), ("reference", self.reference)):
            if number is not None and not (math.isfinite(number) and number > 0):
                raise ValueError(
                    f"Revision {self.ordinal} has the {name} {number}, which has no logarithm: "
                    "leave out revisions without a positive, finite measurement."
                )


class Level(StrEnum):
    """How certain and how large a change is: NOTIFY lists it, BLOCK may fail a check."""

    NOTIFY = "notify"
    BLOCK = "block"


@dataclass(frozen=True)
class Part:
    """A part of a leak: so far its level had risen at this revision."""

    ordinal: int
    ratio: float  # of the level from here on over that before the leak


@dataclass(frozen=True)
class Change:
    """The level of a series changed between two revisions, and stayed; or it rose by a leak."""

    ordinal: int  # the first revision after the change
    before: int  # the last one before it
    ratio: float  # after over before, of the adjusted values; above 1 is slower, or more
    low: float  # 95 % interval of the ratio
    high: float
    level: Level
    p: float  # of the test at this place; the place was searched for, so p is too small for noise alone
    revisions: int  # that were compared
    course: tuple[Part, ...] = ()  # of a leak, which then began after `before` and passed half of it at `ordinal`

    @property
    def is_leak(self) -> bool:
        return bool(self.course)

    def covers(self, place: int, apart: int) -> bool:
        """Whether a change at `place` may be this one or a part of it."""
        if self.is_leak:
            return self.before < place <= self.course[-1].ordinal
        return abs(self.ordinal - place) <= apart


@dataclass(frozen=True)
class HistoryLimits:
    """Thresholds of a change; docs/measurements/2026-11-21-detect has the reasons for the defaults."""

    notify: float = 0.005  # smallest change of level NOTIFY, relative to the level before
    block: float = 0.02  # smallest change of level BLOCK
    alpha: float = 3e-4  # largest p of a change
    block_alpha: float = 1e-5  # largest p of level BLOCK
    penalty: float = 0.55  # of a change point in the search, times log n
    min_size: int = 5  # revisions of the shortest level

    def __post_init__(self) -> None:
        if not 0 <= self.notify <= self.block < 1:
            raise ValueError(f"notify ({self.notify}) and block ({self.block}) must satisfy 0 <= notify <= block < 1.")
        if not 0 < self.block_alpha <= self.alpha < 1:
            raise ValueError(
                f"alpha ({self.alpha}) and block_alpha ({self.block_alpha}) must satisfy 0 < block_alpha <= alpha < 1."
            )
        if self.penalty <= 0:
            raise ValueError(f"penalty ({self.penalty}) must be above 0.")
        if self.min_size < 2:
            raise ValueError(f"min_size is at least 2 revisions, not {self.min_size}.")
