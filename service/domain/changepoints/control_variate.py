"""What a series says once SOTA, measured in the same session, has told what the machine did: a control variate."""

import numpy as np

from service.domain.changepoints.step_test import Logs

LAG = 5  # revisions between the two values of a difference: long enough to see a machine drift
SHORTEST = 10  # differences before anything is believed of theta
LARGEST_THETA = 1.2
TIGHT = 0.5  # correlation from which both sides are taken for equally noisy
OUTLYING = 4.0  # mean absolute differences (some 3.2 sigma) to which a larger one is pulled in


def adjusted(value: Logs, reference: Logs) -> Logs:
    """log(value) - theta (log(reference) - its median), each theta learned from earlier revisions alone.

    `reference` is NaN where SOTA was not measured; such a revision stays as it is.  Never the plain ratio: dividing by
    a reference that shares no noise with the candidate adds its noise (control variates: Lavenberg and Welch, 1981).
    """
    known = ~np.isnan(reference)
    mine, theirs = value[known], reference[known]
    if len(theirs) <= LAG + SHORTEST:
        return value
    correction = np.zeros_like(value)
    correction[known] = _thetas(mine, theirs) * (theirs - np.median(theirs))
    return value - correction


def _thetas(mine: Logs, theirs: Logs) -> Logs:
    """For each revision the slope of mine over theirs, in differences up to the revision before.

    Differences, because a change of level then counts `LAG` times and not for ever, and pulled in for the same reason.
    Deming's slope (1943) where both are about equally noisy, least squares where they hardly agree, and shrunk towards
    0 by its own relative variance, (1 - r^2) / (r^2 n / LAG).  The first revisions have no past and take the first
    slope that is believed.
    """
    ours, others = _differences(mine), _differences(theirs)
    xx, yy, xy = (_earlier(product) for product in (others * others, ours * ours, others * ours))
    apart = np.maximum(np.arange(len(mine)) - LAG, 0) / LAG  # so many of the differences have no value in common
    with np.errstate(divide="ignore", invalid="ignore"):
        agreement = xy**2 / (xx * yy)
        deming = (yy - xx + np.sqrt((yy - xx) ** 2 + 4 * xy**2)) / (2 * xy)
        slope = np.where(agreement >= TIGHT**2, deming, xy / xx)
        shrunk = slope * apart * agreement / (apart * agreement + 1 - agreement)
    theta = np.clip(np.nan_to_num(shrunk), 0, LARGEST_THETA)
    theta[: LAG + SHORTEST] = theta[LAG + SHORTEST]
    return theta


def _differences(logs: Logs) -> Logs:
    """x[i] - x[i - LAG], 0 for the first ones, and none much larger than those before it."""
    apart = np.zeros_like(logs)
    apart[LAG:] = logs[LAG:] - logs[:-LAG]
    count = np.maximum(np.arange(len(logs)) - LAG, 0)
    limit = OUTLYING * np.divide(_earlier(np.abs(apart)), count, out=np.full_like(logs, np.inf), where=count > 0)
    return np.clip(apart, -limit, limit)


def _earlier(values: Logs) -> Logs:
    """Sums over what came before each."""
    return np.cumsum(values) - values
