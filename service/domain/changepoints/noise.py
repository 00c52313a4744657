"""Estimate the noise of a series: its size without any step, and the correlation of neighbouring revisions.  Pure."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Logs = NDArray[np.float64]  # natural logarithms of adjusted values, oldest first
Table = NDArray[np.float64]  # a row for each series; NaN where nothing is known

OUTLIER = 3.0  # standard deviations from the median beyond which a value is winsorised
MAD_TO_SIGMA = 1.4826  # a normal sigma over the median of absolute deviations, and over their mean
MEAN_TO_SIGMA = 1.2533
RUNNING = 11  # revisions of the running median: it follows a level of 6
MIN_LEVEL = 8  # revisions of a level that tells something about autocorrelation
MAX_AUTOCORRELATION = 0.98


def middle_and_spread(logs: Logs) -> tuple[float, float]:
    """The median, and a robust standard deviation, which is 0 only if all values are equal."""
    middle = median(logs)
    return middle, spread(np.abs(logs - middle))


def spread(away: Logs) -> float:
    """A robust standard deviation from absolute deviations.

    If more than half of the values are equal, the MAD is 0; the mean absolute deviation is used then.
    """
    return MAD_TO_SIGMA * median(away) or MEAN_TO_SIGMA * float(away.sum()) / len(away)


def median(logs: Logs) -> float:
    """The median of a short array.  `np.median` takes five times as long."""
    ordered, half = np.sort(logs), len(logs) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


def local_noise(logs: Logs) -> float:
    """The standard deviation about a running median, which contains no step and no slow drift."""
    return spread(np.abs(logs - running_median(logs)))


def running_median(logs: Logs) -> Logs:
    """For each value the median of those around it."""
    reach = min(RUNNING, len(logs)) // 2
    padded = np.pad(logs, reach, mode="reflect")
    return np.asarray(np.median(sliding_window_view(padded, 2 * reach + 1), axis=1))


def autocorrelation(logs: Logs, starts: Sequence[int]) -> float:
    """The lag-1 autocorrelation about the levels that begin at `starts`, pooled over levels.

    Each level counts in its own standard deviations.  The estimate from n values is biased by -(1 + 3 r) / n (Marriott
    and Pope, 1954).  A single level says too little: noise that is cut into levels looks uncorrelated in each.
    """
    total, count, levels = 0.0, 0, 0
    for begin, end in pairwise([0, *starts, len(logs)]):
        if end - begin < MIN_LEVEL:
            continue
        middle, sigma = middle_and_spread(logs[begin:end])
        if not sigma:
            continue
        away = np.clip(logs[begin:end] - middle, -OUTLIER * sigma, OUTLIER * sigma)
        away -= away.mean()
        total += float(away[:-1] @ away[1:]) / float(away @ away) * len(away)
        count, levels = count + len(away), levels + 1
    if not count:
        return 0.0
    bias = levels / count
    return min(max((total / count + bias) / max(1 - 3 * bias, 0.2), 0.0), MAX_AUTOCORRELATION)


def row_medians(rows: Table) -> Table:
    """The median of each row without its NaN; NaN for a row of NaN.  `np.nanmedian` is ten times as slow here."""
    if not rows.size:
        return np.full(len(rows), np.nan)
    ordered, counts = np.sort(rows, axis=1), row_counts(rows)  # NaN is sorted last
    each, last = np.arange(len(rows)), rows.shape[1] - 1
    lower, upper = np.maximum(counts - 1, 0) // 2, np.minimum(counts // 2, last)
    middle = (ordered[each, lower] + ordered[each, upper]) / 2
    return np.asarray(middle)


def row_counts(rows: Table) -> NDArray[np.int64]:
    return np.asarray((~np.isnan(rows)).sum(axis=1))
