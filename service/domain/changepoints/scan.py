"""Scan the histories of a target on a device: select series, and match their changes with known points.  Pure."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.domain.changepoints import Change, HistoryLimits, newest
from service.domain.changepoints.detector import epochs_of
from service.domain.changepoints.matching import REFOUND, SAME, KnownPoint, Matched, match
from service.domain.changepoints.series_table import (
    Histories,
    limits_at,
    outlier_mask,
    sampled_mask,
    shift_mask,
    slope_of,
)
from service.domain.changepoints.siblings import Family, family_of, is_alone, shared_steps
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
    baseline: Mapping[int, float]  # by place of a new change, the ratio of SOTA if only SOTA shifted
    alone: frozenset[int] = frozenset()  # the places of new steps at which its siblings did not change


def scan_series(
    close: Histories,
    table: Histories,
    known: Points,
    limits: Limits,
    left_out: Collection[Name] = (),
    steady: Collection[Name] = (),
) -> dict[Name, SeriesScan]:
    """Run the detector on the series of `close`, and test the newest revisions of the series of `table`.

    Series in `left_out` are not scanned.  The newest revisions are not tested where the newest was `steady` against its
    parent.
    """
    device = min(slope_of(table), slope_of(close), key=lambda slope: slope.variance)
    since = _since(known)
    odd = {name: row for name, row in _odd_rows(table, since, limits).items() if name not in steady}
    shared = shared_steps(max(table, close, key=lambda one: one.values.size), limits, device)
    rows = {name: row for row, name in enumerate(close.names)}
    found = {}
    for name in [name for name in {**rows, **shared, **odd} if name not in left_out]:
        epochs = epochs_of(close.seen(rows[name]) if name in rows else [], limits[name], device)
        steps = [change for epoch in epochs for change in epoch.changes(limits[name])]
        steps += _others(steps, shared.get(name, ()), REFOUND)
        baseline = {
            one.ordinal: math.exp(reference)
            for one in steps
            for own, reference in [_shifts(name, one, close if name in rows else table)]
            if _baseline_moved(own, reference, one)
        }
        if name in odd:
            last = max([since.get(name, 0), *(one.ordinal for one in steps)])
            change = newest(table.seen(odd[name], last), limits[name], device)
            if change is not None and change.ratio > 1:  # faster values are ignored until they are a level
                steps += _others(steps, [change], SAME)
        found[name] = SeriesScan(match(known.get(name, ()), steps, epochs), baseline)
    return _with_alone(found, _moved_places(known, found), table.names)


def _others(steps: Sequence[Change], more: Sequence[Change], apart: int) -> list[Change]:
    """Those of `more` that are at other places than the `steps`."""
    return [one for one in more if not any(step.covers(one.ordinal, apart) for step in steps)]


def _moved_places(known: Points, found: Mapping[Name, SeriesScan]) -> dict[Name, list[int]]:
    places = {name: [one.place for one in of_name] for name, of_name in known.items()}
    for name, one in found.items():
        places.setdefault(name, []).extend(change.ordinal for change in one.matched.new)
    return places


def _with_alone(
    found: Mapping[Name, SeriesScan], moved: Mapping[Name, Sequence[int]], names: Collection[Name]
) -> dict[Name, SeriesScan]:
    families: dict[Family, list[Name]] = {}
    for name in names:
        families.setdefault(family_of(name), []).append(name)
    with_alone = dict(found)
    for name, one in found.items():
        steps = [change.ordinal for change in one.matched.new if not change.is_leak]
        if steps:
            family = families.get(family_of(name), ())
            alone = frozenset(place for place in steps if is_alone(name, place, moved, family))
            with_alone[name] = replace(one, alone=alone)
    return with_alone


def _shifts(name: Name, change: Change, table: Histories) -> tuple[float, float]:
    return table.shifts(table.names.index(name), change)


def _baseline_moved(own: float, reference: float, change: Change) -> bool:
    """Did only the reference shift?  Then the adjusted values changed in the opposite direction."""
    size = math.log(change.ratio)
    return abs(reference) >= abs(size) / 2 and reference * size < 0 and own / size < 0.5


def _odd_rows(table: Histories, since: Mapping[Name, int], limits: Limits) -> dict[Name, int]:
    """The rows of the series whose newest value is an outlier."""
    odd = outlier_mask(table, since, np.array([limits[name].notify for name in table.names]))
    return {table.names[row]: row for row in np.flatnonzero(odd).tolist()}


def _since(known: Points) -> dict[Name, int]:
    """The place of the newest point of each series that the last scan did not refute."""
    places = {name: [one.place for one in of_name if not one.refuted] for name, of_name in known.items()}
    return {name: max(of_name) for name, of_name in places.items() if of_name}
