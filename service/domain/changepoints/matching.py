"""What becomes of the change points of a series as data arrives, and what is asked about them.  Pure.

A *place* is the position of a revision among those that were measured on the device.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from service.domain.changepoints import Change

SAME = 2  # places by which a point may move and be the same
MISSES = 3  # looks in a row without it after which an open point is closed
HELD = 30  # places after which a faster level that nobody explains is taken as it is
REACH = 4  # places that a search begins before a point and ends after it: it may lie next to where it was seen, and a
# leak of small steps is spread over several
SAME_HOURS = 6.0  # in which a machine moves whatever is measured on it
BROAD = 0.25  # of what was measured: the share of series that a machine moves, when it does


@dataclass(frozen=True)
class Known:
    """A stored change point of a series."""

    id: int
    place: int
    ratio: float
    missed: int = 0  # looks in a row that did not find it again
    open: bool = True  # nobody has explained it yet


@dataclass(frozen=True)
class Matched:
    """What a look at one series says of its points."""

    new: tuple[Change, ...]
    again: tuple[tuple[int, Change], ...]  # stored points, and as what they were found again
    missed: tuple[int, ...]


def matched(known: Sequence[Known], found: Sequence[Change], sure: range) -> Matched:
    """Stored points and found changes, one to one: the nearest within `SAME` places that go the same way.

    A stored point is missed where it was not found although it would have been: at the places of `sure`.
    """
    near = sorted(
        (abs(one.place - change.ordinal), one.id, number)
        for one in known
        for number, change in enumerate(found)
        if abs(one.place - change.ordinal) <= SAME and (one.ratio > 1) == (change.ratio > 1)
    )
    again: dict[int, int] = {}
    for _, point, number in near:
        if point not in again and number not in again.values():
            again[point] = number
    return Matched(
        new=tuple(change for number, change in enumerate(found) if number not in again.values()),
        again=tuple((point, found[number]) for point, number in again.items()),
        missed=tuple(one.id for one in known if one.id not in again and one.place in sure),
    )


def sure_places(places: Sequence[int], shortest: int) -> range:
    """Where a change would have been found in a series measured at these places, oldest first."""
    return range(places[shortest], places[-shortest] + 1) if len(places) >= 2 * shortest else range(0)


def ends(before: int, last: int, newest: int, neighbours: Collection[int] = ()) -> tuple[int, int]:
    """The places between which the steps of an incident are searched for, the good one and the bad one.

    `before` is the latest place before the first step and `last` the place of the last one.  Where fewer than `REACH`
    places follow, it is the newest revision and its parent.  A search never reaches over another change of the same
    series, a neighbour.
    """
    if newest - last < REACH:
        return before, last
    good = max([0, before - REACH, *(place for place in neighbours if place <= before)])
    bad = min([newest, last + REACH, *(place - 1 for place in neighbours if place > last)])
    return good, bad


@dataclass(frozen=True)
class Move:
    """Series of one target that became slower between two sessions of a worker.  Seconds since the epoch."""

    target: str
    worker: str | None
    before_at: float
    after_at: float
    moved: int
    measured: int

    @property
    def broad(self) -> bool:
        return self.moved >= BROAD * self.measured


def machine(ours: Move, others: Sequence[Move]) -> list[Move]:
    """Which moves of other targets, whose code is not ours, happened to the same machine at the same time.

    A machine moves much of what runs on it.  Two commits that each slow down a case on the same day do not.
    """
    return [other for other in others if other.target != ours.target and _same_event(ours, other)]


def _same_event(ours: Move, other: Move) -> bool:
    same_worker = ours.worker == other.worker or None in (ours.worker, other.worker)
    overlap = max(ours.before_at, other.before_at) < min(ours.after_at, other.after_at)
    same_hours = abs(ours.after_at - other.after_at) <= SAME_HOURS * 3600
    return ours.broad and other.broad and same_worker and overlap and same_hours
