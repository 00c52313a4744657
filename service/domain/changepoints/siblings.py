"""Combine the evidence of siblings: cases of one provider with the same op, direction and metric.  Pure.

A step that is too small for each alone may be certain for all together.  Only series with SOTA in the same sessions
take part: without it, a step that all of them have may as well be the machine's.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.stats import false_discovery_control

from service.domain.changepoints.control_variate import UNKNOWN, Slope
from service.domain.changepoints.detector import change_of
from service.domain.changepoints.matching import SAME
from service.domain.changepoints.noise import Logs, Table, local_noise, median
from service.domain.changepoints.segmentation import MIN_SIDE, levels_of
from service.domain.changepoints.series_table import Histories
from service.domain.changepoints.step_test import MIN_ERROR, Step, step_between
from service.domain.changepoints.types import Change, HistoryLimits, Level
from service.domain.metrics import split_metric
from service.domain.verdicts.samples import Name

MIN_SIBLINGS = 5
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


def is_alone(name: Name, place: int, moved: Mapping[Name, Collection[int]], family: Collection[Name]) -> bool:
    """Whether a series changed at a place and at least `MIN_SIBLINGS` others of its family did not.

    `moved` has the places of all changes that are known by series.
    """
    siblings = [other for other in family if other != name]
    near = (abs(place - at) <= SAME for other in siblings for at in moved.get(other, ()))
    return len(siblings) >= MIN_SIBLINGS and not any(near)


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
    levels = levels_of(together[measured], ANY_SIZE)
    edges = [int(measured[start]) for start in (0, *levels.starts)] + [len(together)]
    for step, (begin, (place, end)) in zip(levels.steps, zip(edges, pairwise(edges[1:]), strict=False), strict=True):
        steps = [(member, _step_at(member.logs, begin, place, end)) for member in members]
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


def _step_at(logs: Logs, begin: int, place: int, end: int) -> Step | None:
    before, after = (part[~np.isnan(part)] for part in (logs[begin:place], logs[place:end]))
    return step_between(before, after) if min(len(before), len(after)) >= MIN_SIDE else None
