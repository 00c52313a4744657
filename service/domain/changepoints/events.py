"""Group the changes of many series into events, each of which is one incident.  Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from service.domain.changepoints.matching import SAME

# A step of so many standard deviations of the noise cannot be placed one revision off: its first value would have to be
# an outlier of half as many.
EXACT_SIGMAS = 4.0
INTERVAL_ERRORS = 2 * 1.96  # standard errors in a 95 % interval

Item = TypeVar("Item")


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
    sigma = (math.log(high) - math.log(low)) / INTERVAL_ERRORS * math.sqrt(revisions) / 2
    return shift >= EXACT_SIGMAS * sigma


def by_event(items: Iterable[Item], sighting: Callable[[Item], Sighting]) -> list[list[Item]]:
    """Group items by event; the oldest event comes first.

    Exact steps are one event if the same revision may have caused them, and leaks if they overlap.  Another step may
    be up to `SAME` places off, so it joins the nearest event that is in reach.
    """
    pairs = sorted(((one, sighting(one)) for one in items), key=lambda pair: (pair[1].last, pair[1].before))
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
    groups += _chained(alone, lambda one, other: abs(one.last - other.last) <= SAME)
    groups.sort(key=lambda group: min(at.last for _, at in group))
    return [[one for one, _ in group] for group in groups]


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
