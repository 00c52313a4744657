"""Scan the histories of a target on a device: select series, and match their changes with known points.  Pure."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from service.domain.changepoints import Change, HistoryLimits, newest
from service.domain.changepoints.detector import Epoch, epochs_of
from service.domain.changepoints.matching import REFOUND, SAME, KnownPoint, Matched, match
from service.domain.changepoints.series_table import (
    Histories,
    limits_at,
    outlier_mask,
    sampled_mask,
    shift_mask,
    slope_of,
)
from service.domain.changepoints.siblings import Family, any_near, family_of, refuted_by_siblings, shared_steps
from service.domain.policy.policy import Policy
from service.domain.verdicts.samples import Name

SHORT = 30  # newest places from which series are selected
LONG = 120  # newest places of a selected series that are scanned
ONE_IN = 100  # of all series are scanned in any case,
ONE_IN_OPEN = 10  # and of those with an open point

Points = Mapping[Name, Sequence[KnownPoint]]
Limits = Mapping[Name, HistoryLimits]
# Of suspected changes, those of the machine: the pair of the revision at which the change begins was steady.
SteadyPairs = Callable[[Mapping[Name, Change]], Collection[Name]]


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
    steady: SteadyPairs = lambda _: (),
) -> dict[Name, SeriesScan]:
    """Run the detector on the series of `close`, and test the newest revisions of the series of `table`.

    Series in `left_out` are not scanned.  What the newest revisions let suspect is no change where `steady` says so.
    """
    device = min(slope_of(table), slope_of(close), key=lambda slope: slope.variance)
    since = _since(known)
    odd = _odd_rows(table, since, limits)
    shared = shared_steps(max(table, close, key=lambda one: one.values.size), limits, device)
    rows = {name: row for row, name in enumerate(close.names)}
    newest_rows = {name: row for row, name in enumerate(table.names)}

    @cache
    def epochs_of_series(name: Name) -> list[Epoch]:
        seen = close.seen(rows[name]) if name in rows else table.seen(newest_rows[name])
        return epochs_of(seen, limits[name], device)

    names = [name for name in {**rows, **shared, **odd} if name not in left_out]
    epochs = {name: epochs_of_series(name) if name in rows else [] for name in names}
    steps, suspected = dict[Name, list[Change]](), dict[Name, Change]()
    for name in names:
        steps[name] = [change for epoch in epochs[name] for change in epoch.changes(limits[name])]
        steps[name] += _others(steps[name], shared.get(name, ()), REFOUND)
        if name in odd:
            last = max([since.get(name, 0), *(one.ordinal for one in steps[name])])
            change = newest(table.seen(odd[name], last), limits[name], device)
            # Faster values are ignored until they are a level.
            if change is not None and change.ratio > 1 and _others(steps[name], [change], SAME):
                suspected[name] = change
    of_machine = steady(suspected) if suspected else ()
    found = {}
    for name, of_series in steps.items():
        baseline = {
            one.ordinal: math.exp(reference)
            for one in of_series
            for own, reference in [
                close.shifts(rows[name], one) if name in rows else table.shifts(newest_rows[name], one)
            ]
            if _baseline_moved(own, reference, one)
        }
        also = [suspected[name]] if name in suspected and name not in of_machine else []
        found[name] = SeriesScan(match(known.get(name, ()), of_series + also, epochs[name]), baseline)
    return _with_alone(known, found, table.names, epochs_of_series)


def _others(steps: Sequence[Change], more: Sequence[Change], apart: int) -> list[Change]:
    """Those of `more` that are at other places than the `steps`."""
    return [one for one in more if not any(step.covers(one.ordinal, apart) for step in steps)]


def _with_alone(
    known: Points,
    found: Mapping[Name, SeriesScan],
    names: Collection[Name],
    epochs_of_series: Callable[[Name], Sequence[Epoch]],
) -> dict[Name, SeriesScan]:
    families: dict[Family, list[Name]] = {}
    for name in names:
        families.setdefault(family_of(name), []).append(name)
    moved = _moved_places(known, found)
    with_alone = dict(found)
    for name, one in found.items():
        steps = [change for change in one.matched.new if not change.is_leak]
        if not steps:
            continue
        family = family_of(name)
        siblings = [other for other in families.get(family, ()) if other != name]
        alone = frozenset(
            step.ordinal
            for step in steps
            if not any_near(name, step.ordinal, moved[family]) and refuted_by_siblings(step, siblings, epochs_of_series)
        )
        with_alone[name] = replace(one, alone=alone)
    return with_alone


def _moved_places(known: Points, found: Mapping[Name, SeriesScan]) -> dict[Family, list[tuple[int, Name]]]:
    """The places of all changes of each family and their series, sorted."""
    places: dict[Family, list[tuple[int, Name]]] = {}
    for name in {**known, **found}:
        new = found[name].matched.new if name in found else ()
        ordinals = [*(one.place for one in known.get(name, ())), *(change.ordinal for change in new)]
        places.setdefault(family_of(name), []).extend((ordinal, name) for ordinal in ordinals)
    return {family: sorted(of_family) for family, of_family in places.items()}


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
