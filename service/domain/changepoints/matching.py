"""Match new changes with known points, choose the range that a bisection searches, and group changes into events.

A *place* is the index of a revision among those that were measured on the device.  An event is one incident.  Pure.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from service.domain.changepoints import Change
from service.domain.changepoints.detector import DEFAULTS, LONGEST, Epoch
from service.domain.changepoints.step_test import FEW, MIN_SIDE, Step, ratio_of
from service.domain.states import PointState

SAME = 2  # largest distance, in places, between two sightings of one event in different series
MAX_REFUTED = 3  # successive scans with evidence against an open point before it is closed
HELD = 30  # places after which a faster level is accepted without an explanation
REACH = 4  # places that a bisection adds on both sides of a point: its place is uncertain, and a leak spans several
SAME_HOURS = 6.0  # within which a change of the machine shows in all targets that it measures
BROAD = 0.25  # share of the measured series that a change of the machine shifts at least
# A step of so many standard deviations of the noise cannot be placed one revision off: its first value would have to be
# an outlier of half as many.
EXACT_SIGMAS = 4.0

Item = TypeVar("Item")


@dataclass(frozen=True)
class KnownPoint:
    """A stored change point of a series."""

    id: int
    place: int
    ratio: float
    refuted: int = 0  # successive scans with evidence against it
    state: PointState = PointState.OPEN
    until: int | None = None  # the last place of a leak

    @property
    def open(self) -> bool:
        return self.state is PointState.OPEN

    @property
    def unexplained(self) -> bool:
        return self.state in (PointState.OPEN, PointState.CHECKING)

    @property
    def is_leak(self) -> bool:
        return self.until is not None


@dataclass(frozen=True)
class Refutation:
    """Evidence against a stored point: what its place shows today."""

    ratio: float  # after over before
    low: float  # 95 % interval
    high: float
    p: float  # of half of the reported step
    revisions: int  # that were compared


@dataclass(frozen=True)
class Matched:
    """The changes that a scan found in one series, matched with its stored points, which have ids."""

    new: tuple[Change, ...] = ()
    again: tuple[tuple[int, Change], ...] = ()
    parts: tuple[tuple[int, int], ...] = ()  # points that are a part of a leak, each with the point of the leak
    refuted: tuple[tuple[int, Refutation], ...] = ()
    lost: tuple[int, ...] = ()  # points without a step, so near to another change that nothing contradicts them
    kept: tuple[int, ...] = ()  # points that earlier scans contradicted, and this one could and did not


def match(points: Sequence[KnownPoint], changes: Sequence[Change], epochs: Sequence[Epoch]) -> Matched:
    """Match stored points and found changes.

    Steps are matched one to one: nearest first, nearer than the shortest level is long, in the same direction.  A leak
    is matched with a stored leak, whatever its state, or else with the first unexplained step of its course; the other
    unexplained points of its course are parts of it.  A point that was not found again is kept unless the values of
    `epochs` speak against it.
    """
    leaks = [change for change in changes if change.is_leak]
    again: dict[int, Change] = {}
    for leak in leaks:
        again |= _leak_again([point for point in points if point.is_leak and point.id not in again], leak)
    again |= _steps_again(
        [point for point in points if point.id not in again], [change for change in changes if not change.is_leak]
    )
    parts: dict[int, int] = {}
    for leak in leaks:
        first = next((point for point, change in again.items() if change is leak), None)
        inside = [point for point in points if point.id not in again and point.unexplained and _in_course(point, leak)]
        if first is None and inside:
            first = min(point.id for point in inside)
            again[first] = leak
        if first is not None:
            parts |= {point.id: first for point in inside if point.id != first and point.open}
    left = [point for point in points if point.id not in again and point.id not in parts]
    against = {point.id: evidence for point in left if (evidence := refutation(point, epochs)) is not None}
    seen = [id(change) for change in again.values()]
    return Matched(
        new=tuple(change for change in changes if id(change) not in seen),
        again=tuple(again.items()),
        parts=tuple(parts.items()),
        refuted=tuple(against.items()),
        lost=tuple(point.id for point in left if not point.is_leak and any(_is_lost(point, epoch) for epoch in epochs)),
        kept=tuple(
            point.id for point in left if point.refuted and point.id not in against and _steps_at(point, epochs)
        ),
    )


def _leak_again(points: Sequence[KnownPoint], leak: Change) -> dict[int, Change]:
    """Match a leak with a stored one: with an unexplained one if there is any, so that it is not hidden."""
    inside = [point for point in points if _in_course(point, leak)]
    if not inside:
        return {}
    return {min(inside, key=lambda point: (not point.unexplained, point.id)).id: leak}


def _steps_again(points: Sequence[KnownPoint], changes: Sequence[Change]) -> dict[int, Change]:
    near = sorted(
        (abs(point.place - change.ordinal), point.id, number)
        for point in points
        for number, change in enumerate(changes)
        if abs(point.place - change.ordinal) < MIN_SIDE and (point.ratio > 1) == (change.ratio > 1)
    )
    again: dict[int, int] = {}
    for _, point, number in near:
        if point not in again and number not in again.values():
            again[point] = number
    return {point: changes[number] for point, number in again.items()}


def _in_course(point: KnownPoint, leak: Change) -> bool:
    """Whether a point is of a leak: its beginning is uncertain, and a known leak goes on."""
    last = point.place if point.until is None else point.until
    return point.ratio > 1 and leak.before - FEW < last and point.place <= leak.course[-1].ordinal


def refutation(point: KnownPoint, epochs: Sequence[Epoch]) -> Refutation | None:
    """The evidence that the values show no step of at least half of the reported size; None if there is none.

    The place of a small step is uncertain, so every place within `SAME` must refute it.
    """
    reported = math.log(point.ratio)
    steps = _steps_at(point, epochs)
    if not steps:
        return None
    likely = max(steps, key=lambda step: step.p_of_less(reported / 2))
    if (p := likely.p_of_less(reported / 2)) > DEFAULTS.fdr:
        return None
    return Refutation(ratio_of(likely.shift), *likely.interval(), p, likely.revisions)


def _steps_at(point: KnownPoint, epochs: Sequence[Epoch]) -> list[Step]:
    """What the values show at the place of a point and around it; nothing without enough revisions on both sides."""
    return [step for epoch in epochs for step in epoch.steps_near(point.place, SAME)]


def _is_lost(point: KnownPoint, epoch: Epoch) -> bool:
    """Whether an epoch has enough revisions around a place to test a step, and another change next to it."""
    before = sum(revision.ordinal < point.place for revision in epoch.seen)
    return min(before, len(epoch.seen) - before) >= LONGEST // 3 and not epoch.steps_near(point.place, SAME)


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


@dataclass(frozen=True)
class Sighting:
    """Where an event shows in one series, as places.  It happened after `before`, and at `last` at the latest."""

    before: int
    last: int
    exact: bool = False  # no other place is possible
    leak: bool = False  # from `before` to `last`

    def overlaps(self, other: "Sighting") -> bool:
        return self.before < other.last and other.before < self.last


def is_exact(low: float, high: float, revisions: int) -> bool:
    """Whether a step with this 95 % interval, which so many revisions showed, has only one possible place.

    The noise of one revision follows from that of the means: it is largest if both sides have half of the revisions.
    """
    if low <= 0 or math.isinf(high):
        return False
    shift = abs(math.log(high) + math.log(low)) / 2
    sigma = (math.log(high) - math.log(low)) / (2 * 1.96) * math.sqrt(revisions) / 2
    return shift >= EXACT_SIGMAS * sigma


def by_event(items: Iterable[Item], sighting: Callable[[Item], Sighting]) -> list[list[Item]]:
    """Group items by event; the oldest event comes first.

    Exact steps are one event if the same revision may have caused them, and leaks if they overlap.  Another step may
    be up to `SAME` places off, so it joins the nearest event that is in reach.
    """
    pairs = sorted(((item, sighting(item)) for item in items), key=lambda pair: (pair[1].last, pair[1].before))
    exact = [pair for pair in pairs if pair[1].exact]
    leaks = [pair for pair in pairs if pair[1].leak]
    groups = [*_chained(exact, Sighting.overlaps), *_chained(leaks, Sighting.overlaps)]
    steps = [group for group in groups if not group[0][1].leak]
    alone = []
    for pair in pairs:
        if pair[1].exact or pair[1].leak:
            continue
        near = min(steps, key=lambda group: _apart(group, pair[1]), default=None)
        if near is not None and _apart(near, pair[1]) <= SAME:
            near.append(pair)
        else:
            alone.append(pair)
    groups += _chained(alone, lambda sighting, other: abs(sighting.last - other.last) <= SAME)
    groups.sort(key=lambda group: min(at.last for _, at in group))
    return [[item for item, _ in group] for group in groups]


Group = list[tuple[Item, Sighting]]


def _chained(pairs: Sequence[tuple[Item, Sighting]], alike: Callable[[Sighting, Sighting], bool]) -> list[Group[Item]]:
    groups = list[Group[Item]]()
    for pair in pairs:
        if groups and any(alike(pair[1], other) for _, other in groups[-1]):
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return groups


def _apart(group: Sequence[tuple[Item, Sighting]], sighting: Sighting) -> int:
    return min(abs(at.last - sighting.last) for _, at in group if at.exact)
