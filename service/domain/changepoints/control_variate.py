"""Remove the noise that a series shares with SOTA, measured in the same session: a control variate."""

import numpy as np

from service.domain.changepoints.step_test import Logs

LAG = 5  # revisions between the two values of a difference; long enough to contain drift of the machine
MIN_DIFFERENCES = 10  # needed to estimate theta
MAX_THETA = 1.2
TIGHT = 0.5  # correlation from which both sides count as equally noisy
OUTLYING = 4.0  # mean absolute differences (about 3.2 sigma) at which a difference is winsorised


def adjusted(value: Logs, reference: Logs) -> Logs:
    """`value` - theta * (`reference` - its median), both logs; each theta is estimated from earlier revisions.

    `reference` is NaN where SOTA was not measured; that revision is not adjusted.  The plain ratio is not used: it adds
    the noise of a reference that shares none with the candidate (control variates: Lavenberg and Welch, 1981).
    """
    known = ~np.isnan(reference)
    mine, theirs = value[known], reference[known]
    if len(theirs) <= LAG + MIN_DIFFERENCES:
        return value
    correction = np.zeros_like(value)
    correction[known] = _thetas(mine, theirs) * (theirs - np.median(theirs))
    return value - correction


def _thetas(mine: Logs, theirs: Logs) -> Logs:
    """For each revision the slope of `mine` over `theirs`, estimated from the winsorised differences before it.

    Differences and winsorising limit the weight of a change of level.  The slope is Deming's (1943) if both sides are
    about equally noisy, and least squares if they correlate weakly; it is shrunk towards 0 by its relative variance,
    (1 - r^2) / (r^2 n / LAG).  The first revisions take the first slope that can be estimated.
    """
    ours, others = _differences(mine), _differences(theirs)
    xx, yy, xy = (_earlier(product) for product in (others * others, ours * ours, others * ours))
    apart = np.maximum(np.arange(len(mine)) - LAG, 0) / LAG  # number of differences without common values
    with np.errstate(divide="ignore", invalid="ignore"):
        agreement = xy**2 / (xx * yy)
        deming = (yy - xx + np.sqrt((yy - xx) ** 2 + 4 * xy**2)) / (2 * xy)
        slope = np.where(agreement >= TIGHT**2, deming, xy / xx)
        shrunk = slope * apart * agreement / (apart * agreement + 1 - agreement)
    theta = np.clip(np.nan_to_num(shrunk), 0, MAX_THETA)
    theta[: LAG + MIN_DIFFERENCES] = theta[LAG + MIN_DIFFERENCES]
    return theta


def _differences(logs: Logs) -> Logs:
    """x[i] - x[i - LAG], winsorised by the differences before; 0 for the first LAG values."""
    apart = np.zeros_like(logs)
    apart[LAG:] = logs[LAG:] - logs[:-LAG]
    count = np.maximum(np.arange(len(logs)) - LAG, 0)
    limit = OUTLYING * np.divide(_earlier(np.abs(apart)), count, out=np.full_like(logs, np.inf), where=count > 0)
    return np.clip(apart, -limit, limit)


def _earlier(values: Logs) -> Logs:
    """For each value the sum of all values before it."""
    return np.cumsum(values) - values
