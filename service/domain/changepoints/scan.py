"""A look at the histories of a target on a device: which series are worth one, and what it finds.  Pure."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.domain.changepoints import Change, HistoryLimits, Seen, changes, newest
from service.domain.changepoints.matching import SAME, Known, Matched, matched, sure_places
from service.domain.changepoints.series_table import Histories, Name, drawn, limits_at, odd, restless
from service.domain.changepoints.trend import leak
from service.domain.policy.policy import Policy

SHORT = 30  # newest places that say which series are worth a close look
LONG = 120  # newest places that a close look takes in
ONE_IN = 100  # of the others has its turn all the same,
ONE_IN_OPEN = 10  # and of those with a point that nobody has explained

Points = Mapping[Name, Sequence[Known]]
Limits = Mapping[Name, HistoryLimits]


def limits_of(table: Histories, policy: Policy) -> dict[Name, HistoryLimits]:
    """What counts as a change of each series."""
    usual = table.usual().tolist()
    return {name: limits_at(name[1], value, policy) for name, value in zip(table.names, usual, strict=True)}


def worth_a_look(table: Histories, known: Points, limits: Limits, key: object) -> list[Name]:
    """The series that are out of line, and those whose turn it is.  `key` names the look: the same, the same turn."""
    notify = np.array([limits[name].notify for name in table.names])
    open_ones = np.array([any(one.open for one in known.get(name, ())) for name in table.names], dtype=bool)
    picked = restless(table, _since(known), notify) | drawn(table.names, key, ONE_IN)
    picked |= open_ones & drawn(table.names, key, ONE_IN_OPEN)
    return [table.names[row] for row in np.flatnonzero(picked)]


@dataclass(frozen=True)
class Found:
    """What a close look found of one series."""

    matched: Matched
    baseline: Mapping[int, float]  # places where SOTA moved and the series did not, with SOTA's ratio there


def closely(
    close: Histories,
    table: Histories,
    known: Points,
    limits: Limits,
    left_out: Collection[Name] = (),
    steady: Collection[Name] = (),
) -> dict[Name, Found]:
    """What the detector says of the series in `close`, and of the newest revision in those of `table`.

    Series that are `left_out` alarm nobody, and of the newest revision nothing is asked where its pair was `steady`.
    """
    now = {name: change for name, change in _slower_now(table, known, limits).items() if name not in steady}
    rows = {name: row for row, name in enumerate(close.names)}
    found = {}
    for name in [name for name in {**rows, **now} if name not in left_out]:
        seen = close.seen(rows[name]) if name in rows else []
        steps = _steps(seen, limits[name], known.get(name, ())) if seen else []
        sure = sure_places([one.ordinal for one in seen], limits[name].min_size) if seen else range(0)
        baseline = {
            one.ordinal: math.exp(reference)
            for one in steps
            for own, reference in [close.shifts(rows[name], one.ordinal)]
            if _baseline_moved(own, reference, one)
        }
        if name in now and all(abs(now[name].ordinal - one.ordinal) > SAME for one in steps):
            steps = [*steps, now[name]]
        found[name] = Found(matched(known.get(name, ()), steps, sure), baseline)
    return found


def _steps(seen: Sequence[Seen], limits: HistoryLimits, known: Sequence[Known]) -> list[Change]:
    """The changes of level, and after the last of them a leak."""
    steps = changes(seen, limits)
    level = [one for one in seen if not steps or one.ordinal >= steps[-1].ordinal]
    slow = leak(level, limits, [one.place for one in known if one.ratio > 1])
    return [*steps, slow] if slow is not None else steps


def _baseline_moved(own: float, reference: float, change: Change) -> bool:
    """Is the change one of the reference alone?  Only the difference of the two moved then, and it the other way."""
    size = math.log(change.ratio)
    return abs(reference) >= abs(size) / 2 and reference * size < 0 and own / size < 0.5


def _slower_now(table: Histories, known: Points, limits: Limits) -> dict[Name, Change]:
    """The series whose newest revision alone looks slower.  One value that is faster is nothing to ask about."""
    since = _since(known)
    candidates = odd(table, since, np.array([limits[name].notify for name in table.names]))
    found = {}
    for row in np.flatnonzero(candidates).tolist():
        name = table.names[row]
        change = newest(table.seen(row, since.get(name, 0)), limits[name])
        if change is not None and change.ratio > 1:
            found[name] = change
    return found


def _since(known: Points) -> dict[Name, int]:
    """The place of the newest point of each series that the last look found again."""
    places = {name: [one.place for one in of_name if not one.missed] for name, of_name in known.items()}
    return {name: max(of_name) for name, of_name in places.items() if of_name}
