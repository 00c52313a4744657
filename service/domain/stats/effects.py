"""One number for a trial: how much longer the candidate took than its baseline, as the log of the ratio."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

MANY = 16  # trials from which on an array is faster
TRIMMED = 0.2  # of the rounds at each end, and at least one: four rounds have an outlier as well


def trial_effect(candidate: Sequence[float | None], baseline: Sequence[float | None]) -> float | None:
    """The winsorised mean over rounds of log(candidate / baseline); None without a round that both sides have.

    Both sides of a round saw the same machine, so they are paired by round, and a round that one side lost is left out
    on both.  The outer fifth at each end is pulled in to its neighbour (Tukey & McLaughlin 1963): one disturbed round
    moves a mean at will and this hardly, and it wastes less than the median of few rounds does.
    """
    logs = [math.log(mine / theirs) for mine, theirs in zip(candidate, baseline, strict=False) if mine and theirs]
    return winsorised_mean(logs) if logs else None


def trial_effects(trials: Sequence[tuple[Sequence[float | None], Sequence[float | None]]]) -> list[float | None]:
    """`trial_effect` of many trials: those without a lost round together, which is several times as fast."""
    if len(trials) < MANY:
        return [trial_effect(mine, theirs) for mine, theirs in trials]
    found = list[float | None]([None] * len(trials))
    by_rounds = defaultdict[int, list[int]](list)
    for place, (mine, theirs) in enumerate(trials):
        by_rounds[len(mine) if len(mine) == len(theirs) else 0].append(place)
    for rounds, places in by_rounds.items():
        means = _winsorised([trials[place] for place in places]) if rounds > 2 else [math.nan] * len(places)
        for place, mean in zip(places, means, strict=True):
            found[place] = mean if math.isfinite(mean) else trial_effect(*trials[place])
    return found


def _winsorised(trials: Sequence[tuple[Sequence[float | None], Sequence[float | None]]]) -> list[float]:
    """Of trials with as many rounds; no finite number where a round was lost."""
    sides = np.array(trials, dtype=float)  # a lost round is no number, and makes none of its trial
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.sort(np.log(sides[:, 0] / sides[:, 1]), axis=1)
    rounds = logs.shape[1]
    cut = _cut(rounds)
    means = (logs[:, cut : rounds - cut].sum(1) + cut * (logs[:, cut] + logs[:, -cut - 1])) / rounds
    whole: list[float] = np.where(np.isfinite(logs).all(1), means, np.nan).tolist()
    return whole


def winsorised_mean(values: Sequence[float]) -> float:
    """The mean after the outer fifth at each end took the value of its neighbour; of three or four: the median."""
    ordered, count = sorted(values), len(values)
    if count < 3:
        return sum(ordered) / count
    cut = _cut(count)
    return (sum(ordered[cut : count - cut]) + cut * (ordered[cut] + ordered[-cut - 1])) / count


def _cut(count: int) -> int:
    return max(1, int(TRIMMED * count))
