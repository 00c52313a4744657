"""Remove the noise that a series shares with SOTA, measured in the same session: a control variate.  Pure.

The plain ratio is not used: it adds the noise of a reference that shares none with the candidate (control variates:
Lavenberg and Welch, 1981).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from service.domain.changepoints.noise import MAD_TO_SIGMA, Logs, Table, row_medians

# Revisions of a mean.  A step is tested with means, so the slope is that of means: noise of single values, which
# averages out, would hide what the machine does to both.
BLOCK = 8
OUTLYING = 3.0  # robust standard deviations from the slope beyond which a difference of means is left out
ROUNDS = 4  # of leaving out and estimating again
MAX_THETA = 1.2
MIN_RELIABILITY = 0.5
MIN_SERIES = 8  # that show how unlike the series of a device are
MIN_VARIANCE = 1e-6  # of a slope; one series that follows SOTA exactly must not decide for all


@dataclass(frozen=True)
class Slope:
    """By how much a series moves if the machine does, and the variance of that between the series of a device."""

    theta: float
    variance: float
    reliability: float = 1.0  # share of the variance of SOTA that is the machine's


UNKNOWN = Slope(0.0, 1.0)  # of a device with few series


def adjusted(value: Logs, reference: Logs, device: Slope = UNKNOWN) -> Logs:
    """`value` - theta * (`reference` - its median), both logs.

    `reference` is NaN where SOTA was not measured; that revision is not adjusted.  theta is the series' own slope,
    shrunk towards that of its `device` by the variances of both (empirical Bayes).  A constant series does not follow
    the machine.
    """
    known = ~np.isnan(reference)
    if not known.any() or np.ptp(value) == 0:
        return value
    [own], [variance] = _slopes(value[None, known], reference[None, known], device.reliability)
    theta = device.theta
    if np.isfinite(variance):
        theta = (own * device.variance + device.theta * variance) / (device.variance + variance)
    correction = np.zeros_like(value)
    correction[known] = min(max(theta, 0), MAX_THETA) * (reference[known] - np.median(reference[known]))
    return value - correction


def device_slope(values: Table, references: Table, cases: Sequence[str]) -> Slope:
    """The slope that a series of this device is expected to have, from all of its series.

    The variance is that between series (DerSimonian and Laird, 1986) and that of the mean.  Series that hardly vary
    are ignored, because a coarse clock shows no noise, and their slope of 0 would look exact.
    """
    reliability = _reliability(references, cases)
    thetas, variances = _slopes(values, references, reliability)
    measured = np.isfinite(variances) & (row_medians(np.abs(_moves(values))) > 0)
    if measured.sum() < MIN_SERIES:
        return UNKNOWN
    thetas = np.clip(thetas[measured], -MAX_THETA, 2 * MAX_THETA)
    variances = np.maximum(variances[measured], MIN_VARIANCE)
    weights = 1 / (variances + np.median(variances))
    theta = float(weights @ thetas / weights.sum())
    between = float(weights @ ((thetas - theta) ** 2 - variances) / weights.sum())
    variance = max(between, 0) + float(1 / weights.sum())
    if not (math.isfinite(theta) and math.isfinite(variance)):
        return UNKNOWN
    return Slope(min(max(theta, 0), MAX_THETA), variance, reliability)


def _reliability(references: Table, cases: Sequence[str]) -> float:
    """The share of the variance of SOTA that its other cases have as well.

    The rest is noise of one case, which makes slopes over it too small (Fuller, 1987, has the theory).  If most of the
    variance is such noise, slopes stay as they are: with more of SOTA, a series would take over more noise than it
    loses.
    """
    moves = _moves(references)
    known = ~np.isnan(moves)
    moves = np.where(known, moves, 0)
    _, case = np.unique(np.array(cases), return_inverse=True)
    of_case, count = (np.zeros((len(set(cases)), moves.shape[1])) for _ in range(2))
    np.add.at(of_case, case, moves)
    np.add.at(count, case, known)
    others, counts = (table.sum(axis=0) - table[case] for table in (of_case, count))
    common = np.divide(others, counts, out=np.zeros_like(others), where=counts > 0)
    total = float(np.sum(moves**2 * (counts > 0)))
    share = float(np.sum(moves * common)) / total if total > 0 else 1.0
    return min(share, 1.0) if share >= MIN_RELIABILITY else 1.0


def _slopes(values: Table, references: Table, reliability: float) -> tuple[Logs, Logs]:
    """The slope of each row over its reference and its variance, which is infinite if a row says nothing.

    Differences of neighbouring means do not count a change of level twice, and one that only one side makes is far from
    the slope and left out.
    """
    ours, others = _moves(values), _moves(references)
    known = ~np.isnan(ours) & ~np.isnan(others)
    ours, others = np.where(known, ours, 0), np.where(known, others, 0)
    kept, theta, left = known, np.zeros(len(ours)), ours
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(ROUNDS):
            theta = np.nan_to_num(np.sum(kept * ours * others, axis=1) / np.sum(kept * others**2, axis=1))
            left = ours - theta[:, None] * others
            sigma = MAD_TO_SIGMA * row_medians(np.where(known, np.abs(left), np.nan))
            kept = known & (np.abs(left) <= OUTLYING * sigma[:, None])
        blocks = known.sum(axis=1) / BLOCK  # differences overlap; so many have no common value
        variance = np.sum(kept * left**2, axis=1) / np.sum(kept * others**2, axis=1) / blocks
    return theta / reliability, np.where(np.isnan(variance) | (blocks < 1), np.inf, variance / reliability**2)


def _moves(rows: Table) -> Table:
    """Differences between the means of neighbouring blocks, one at each place."""
    if rows.shape[1] < 2 * BLOCK:
        return np.full((len(rows), 0), np.nan)
    means = sliding_window_view(rows, BLOCK, axis=1).mean(axis=2)
    return np.asarray(means[:, BLOCK:] - means[:, :-BLOCK])
