"""Combine the evidence of siblings: cases of one provider with the same op, direction and metric.  Pure.

A step that is too small for each alone may be certain for all together.  Only series with SOTA in the same sessions
take part: without it, a step that all of them have may as well be the machine's.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

import numpy as np

from service.domain.changepoints.detector import Epoch, change_of
from service.domain.changepoints.matching import SAME, KnownPoint, refutation
from service.domain.changepoints.segmentation import MIN_SIDE, levels_of
from service.domain.changepoints.series_table import Histories
from service.domain.changepoints.step_test import (
    MIN_ERROR,
    UNKNOWN,
    Logs,
    Slope,
    Step,
    Table,
    autocorrelation,
    local_noise,
    median,
    step_between,
)
from service.domain.changepoints.types import Change, HistoryLimits, Level
from service.domain.metrics import split_metric
from service.domain.verdicts.samples import Name

MIN_SIBLINGS = 5
MAX_TESTED = 20  # siblings whose values are tested for the step of one series
MIN_REVISIONS = 2 * MIN_SIDE  # of a series that takes part
FDR = 0.05  # of the siblings that are said to have a step; the step itself passes the usual test
MAX_WEIGHT = 4.0  # of a quiet series, relative to the median one
ANY_SIZE = HistoryLimits(notify=0.0, block=0.0)  # the mean of many series moves by less than those that have the step

Family = tuple[str, str, str]


def family_of(name: Name) -> Family:
    """Provider, op and direction, and metric."""
    provider, printed = name
    case, metric = split_metric(printed)
    return provider, ".".join(case.split(".")[:2]), metric.value


def shared_steps(table: Histories, limits: Mapping[Name, HistoryLimits], device: Slope) -> dict[Name, list[Change]]:
    """The steps that siblings have together, for each series that has one.

    They have the level NOTIFY: a step that blocks is certain without its siblings.  There are none if the slope of the
    device is not known, because the machine may then have any share in them.
    """
    if device == UNKNOWN:
        return {}
    families: dict[Family, list[_Member]] = {}
    for name, logs in zip(table.names, table.adjusted(device), strict=True):
        if np.count_nonzero(~np.isnan(logs)) >= MIN_REVISIONS:
            families.setdefault(family_of(name), []).append(_Member(name, logs, limits[name]))
    found: dict[Name, list[Change]] = {}
    for members in families.values():
        if len(members) >= MIN_SIBLINGS:
            for name, place, before, step in _steps_of(members):
                change = change_of(step, table.first + place, table.first + before, Level.NOTIFY)
                found.setdefault(name, []).append(change)
    return found


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
    tested = siblings[:MAX_TESTED]
    point = KnownPoint(0, change.ordinal, change.ratio)
    refuting = sum(refutation(point, epochs_of_series(name)) is not None for name in tested)
    return refuting >= max(MIN_SIBLINGS, len(tested) / 2)


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
    if len(measured) < MIN_REVISIONS:
        return
    from scipy.stats import false_discovery_control  # not above: every command would wait for it

    levels = levels_of(together[measured], ANY_SIZE)
    edges = [int(measured[start]) for start in (0, *levels.starts)] + [len(together)]
    memories = [_memory(member.logs, edges[1:-1]) for member in members]
    for step, (begin, (place, end)) in zip(levels.steps, zip(edges, pairwise(edges[1:]), strict=False), strict=True):
        steps = [
            (member, _step_at(member.logs, begin, place, end, r)) for member, r in zip(members, memories, strict=True)
        ]
        alike = [(member, one) for member, one in steps if one is not None and (one.shift > 0) == (step.shift > 0)]
        q = false_discovery_control([one.p for _, one in alike]) if alike else np.empty(0)
        having = [pair for pair, rate in zip(alike, q.tolist(), strict=True) if rate <= FDR]
        if len(having) < MIN_SIBLINGS:
            continue
        for member, one in having:
            if abs(one.shift) >= math.log1p(member.limits.notify):
                before = int(np.flatnonzero(~np.isnan(member.logs[:place]))[-1])
                after = place + int(np.flatnonzero(~np.isnan(member.logs[place:]))[0])
                yield member.name, after, before, replace(one, p=step.p)


def _together(rows: Table) -> Logs:
    """The mean of the series about their medians; quiet ones weigh more."""
    known = ~np.isnan(rows)
    noises = np.array([max(local_noise(row[there]), MIN_ERROR) for row, there in zip(rows, known, strict=True)])
    middles = np.array([median(row[there]) for row, there in zip(rows, known, strict=True)])
    weights = np.minimum(noises**-2, MAX_WEIGHT * np.median(noises) ** -2)[:, None] * known
    total = weights.sum(axis=0)
    sums = np.sum(np.where(known, rows - middles[:, None], 0) * weights, axis=0)
    return np.asarray(np.divide(sums, total, out=np.full(rows.shape[1], np.nan), where=total > 0))


def _memory(logs: Logs, starts: Sequence[int]) -> float:
    """The autocorrelation of a member about the levels that all have together."""
    known = np.flatnonzero(~np.isnan(logs))
    return autocorrelation(logs[known], np.unique(np.searchsorted(known, starts)).tolist())


def _step_at(logs: Logs, begin: int, place: int, end: int, r: float) -> Step | None:
    before, after = (part[~np.isnan(part)] for part in (logs[begin:place], logs[place:end]))
    return step_between(before, after, r) if min(len(before), len(after)) >= MIN_SIDE else None
