"""Noise without any step, so that every change that is found is false.  Logs, one value a revision."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Logs = NDArray[np.float64]

SIGMA = 0.01  # standard deviation of the noise
OWN_SIGMA = 0.002  # of what a series and SOTA do not share, where SOTA is measured
MODES_APART = 0.03
DRIFT_MEMORY = 0.95
ODD_DAYS = 0.02  # share of the revisions that were measured on an odd day
ODD = 0.1  # mean size of an odd day

Noise = Callable[[np.random.Generator, int], Logs]


def white(random: np.random.Generator, count: int) -> Logs:
    return random.normal(0, SIGMA, count)


def autoregressive(random: np.random.Generator, count: int, memory: float) -> Logs:
    """AR(1) noise with the standard deviation `SIGMA`."""
    shocks = random.normal(0, SIGMA * np.sqrt(1 - memory**2), count)
    logs = np.empty(count)
    last = random.normal(0, SIGMA)
    for place, shock in enumerate(shocks):
        logs[place] = last = memory * last + shock
    return logs


def sticky(random: np.random.Generator, count: int, stay: int) -> Logs:
    """Two modes, each left after a geometric number of revisions with the mean `stay`."""
    flips = np.cumsum(random.random(count) < 1 / stay)
    return np.asarray(MODES_APART * (flips % 2) + random.normal(0, SIGMA / 2, count))


def odd_days(random: np.random.Generator, count: int) -> Logs:
    """White noise with single values that are far too high."""
    odd = (random.random(count) < ODD_DAYS) * random.exponential(ODD, count)
    return white(random, count) + odd


NOISES: dict[str, Noise] = {
    "white": white,
    "AR(.9)": lambda random, count: autoregressive(random, count, 0.9),
    "AR(.97)": lambda random, count: autoregressive(random, count, 0.97),
    "AR(.97), white": lambda random, count: autoregressive(random, count, 0.97) + random.normal(0, OWN_SIGMA, count),
    "AR(.9), equal white": lambda random, count: autoregressive(random, count, 0.9) + white(random, count),
    "AR(.97), half white": lambda random, count: autoregressive(random, count, 0.97) + white(random, count) / 2,
    "drift": lambda random, count: autoregressive(random, count, DRIFT_MEMORY),
    "modes of 20": lambda random, count: sticky(random, count, 20),
    "modes of 40": lambda random, count: sticky(random, count, 40),
    "modes of 80": lambda random, count: sticky(random, count, 80),
    "odd days": odd_days,
}


@dataclass(frozen=True)
class MadeSession:
    """The noise of a machine, and what it makes of a series and of SOTA, which have some noise of their own."""

    machine: Logs
    own: Logs
    sota: Logs


def sessions(noise: Noise, seed: int, series: int, revisions: int) -> Iterator[MadeSession]:
    for number in range(series):
        random = np.random.default_rng((seed, number))
        machine = noise(random, revisions)
        own, sota = random.normal(0, OWN_SIGMA, (2, revisions))
        yield MadeSession(machine, machine + own, machine + sota)
