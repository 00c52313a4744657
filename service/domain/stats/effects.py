"""The effect of a trial: the log-ratio of candidate over baseline."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

MANY = 16  # trials from which on an array is faster
WINSORISED = 0.2  # share of the rounds at each end, and at least one round


def trial_effect(candidate: Sequence[float | None], baseline: Sequence[float | None]) -> float | None:
    """The winsorised mean over rounds of log(candidate / baseline); None if no round has both sides.

    Both sides of a round ran on the machine in the same state, so they are paired by round; a round that one side lost
    is left out.  Winsorising (Tukey & McLaughlin 1963) limits the influence of a disturbed round, and is more efficient
    than the median of a few rounds.
    """
    logs = [math.log(mine / theirs) for mine, theirs in zip(candidate, baseline, strict=False) if mine and theirs]
    return winsorised_mean(logs) if logs else None


def trial_effects(trials: Sequence[tuple[Sequence[float | None], Sequence[float | None]]]) -> list[float | None]:
    """`trial_effect` of many trials.  Trials without a lost round are computed together, several times as fast."""
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
    """The effects of trials with the same number of rounds; not finite where a round was lost."""
    sides = np.array(trials, dtype=float)  # a lost round is NaN
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.sort(np.log(sides[:, 0] / sides[:, 1]), axis=1)
    rounds = logs.shape[1]
    cut = _cut(rounds)
    means = (logs[:, cut : rounds - cut].sum(1) + cut * (logs[:, cut] + logs[:, -cut - 1])) / rounds
    whole: list[float] = np.where(np.isfinite(logs).all(1), means, np.nan).tolist()
    return whole


def winsorised_mean(values: Sequence[float]) -> float:
    """The mean with the outer fifth at each end set to the nearest inner value; of three or four values the median."""
    ordered, count = sorted(values), len(values)
    if count < 3:
        return sum(ordered) / count
    cut = _cut(count)
    return (sum(ordered[cut : count - cut]) + cut * (ordered[cut] + ordered[-cut - 1])) / count


def _cut(count: int) -> int:
    return max(1, int(WINSORISED * count))
