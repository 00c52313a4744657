"""What a series says once SOTA, measured in the same session, has told what the machine did: a control variate."""

import numpy as np
from numpy.typing import NDArray

from service.history.steps import MAD_TO_SIGMA, Logs

LAG = 5  # revisions between the two values of a difference: long enough to see a machine drift
SHORTEST = 10  # differences before anything is believed of theta
SHRINKING = 20  # differences that "theta is 0" counts for
LARGEST_THETA = 1.2
TIGHT = 0.5  # correlation from which both sides are taken for equally noisy


def adjusted(value: Logs, reference: Logs) -> Logs:
    """log(value) - theta (log(reference) - its usual), each theta and each usual from earlier revisions alone.

    `reference` is NaN where SOTA was not measured; such a revision stays as it is.  Never the plain ratio: dividing by
    a reference that shares no noise with the candidate adds its noise to it (control variates: Lavenberg and Welch,
    1981).
    """
    if np.isnan(reference).all():
        return value
    known = ~np.isnan(reference)
    correction = np.zeros_like(value)
    mine, theirs = value[known], reference[known]
    correction[known] = _thetas(mine, theirs) * (theirs - _usual(theirs))
    return value - correction


def _thetas(mine: Logs, theirs: Logs) -> Logs:
    """For each revision the slope of mine over theirs, in differences up to the revision before.

    Differences, because a change of level then counts `LAG` times and not for ever, and winsorised for the same
    reason.  Deming's slope (1943) where both are about equally noisy, least squares where they hardly agree.
    """
    ours, others = _differences(mine), _differences(theirs)
    xx, yy, xy = (_earlier(product) for product in (others * others, ours * ours, others * ours))
    count = np.maximum(np.arange(len(mine)) - LAG, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = xy / np.sqrt(xx * yy)
        deming = (yy - xx + np.sqrt((yy - xx) ** 2 + 4 * xy**2)) / (2 * xy)
        slope = np.where(correlation >= TIGHT, deming, xy / xx)
    theta = np.clip(np.nan_to_num(slope), 0, LARGEST_THETA) * count / (count + SHRINKING)
    return np.where(count >= SHORTEST, theta, 0.0)


def _differences(logs: Logs) -> Logs:
    """x[i] - x[i - LAG] (0 for the first), pulled in to three deviations."""
    apart = np.zeros_like(logs)
    apart[LAG:] = logs[LAG:] - logs[:-LAG]
    limit = 3 * MAD_TO_SIGMA * float(np.median(np.abs(apart))) if len(apart) else 0.0
    return np.clip(apart, -limit, limit)


def _earlier(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums over what came before each."""
    return np.cumsum(values) - values


def _usual(theirs: Logs) -> Logs:
    """The mean up to and with each."""
    return np.cumsum(theirs) / np.arange(1, len(theirs) + 1)
