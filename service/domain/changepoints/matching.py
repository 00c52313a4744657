"""Match new changes with known change points, and choose the range that a bisection searches.  Pure.

A *place* is the index of a revision among those that were measured on the device.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from service.domain.changepoints import Change

SAME = 2  # largest distance, in places, between two sightings of the same change
MAX_MISSES = 3  # successive scans that do not find an open point before it is closed
HELD = 30  # places after which a faster level is accepted without an explanation
REACH = 4  # places that a bisection adds on both sides of a point: its place is uncertain, and a leak spans several
SAME_HOURS = 6.0  # within which a change of the machine shows in all targets that it measures
BROAD = 0.25  # share of the measured series that a change of the machine shifts at least


@dataclass(frozen=True)
class KnownPoint:
    """A stored change point of a series."""

    id: int
    place: int
    ratio: float
    missed: int = 0  # successive scans that did not find it again
    open: bool = True  # not explained yet


@dataclass(frozen=True)
class Matched:
    """The changes that a scan found in one series, matched with its stored points."""

    new: tuple[Change, ...]
    again: tuple[tuple[int, Change], ...]  # ids of stored points, each with the change that was found now
    missed: tuple[int, ...]  # ids of stored points that were not found


def match(known: Sequence[KnownPoint], found: Sequence[Change], sure: range) -> Matched:
    """Match stored points and found changes one to one: nearest first, within `SAME` places, in the same direction.

    A stored point without a match counts as missed only at the places of `sure`, where the detector can find it.
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
    """The range in which the detector can find a change, in a series measured at these places, oldest first."""
    return range(places[shortest], places[-shortest] + 1) if len(places) >= 2 * shortest else range(0)


def search_range(before: int, last: int, newest: int, neighbours: Collection[int] = ()) -> tuple[int, int]:
    """The good and the bad end, as places, of the bisection of an incident.

    `before` is the last place before the first step, and `last` the place of the last step.  If fewer than `REACH`
    places follow, these are the ends.  The range never contains another change of the same series (`neighbours`).
    """
    if newest - last < REACH:
        return before, last
    good = max([0, before - REACH, *(place for place in neighbours if place <= before)])
    bad = min([newest, last + REACH, *(place - 1 for place in neighbours if place > last)])
    return good, bad


@dataclass(frozen=True)
class PointMove:
    """Series of one target that became slower between two sessions of a worker.  Times in seconds since the epoch."""

    target: str
    worker: str | None
    before_at: float
    after_at: float
    moved: int
    measured: int

    @property
    def broad(self) -> bool:
        return self.moved >= BROAD * self.measured


def moves_of_same_machine(ours: PointMove, others: Sequence[PointMove]) -> list[PointMove]:
    """The moves of other targets on the same machine at the same time.

    Other targets have other code, so the machine is the common cause.  Both moves must be broad: two commits that each
    slow down one case on the same day are not a change of the machine.
    """
    return [other for other in others if other.target != ours.target and _same_event(ours, other)]


def _same_event(ours: PointMove, other: PointMove) -> bool:
    same_worker = ours.worker == other.worker or None in (ours.worker, other.worker)
    overlap = max(ours.before_at, other.before_at) < min(ours.after_at, other.after_at)
    same_hours = abs(ours.after_at - other.after_at) <= SAME_HOURS * 3600
    return ours.broad and other.broad and same_worker and overlap and same_hours
