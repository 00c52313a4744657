"""The histories of all series of a target on a device as one table, and masks that select series for the detector.

Pure.  A *place* is the index of a revision among the measured revisions; the first is 0.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from service.domain.changepoints import Change, HistoryLimits, Seen
from service.domain.changepoints.step_test import (
    FEW,
    MAD_TO_SIGMA,
    MIN_ERROR,
    MIN_SIDE,
    NEAR,
    OUTLIER,
    adjusted,
    row_counts,
    row_medians,
)
from service.domain.metrics import metric_of
from service.domain.policy.policy import Policy
from service.domain.verdicts.samples import Name

Table = NDArray[np.float64]  # a row for each series, a column for each place; NaN where nothing was measured

MAX_NOTIFY = 0.49  # half of the largest threshold of a block


@dataclass(frozen=True)
class Histories:
    """The values of each series, oldest first, and SOTA's values of the same runs.  All tables have one shape."""

    names: tuple[Name, ...]
    first: int  # the place of the first column; older places were not read
    values: Table  # in the unit of the metric, > 0
    references: Table  # SOTA's, in the same unit
    stacks: NDArray[np.int64]  # 0 where the stack is not known
    runs: NDArray[np.int64]  # the run that measured the value; 0 for none
    at: tuple[float, ...] = ()  # of each column, when it was measured, in seconds since the epoch; none if not known

    @cached_property
    def row_of(self) -> Mapping[Name, int]:
        return {name: row for row, name in enumerate(self.names)}

    def seen(self, row: int, since: int = 0) -> list[Seen]:
        """One series as input of the detector, from the place `since` on; its ordinals are places.

        Bytes and counts have neither a reference nor a time, because they do not follow the machine.
        """
        measured = np.flatnonzero(self.runs[row])
        here = measured[measured >= since - self.first]
        follows = varies(self.names[row])
        references = self.references[row, here] if follows else np.full(len(here), np.nan)
        times = [self.at[column] for column in here] if self.at and follows else [None] * len(here)
        columns = (here + self.first, self.values[row, here], references, self.stacks[row, here])
        return [
            Seen(place, value, None if math.isnan(reference) else reference, stack or None, at)
            for (place, value, reference, stack), at in zip(
                zip(*(column.tolist() for column in columns), strict=True), times, strict=True
            )
        ]

    def shifts(self, row: int, change: Change) -> tuple[float, float]:
        """The log-ratios by which a series and its reference shifted over a change, from medians of `NEAR` values.

        For a leak, those are the values before it began and after it ended, at least `FEW` on each side.
        """
        measured = np.flatnonzero(self.runs[row])
        last = change.course[-1].ordinal if change.is_leak else change.ordinal
        begin = int(np.searchsorted(measured, change.before - self.first, side="right"))
        end = int(np.searchsorted(measured, last - self.first))
        if change.is_leak:
            begin, end = max(begin, FEW), min(end, len(measured) - FEW)
        before, after = measured[max(0, begin - NEAR) : begin], measured[end : end + NEAR]
        own, reference = (
            float(np.log(_median(values[row, after]) / _median(values[row, before])))
            for values in (self.values, self.references)
        )
        return own, reference

    def adjusted(self) -> Table:
        """The logs measured with the newest stack and with SOTA, less what they share with it; NaN for the others."""
        measured = ~(np.isnan(self.values) | np.isnan(self.references) | _other_stack(self))
        logs = np.full(self.values.shape, np.nan)
        for row, name in enumerate(self.names):
            if varies(name):  # bytes and counts do not follow the machine
                there = measured[row]
                logs[row, there] = adjusted(np.log(self.values[row, there]), np.log(self.references[row, there]))
        return logs

    def usual(self) -> Table:
        """The median of each series, in its unit; 1 for a series without values."""
        medians = row_medians(self.values)
        return np.where(np.isnan(medians), 1.0, medians)


def limits_at(case: str, usual: float, policy: Policy) -> HistoryLimits:
    """Notify from the smallest relevant change of the case on, and block from twice that."""
    notify = min(policy.smallest_change_at(case, usual), MAX_NOTIFY)
    return HistoryLimits(notify=notify, block=2 * notify)


def shift_mask(table: Histories, since: Mapping[Name, int], notify: Table) -> NDArray[np.bool_]:
    """Select the series whose recent values may form a new level.  Cheap, with more false alarms than misses.

    `since` is the place of the last known change of each series; older values are ignored.  `notify` is the smallest
    relevant change of each.  Both the values and their ratios to SOTA are tested, because a drift of the machine can
    hide a shift in one of them.
    """
    own = _aligned(table, np.log(table.values), since)
    shared = _aligned(table, np.log(table.values / table.references), since)
    return _moved(own, notify) | _moved(shared, notify)


def varies(name: Name) -> bool:
    """Whether samples of equal code vary: times do, bytes and counts do not."""
    return metric_of(name[1]).varies


def _aligned(table: Histories, logs: Table, since: Mapping[Name, int]) -> Table:
    """The values since the last change and of the newest stack, aligned right without gaps."""
    masked = logs.copy()
    for row, name in enumerate(table.names):
        if name in since:
            masked[row, : max(since[name] - table.first, 0)] = np.nan
    masked[_other_stack(table)] = np.nan
    order = np.argsort(~np.isnan(masked), axis=1, kind="stable")
    return np.take_along_axis(masked, order, axis=1)


def _other_stack(table: Histories) -> NDArray[np.bool_]:
    """Select everything up to the last value that was not measured with the newest stack of the series."""
    measured = table.runs > 0
    newest = measured.shape[1] - 1 - np.argmax(measured[:, ::-1], axis=1)
    current = np.take_along_axis(table.stacks, newest[:, None], axis=1)
    other = measured & (table.stacks != current)
    return np.asarray(np.cumsum(other[:, ::-1], axis=1)[:, ::-1] > 0)


def _moved(logs: Table, notify: Table) -> NDArray[np.bool_]:
    """Select the series whose newest values may be a new level, up to half of those that select."""
    mask = np.zeros(len(logs), dtype=bool)
    counts = row_counts(logs)
    for recent in range(MIN_SIDE, NEAR // 2 + 1, MIN_SIDE):
        rows = np.flatnonzero(counts >= recent + FEW)
        before, after = logs[rows, :-recent], logs[rows, -recent:]
        shift = np.abs(row_medians(after) - row_medians(before))
        # From differences of neighbours, so that a step or a drift does not count as noise.
        sigma = MAD_TO_SIGMA / math.sqrt(2) * row_medians(np.abs(np.diff(logs[rows], axis=1)))
        error = math.sqrt(math.pi / 2) * (sigma + MIN_ERROR) * np.sqrt(1 / recent + 1 / (counts[rows] - recent))
        mask[rows] |= (shift >= np.log1p(notify[rows] / 2)) & (shift >= OUTLIER * error)
    return mask


def _median(values: Table) -> float:
    measured = values[~np.isnan(values)]
    return float(np.median(measured)) if len(measured) else math.nan
