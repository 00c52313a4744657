"""One number for a launch: how much longer the candidate took than its baseline, as the log of the ratio."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

TRIMMED = 0.2  # of the rounds at each end, and at least one: four rounds have an outlier as well


def launch_effect(candidate: Sequence[float | None], baseline: Sequence[float | None]) -> float | None:
    """The winsorised mean over rounds of log(candidate / baseline); None without a round that both sides have.

    Both sides of a round saw the same machine, so they are paired by round, and a round that one side lost is left out
    on both.  The outer fifth at each end is pulled in to its neighbour (Tukey & McLaughlin 1963): one disturbed round
    moves a mean at will and this hardly, and it wastes less than the median of few rounds does.
    """
    logs = [math.log(mine / theirs) for mine, theirs in zip(candidate, baseline, strict=False) if mine and theirs]
    return winsorised_mean(logs) if logs else None


def launch_effects(launches: Sequence[tuple[Sequence[float | None], Sequence[float | None]]]) -> list[float | None]:
    """`launch_effect` of many launches: those without a lost round together, which is several times as fast."""
    found = list[float | None]([None] * len(launches))
    whole = defaultdict[int, list[int]](list)
    for place, (mine, theirs) in enumerate(launches):
        if len(mine) == len(theirs) > 2 and all(mine) and all(theirs):
            whole[len(mine)].append(place)
        else:
            found[place] = launch_effect(mine, theirs)
    for rounds, places in whole.items():
        sides = np.array([launches[place] for place in places], dtype=float)
        logs = np.sort(np.log(sides[:, 0] / sides[:, 1]), axis=1)
        cut = _cut(rounds)
        means = (logs[:, cut : rounds - cut].sum(1) + cut * (logs[:, cut] + logs[:, -cut - 1])) / rounds
        for place, mean in zip(places, means.tolist(), strict=True):
            found[place] = mean
    return found


def winsorised_mean(values: Sequence[float]) -> float:
    """The mean after the outer fifth at each end took the value of its neighbour; of three or four: the median."""
    ordered, count = sorted(values), len(values)
    if count < 3:
        return sum(ordered) / count
    cut = _cut(count)
    return (sum(ordered[cut : count - cut]) + cut * (ordered[cut] + ordered[-cut - 1])) / count


def _cut(count: int) -> int:
    return max(1, int(TRIMMED * count))
