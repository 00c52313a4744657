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
from service.domain.changepoints.step_test import Slope
from service.domain.policy.policy import Policy
from service.domain.verdicts.samples import Name

SHORT = 30  # newest places from which series are selected
LONG = 120  # newest places of a selected series that are scanned
ONE_IN = 100  # of all series are scanned in any case,
ONE_IN_OPEN = 10  # and of those with an open point

Points = Mapping[Name, Sequence[KnownPoint]]
Limits = Mapping[Name, HistoryLimits]
# Returns the series whose suspected change is of the machine: the pair of the revision where it begins was steady.
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

    Series in `left_out` are not scanned.  A change that is suspected at the newest revisions is dropped if `steady`
    returns its series.
    """
    device = min(slope_of(table), slope_of(close), key=lambda slope: slope.variance)
    since = _since(known)
    odd = _odd_series(table, since, limits)
    shared = shared_steps(max(table, close, key=lambda one: one.values.size), limits, device)

    def table_of(name: Name) -> Histories:
        return close if name in close.row_of else table

    @cache
    def epochs_of_series(name: Name) -> list[Epoch]:
        here = table_of(name)
        return epochs_of(here.seen(here.row_of[name]), limits[name], device)

    names = [name for name in dict.fromkeys((*close.names, *shared, *odd)) if name not in left_out]
    epochs = {name: epochs_of_series(name) if name in close.row_of else [] for name in names}
    steps = dict[Name, list[Change]]()
    for name in names:
        steps[name] = [change for epoch in epochs[name] for change in epoch.changes(limits[name])]
        steps[name] += _others(steps[name], shared.get(name, ()), REFOUND)
    suspected = _suspected(table, [name for name in odd if name in steps], since, limits, steps, device)
    of_machine = steady(suspected) if suspected else ()
    found = {}
    for name in names:
        also = [suspected[name]] if name in suspected and name not in of_machine else []
        matched = match(known.get(name, ()), steps[name] + also, epochs[name])
        found[name] = SeriesScan(matched, _moved_baselines(table_of(name), name, steps[name]))
    return _with_alone(known, found, table.names, epochs_of_series)


def _suspected(
    table: Histories,
    odd: Collection[Name],
    since: Mapping[Name, int],
    limits: Limits,
    steps: Mapping[Name, Sequence[Change]],
    device: Slope,
) -> dict[Name, Change]:
    """The suspected changes at the newest revisions of the `odd` series, away from their steps."""
    found = {}
    for name in odd:
        last = max([since.get(name, 0), *(one.ordinal for one in steps[name])])
        change = newest(table.seen(table.row_of[name], last), limits[name], device)
        # Faster values are ignored until they are a level.
        if change is not None and change.ratio > 1 and _others(steps[name], [change], SAME):
            found[name] = change
    return found


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


def _moved_baselines(table: Histories, name: Name, steps: Sequence[Change]) -> dict[int, float]:
    """By place of a step, the ratio of SOTA if only SOTA shifted."""
    found = {}
    for step in steps:
        own, reference = table.shifts(table.row_of[name], step)
        if _baseline_moved(own, reference, step):
            found[step.ordinal] = math.exp(reference)
    return found


def _baseline_moved(own: float, reference: float, change: Change) -> bool:
    """Did only the reference shift?  Then the adjusted values changed in the opposite direction."""
    size = math.log(change.ratio)
    return abs(reference) >= abs(size) / 2 and reference * size < 0 and own / size < 0.5


def _odd_series(table: Histories, since: Mapping[Name, int], limits: Limits) -> list[Name]:
    """The series whose newest value is an outlier."""
    odd = outlier_mask(table, since, np.array([limits[name].notify for name in table.names]))
    return [table.names[row] for row in np.flatnonzero(odd)]


def _since(known: Points) -> dict[Name, int]:
    """The place of the newest point of each series that the last scan did not refute."""
    places = {name: [one.place for one in of_name if not one.refuted] for name, of_name in known.items()}
    return {name: max(of_name) for name, of_name in places.items() if of_name}
