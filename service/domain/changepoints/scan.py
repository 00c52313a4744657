"""Scan the histories of a target on a device: select series, and match their changes with known points.  Pure."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.domain.changepoints import Change, HistoryLimits, Seen, changes, newest
from service.domain.changepoints.matching import SAME, KnownPoint, Matched, match, sure_places
from service.domain.changepoints.series_table import Histories, limits_at, outlier_mask, sampled_mask, shift_mask
from service.domain.changepoints.trend import leak
from service.domain.policy.policy import Policy
from service.domain.verdicts.samples import Name

SHORT = 30  # newest places from which series are selected
LONG = 120  # newest places of a selected series that are scanned
ONE_IN = 100  # of all series are scanned in any case,
ONE_IN_OPEN = 10  # and of those with an open point

Points = Mapping[Name, Sequence[KnownPoint]]
Limits = Mapping[Name, HistoryLimits]


def limits_of(table: Histories, policy: Policy) -> dict[Name, HistoryLimits]:
    """The thresholds of each series."""
    usual = table.usual().tolist()
    return {name: limits_at(name[1], value, policy) for name, value in zip(table.names, usual, strict=True)}


def select_series(table: Histories, known: Points, limits: Limits, key: object) -> list[Name]:
    """The series that may have shifted, and a sample of the others.  The same `key` gives the same sample."""
    notify = np.array([limits[name].notify for name in table.names])
    open_ones = np.array([any(one.open for one in known.get(name, ())) for name in table.names], dtype=bool)
    selected = shift_mask(table, _since(known), notify) | sampled_mask(table.names, key, ONE_IN)
    selected |= open_ones & sampled_mask(table.names, key, ONE_IN_OPEN)
    return [table.names[row] for row in np.flatnonzero(selected)]


@dataclass(frozen=True)
class SeriesScan:
    """Result of the scan of one series."""

    matched: Matched
    baseline: Mapping[int, float]  # by place, SOTA's ratio where SOTA shifted and the series did not


def scan_series(
    close: Histories,
    table: Histories,
    known: Points,
    limits: Limits,
    left_out: Collection[Name] = (),
    steady: Collection[Name] = (),
) -> dict[Name, SeriesScan]:
    """Run the detector on the series of `close`, and test the newest revision of the series of `table`.

    Series in `left_out` are not scanned.  The newest revision is not tested where its comparison with the parent was
    `steady`.
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
        found[name] = SeriesScan(match(known.get(name, ()), steps, sure), baseline)
    return found


def _steps(seen: Sequence[Seen], limits: HistoryLimits, known: Sequence[KnownPoint]) -> list[Change]:
    """The changes of level, and a leak after the last of them."""
    steps = changes(seen, limits)
    level = [one for one in seen if not steps or one.ordinal >= steps[-1].ordinal]
    slow = leak(level, limits, [one.place for one in known if one.ratio > 1])
    return [*steps, slow] if slow is not None else steps


def _baseline_moved(own: float, reference: float, change: Change) -> bool:
    """Did only the reference shift?  Then the adjusted values changed in the opposite direction."""
    size = math.log(change.ratio)
    return abs(reference) >= abs(size) / 2 and reference * size < 0 and own / size < 0.5


def _slower_now(table: Histories, known: Points, limits: Limits) -> dict[Name, Change]:
    """The series whose newest value alone is slower.  A single faster value is ignored."""
    since = _since(known)
    candidates = outlier_mask(table, since, np.array([limits[name].notify for name in table.names]))
    found = {}
    for row in np.flatnonzero(candidates).tolist():
        name = table.names[row]
        change = newest(table.seen(row, since.get(name, 0)), limits[name])
        if change is not None and change.ratio > 1:
            found[name] = change
    return found


def _since(known: Points) -> dict[Name, int]:
    """The place of the newest point of each series that the last scan found again."""
    places = {name: [one.place for one in of_name if not one.missed] for name, of_name in known.items()}
    return {name: max(of_name) for name, of_name in places.items() if of_name}
