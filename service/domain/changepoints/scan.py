"""Scan the histories of a target on a device: select series, and match their changes with known points.  Pure.

The evidence of siblings is combined: cases of one provider with the same op, direction and metric.  A step that is too
small for each alone may be certain for all together.  Only series with SOTA in the same sessions take part: without it,
a step that all of them have may as well be the machine's.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from operator import itemgetter

import numpy as np

from service.domain.changepoints.detector import Epoch, change_of, epochs_of
from service.domain.changepoints.matching import SAME, KnownPoint, Matched, match, refutation
from service.domain.changepoints.segmentation import Change, HistoryLimits, Level, levels_of
from service.domain.changepoints.series_table import (
    Histories,
    limits_at,
    shift_mask,
)
from service.domain.changepoints.step_test import (
    MIN_ERROR,
    MIN_SIDE,
    Logs,
    Step,
    Table,
    local_noise,
    median,
    step_between,
)
from service.domain.metrics import op_of, split_metric
from service.domain.policy.policy import Policy
from service.domain.verdicts.samples import Name

MIN_SIBLINGS = 5
FDR = 0.05  # of the siblings that are said to have a step; the step itself passes the usual test

Family = tuple[str, str, str]

Points = Mapping[Name, Sequence[KnownPoint]]
Limits = Mapping[Name, HistoryLimits]


def family_of(name: Name) -> Family:
    """Provider, op and direction, and metric."""
    provider, printed = name
    case, metric = split_metric(printed)
    return provider, ".".join(op_of(case)), metric.value


def shared_steps(table: Histories, limits: Mapping[Name, HistoryLimits]) -> dict[Name, list[Change]]:
    """The steps that siblings have together, for each series that has one.

    They have the level NOTIFY: a step that blocks is certain without its siblings.
    """
    families: dict[Family, list[_Member]] = {}
    for name, logs in zip(table.names, table.adjusted(), strict=True):
        if np.count_nonzero(~np.isnan(logs)) >= 2 * MIN_SIDE:
            families.setdefault(family_of(name), []).append(_Member(name, logs, limits[name]))
    changes: dict[Name, list[Change]] = {}
    for members in families.values():
        if len(members) >= MIN_SIBLINGS:
            for name, place, before, step in _steps_of(members):
                change = change_of(step, table.first + place, table.first + before, Level.NOTIFY)
                changes.setdefault(name, []).append(change)
    return changes


def any_near(name: Name, place: int, moved: Sequence[tuple[int, Name]]) -> bool:
    """Whether another series of the family changed within `SAME` of a place.

    `moved` has the places and series of all changes of the family, sorted.
    """
    first, last = (bisect_left(moved, at, key=itemgetter(0)) for at in (place - SAME, place + SAME + 1))
    return any(other != name for _, other in moved[first:last])


def refuted_by_siblings(
    change: Change, siblings: Sequence[Name], epochs_of_series: Callable[[Name], Sequence[Epoch]]
) -> bool:
    """Whether the values of most siblings, and of at least `MIN_SIBLINGS`, refute half of a step at its place.

    A sibling that has no reported point may have the same step, hidden by its noise or not scanned yet.
    """
    point = KnownPoint(0, change.ordinal, change.ratio)
    refuting = sum(refutation(point, epochs_of_series(name)) is not None for name in siblings)
    return refuting >= max(MIN_SIBLINGS, len(siblings) / 2)


@dataclass(frozen=True)
class _Member:
    name: Name
    logs: Logs  # NaN where it was not measured
    limits: HistoryLimits


def _steps_of(members: Sequence[_Member]) -> Iterator[tuple[Name, int, int, Step]]:
    """Each step of each member: its name, the first place after the step, and the last before it.

    Its p is that of all members together.
    """
    together = _together(np.vstack([member.logs for member in members]))
    measured = np.flatnonzero(~np.isnan(together))
    if len(measured) < 2 * MIN_SIDE:
        return
    from scipy.stats import false_discovery_control  # not above: every command would wait for it

    # Of any size: the mean of many series moves by less than those that have the step.
    levels = levels_of(together[measured], HistoryLimits(notify=0.0, block=0.0))
    edges = [int(measured[start]) for start in (0, *levels.starts)] + [len(together)]
    for step, (begin, (place, end)) in zip(levels.steps, zip(edges, pairwise(edges[1:]), strict=False), strict=True):
        steps = [(member, _step_at(member.logs, begin, place, end)) for member in members]
        alike = [
            (member, own_step)
            for member, own_step in steps
            if own_step is not None and (own_step.shift > 0) == (step.shift > 0)
        ]
        q = false_discovery_control([step.p for _, step in alike]) if alike else np.empty(0)
        having = [pair for pair, rate in zip(alike, q.tolist(), strict=True) if rate <= FDR]
        if len(having) < MIN_SIBLINGS:
            continue
        for member, own_step in having:
            if abs(own_step.shift) >= math.log1p(member.limits.notify):
                before = int(np.flatnonzero(~np.isnan(member.logs[:place]))[-1])
                after = place + int(np.flatnonzero(~np.isnan(member.logs[place:]))[0])
                yield member.name, after, before, replace(own_step, p=step.p)


def _together(rows: Table) -> Logs:
    """The mean of the series about their medians; quiet ones weigh more."""
    measured = ~np.isnan(rows)
    noises = np.array([max(local_noise(row[there]), MIN_ERROR) for row, there in zip(rows, measured, strict=True)])
    middles = np.array([median(row[there]) for row, there in zip(rows, measured, strict=True)])
    weights = noises[:, None] ** -2.0 * measured
    total = weights.sum(axis=0)
    sums = np.sum(np.where(measured, rows - middles[:, None], 0) * weights, axis=0)
    return np.asarray(np.divide(sums, total, out=np.full(rows.shape[1], np.nan), where=total > 0))


def _step_at(logs: Logs, begin: int, place: int, end: int) -> Step | None:
    before, after = (part[~np.isnan(part)] for part in (logs[begin:place], logs[place:end]))
    return step_between(before, after) if min(len(before), len(after)) >= MIN_SIDE else None


def limits_of(table: Histories, policy: Policy) -> dict[Name, HistoryLimits]:
    """The thresholds of each series."""
    usual = table.usual().tolist()
    return {name: limits_at(name[1], value, policy) for name, value in zip(table.names, usual, strict=True)}


def select_series(table: Histories, points: Points, limits: Limits) -> list[Name]:
    """The series that may have shifted, and those with an open point."""
    shifted = shift_mask(table, _since(points), np.array([limits[name].notify for name in table.names]))
    with_open = {name for name, of_name in points.items() if any(point.open for point in of_name)}
    return [name for name, moved in zip(table.names, shifted, strict=True) if moved or name in with_open]


@dataclass(frozen=True)
class SeriesScan:
    """Result of the scan of one series."""

    matched: Matched
    baseline: Mapping[int, float]  # by place of a new change, the ratio of SOTA if only SOTA shifted
    alone: frozenset[int] = frozenset()  # the places of new steps at which its siblings did not change


def scan_series(
    close: Histories,
    table: Histories,
    points: Points,
    limits: Limits,
    left_out: Collection[Name] = (),
) -> dict[Name, SeriesScan]:
    """Run the detector on the series of `close`; their siblings of `table` are evidence as well.

    Series in `left_out` are not scanned.
    """
    shared = shared_steps(max(table, close, key=lambda histories: histories.values.size), limits)

    def table_of(name: Name) -> Histories:
        return close if name in close.row_of else table

    @cache
    def epochs_of_series(name: Name) -> list[Epoch]:
        here = table_of(name)
        return epochs_of(here.seen(here.row_of[name]), limits[name])

    scans = {}
    for name in dict.fromkeys((*close.names, *shared)):
        if name in left_out:
            continue
        epochs = epochs_of_series(name) if name in close.row_of else []
        steps = [change for epoch in epochs for change in epoch.changes(limits[name])]
        steps += _others(steps, shared.get(name, ()), MIN_SIDE - 1)
        matched = match(points.get(name, ()), steps, epochs)
        scans[name] = SeriesScan(matched, _moved_baselines(table_of(name), name, steps))
    return _with_alone(points, scans, table.names, epochs_of_series)


def _others(steps: Sequence[Change], more: Sequence[Change], apart: int) -> list[Change]:
    """Those of `more` that are at other places than the `steps`."""
    return [change for change in more if not any(step.covers(change.ordinal, apart) for step in steps)]


def _with_alone(
    points: Points,
    scans: Mapping[Name, SeriesScan],
    names: Collection[Name],
    epochs_of_series: Callable[[Name], Sequence[Epoch]],
) -> dict[Name, SeriesScan]:
    families: dict[Family, list[Name]] = {}
    for name in names:
        families.setdefault(family_of(name), []).append(name)
    moved = _moved_places(points, scans)
    with_alone = dict(scans)
    for name, scan in scans.items():
        steps = [change for change in scan.matched.new if not change.is_leak]
        if not steps:
            continue
        family = family_of(name)
        siblings = [other for other in families.get(family, ()) if other != name]
        alone = frozenset(
            step.ordinal
            for step in steps
            if not any_near(name, step.ordinal, moved[family]) and refuted_by_siblings(step, siblings, epochs_of_series)
        )
        with_alone[name] = replace(scan, alone=alone)
    return with_alone


def _moved_places(points: Points, scans: Mapping[Name, SeriesScan]) -> dict[Family, list[tuple[int, Name]]]:
    """The places of all changes of each family and their series, sorted."""
    places: dict[Family, list[tuple[int, Name]]] = {}
    for name in {**points, **scans}:
        new = scans[name].matched.new if name in scans else ()
        ordinals = [*(point.place for point in points.get(name, ())), *(change.ordinal for change in new)]
        places.setdefault(family_of(name), []).extend((ordinal, name) for ordinal in ordinals)
    return {family: sorted(of_family) for family, of_family in places.items()}


def _moved_baselines(table: Histories, name: Name, steps: Sequence[Change]) -> dict[int, float]:
    """By place of a step, the ratio of SOTA if only SOTA shifted."""
    ratios = {}
    for step in steps:
        own, reference = table.shifts(table.row_of[name], step)
        # If only the reference shifted, the adjusted values changed in the opposite direction.
        size = math.log(step.ratio)
        if abs(reference) >= abs(size) / 2 and reference * size < 0 and own / size < 0.5:
            ratios[step.ordinal] = math.exp(reference)
    return ratios


def _since(points: Points) -> dict[Name, int]:
    """The place of the newest point of each series that the last scan did not refute."""
    places = {name: [point.place for point in of_name if not point.refuted] for name, of_name in points.items()}
    return {name: max(of_name) for name, of_name in places.items() if of_name}
