"""One number for a launch: how much longer the candidate took than its baseline, as the log of the ratio."""

import math
from collections.abc import Sequence

TRIMMED = 0.2  # of the rounds at each end, and at least one: four rounds have an outlier as well


def launch_effect(candidate: Sequence[float | None], baseline: Sequence[float | None]) -> float | None:
    """The winsorised mean over rounds of log(candidate / baseline); None without a round that both sides have.

    Both sides of a round saw the same machine, so they are paired by round, and a round that one side lost is left out
    on both.  The outer fifth at each end is pulled in to its neighbour (Tukey & McLaughlin 1963): one disturbed round
    moves a mean at will and this hardly, and it wastes less than the median of few rounds does.
    """
    logs = [math.log(mine / theirs) for mine, theirs in zip(candidate, baseline, strict=False) if mine and theirs]
    return winsorised_mean(logs) if logs else None


def winsorised_mean(values: Sequence[float]) -> float:
    """The mean after the outer fifth at each end took the value of its neighbour; of three or four: the median."""
    ordered, count = sorted(values), len(values)
    if count < 3:
        return sum(ordered) / count
    cut = max(1, int(TRIMMED * count))
    return (sum(ordered[cut : count - cut]) + cut * (ordered[cut] + ordered[-cut - 1])) / count
