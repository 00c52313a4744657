"""The histories of all series of a target on a device as one table of numbers, and which are worth a closer look.

Pure.  A *place* is the position of a revision among those that were measured: the first is 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from service.domain.changepoints import HistoryLimits, Seen
from service.domain.policy.policy import Policy

Name = tuple[str, str]  # provider and case
Table = NDArray[np.float64]  # one row a series, one column a place; NaN where nothing was measured

RECENT = (5, 10, 15)  # newest values that may be another level
MIN_BEFORE = 8  # values that say what is usual
RESTLESS = 3.5  # standard errors by which a recent level is out of line; low, because the detector decides
ODD = 3.0  # deviations by which one newest value is
MAD_TO_SIGMA = 1.4826
MEDIAN_TO_MEAN = 1.2533  # standard errors of a median, in those of a mean of normal values
TINIEST = 1e-9  # in log units, for series that do not vary at all
NEAR = 30  # values on either side that say by how much it moved at a place
LARGEST_LIMIT = 0.49  # half of what a block point may ask for at most


@dataclass(frozen=True)
class Histories:
    """What was measured of each series, oldest first, with SOTA's value of the same run beside it."""

    names: tuple[Name, ...]
    first: int  # the place of the first column: what is older was not read
    values: Table  # in the unit of the metric, > 0
    references: Table
    stacks: NDArray[np.int64]  # 0 where the stack is not known
    runs: NDArray[np.int64]  # whose value it is; 0 for none

    def seen(self, row: int, since: int = 0) -> list[Seen]:
        """One series for the detector, which counts places, from the place `since` on."""
        measured = np.flatnonzero(self.runs[row])
        at = measured[measured >= since - self.first]
        columns = (at + self.first, self.values[row, at], self.references[row, at], self.stacks[row, at])
        return [
            Seen(place, value, None if math.isnan(reference) else reference, stack or None)
            for place, value, reference, stack in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def shifts(self, row: int, place: int) -> tuple[float, float]:
        """How far a series and its reference moved at a place: logarithms, between the medians of its `NEAR` values."""
        measured = np.flatnonzero(self.runs[row])
        at = int(np.searchsorted(measured, place - self.first))
        before, after = measured[max(0, at - NEAR) : at], measured[at : at + NEAR]
        own, reference = (
            float(np.log(_median(values[row, after]) / _median(values[row, before])))
            for values in (self.values, self.references)
        )
        return own, reference

    def usual(self) -> Table:
        """The median of each series, in its unit; 1 for one of which nothing is left."""
        medians = _medians(self.values)
        return np.where(np.isnan(medians), 1.0, medians)


def limits_at(case: str, usual: float, policy: Policy) -> HistoryLimits:
    """A point is worth a look from the smallest change that matters at the case, and blocks from twice that."""
    notify = min(policy.smallest_change_at(case, usual), LARGEST_LIMIT)
    return HistoryLimits(notify=notify, block=2 * notify)


def restless(table: Histories, since: Mapping[Name, int], notify: Table) -> NDArray[np.bool_]:
    """Which series have recent values that may be another level than those before: cheap, and rather too often.

    `since` is the place of the last known change of a series, before which nothing is looked at, and `notify` the
    smallest change of each.  A series is compared with its own past as it is and as a share of SOTA, for a machine
    that wavers hides in the one what the other shows.
    """
    own = _aligned(table, np.log(table.values), since)
    shared = _aligned(table, np.log(table.values / table.references), since)
    return _moved(own, notify) | _moved(shared, notify)


def odd(table: Histories, since: Mapping[Name, int], notify: Table) -> NDArray[np.bool_]:
    """Which series may be out of line with their very newest value, at the last place of the table."""
    logs = _aligned(table, np.log(table.values), since)
    found = np.zeros(len(logs), dtype=bool)
    rows = np.flatnonzero((_counts(logs) > MIN_BEFORE) & (table.runs[:, -1] > 0))
    before, last = logs[rows, :-1], logs[rows, -1]
    middle = _medians(before)
    sigma = MAD_TO_SIGMA * _medians(np.abs(before - middle[:, None]))
    shift = np.abs(last - middle)
    found[rows] = (shift >= np.log1p(notify[rows])) & (shift > ODD * sigma)
    return found


def drawn(names: Sequence[Name], key: object, one_in: int) -> NDArray[np.bool_]:
    """One in so many, by chance but the same for the same key: so each series has its turn and nobody keeps count."""
    return np.array([crc32(f"{key}:{provider}:{case}".encode()) % one_in == 0 for provider, case in names], dtype=bool)


def _aligned(table: Histories, logs: Table, since: Mapping[Name, int]) -> Table:
    """The values since the last change and of the newest stack, moved to the right end without gaps."""
    masked = logs.copy()
    for row, name in enumerate(table.names):
        if name in since:
            masked[row, : max(since[name] - table.first, 0)] = np.nan
    masked[_other_stack(table)] = np.nan
    order = np.argsort(~np.isnan(masked), axis=1, kind="stable")
    return np.take_along_axis(masked, order, axis=1)


def _other_stack(table: Histories) -> NDArray[np.bool_]:
    """Everything up to the last value of another stack than the newest one of the series."""
    measured = table.runs > 0
    newest = measured.shape[1] - 1 - np.argmax(measured[:, ::-1], axis=1)
    current = np.take_along_axis(table.stacks, newest[:, None], axis=1)
    other = measured & (table.stacks != current)
    return np.asarray(np.cumsum(other[:, ::-1], axis=1)[:, ::-1] > 0)


def _moved(logs: Table, notify: Table) -> NDArray[np.bool_]:
    found = np.zeros(len(logs), dtype=bool)
    counts = _counts(logs)
    for recent in RECENT:
        rows = np.flatnonzero(counts >= recent + MIN_BEFORE)
        if not len(rows):
            break
        before, after = logs[rows, :-recent], logs[rows, -recent:]
        shift = np.abs(_medians(after) - _medians(before))
        # Of neighbours, so that a step or a drift is not taken for noise.
        sigma = MAD_TO_SIGMA / math.sqrt(2) * _medians(np.abs(np.diff(logs[rows], axis=1)))
        error = MEDIAN_TO_MEAN * (sigma + TINIEST) * np.sqrt(1 / recent + 1 / (counts[rows] - recent))
        found[rows] |= (shift >= np.log1p(notify[rows] / 2)) & (shift >= RESTLESS * error)
    return found


def _medians(rows: Table) -> Table:
    """Of each row what is known of it; NaN where nothing is.  numpy's own takes ten times as long for short rows."""
    if not rows.size:
        return np.full(len(rows), np.nan)
    ordered, counts = np.sort(rows, axis=1), _counts(rows)  # NaN come last
    each, last = np.arange(len(rows)), rows.shape[1] - 1
    lower, upper = np.maximum(counts - 1, 0) // 2, np.minimum(counts // 2, last)
    middle = (ordered[each, lower] + ordered[each, upper]) / 2
    return np.asarray(middle)


def _median(values: Table) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else math.nan


def _counts(logs: Table) -> NDArray[np.int64]:
    return np.asarray((~np.isnan(logs)).sum(axis=1))
