"""Simulated runs of 200 cases, half of them shorter than 100 us, measured launch by launch as long as somebody asks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from service.cells import Cell, Pairs
from service.policy import Policy
from service.verdicts import Why, launches_until_next_look, wanted

CASES = 200
MANY, FEW_ROUNDS = 60, 4  # a launch of more cases has so few rounds on a GPU (workers/launches.py)
ROUND_SD = 0.001  # of one side's sample; head over parent was measured at .0015 (H200, November)
POLICY = Policy()


@dataclass(frozen=True)
class Noise:
    """What a launch adds to the log of head over baseline, in shares of 1."""

    name: str
    says: str
    sd: float = 0.0025  # of a launch (H200: half of the cases below .001, one in ten above .0017)
    widest: float | None = None  # a case's own sd is log-uniform from sd to this
    shared: float = 0.0  # the part of the variance that all cases of a launch have in common
    slow_clock: tuple[float, float] = (0.0, 0.0)  # how often a side has one in a launch, and how much slower it is then
    odd_launch: tuple[float, float] = (0.0, 0.0)  # how often a launch is off, and by how much, either way
    odd_round: tuple[float, float] = (0.0, 0.0)  # how often a sample is off, and by how much
    strangers: tuple[float, float] = (0.0, 0.0)  # which part of the cases has another sd, and which
    drift: float = 0.0  # of the machine within a launch; whoever goes second in a round has more of it


NOISES = (
    Noise("facts", "launch sd .25 %, the same for all"),
    Noise("shared", "the same, and half of its variance is the machine's", shared=0.5),
    Noise("unlike", "sd from .05 to 1 %, each case its own", sd=0.0005, widest=0.01),
    Noise("strangers", "one case in 20 has a launch sd of 1 %", strangers=(0.05, 0.01)),
    Noise(
        "outliers",
        "one launch in 20 is off by 3 %, one sample in 20 by 10 %",
        odd_launch=(0.05, 0.03),
        odd_round=(0.05, 0.1),
    ),
    Noise("clocks", "a side's clock is 3 % slower in one launch of 7", slow_clock=(0.15, 0.03)),
    Noise("drift", "the machine becomes 5 % slower within each launch", drift=0.05),
    Noise("loud", "launch sd 2 %", sd=0.02),
)


def names() -> list[str]:
    """200 cases: 8 groups of op, direction and dtype, 25 shapes each."""
    groups = product(("rmsnorm", "layernorm"), ("fwd", "bwd"), ("bf16", "fp32"))
    return [f"{op}.{direction}.{1024 * n}x4096.{dtype}" for op, direction, dtype in groups for n in range(1, 26)]


class Family:
    """The truth of one family, and as many launches of it as somebody asks for."""

    def __init__(self, noise: Noise, effects: Sequence[float], seed: int) -> None:
        self.noise, self.effects = noise, np.array(effects)
        self._dice = np.random.default_rng(seed)
        self.took_us = np.exp(self._dice.uniform(math.log(10), math.log(1000), CASES))  # half below 100 us
        low, high = math.log(noise.sd), math.log(noise.widest or noise.sd)
        self.sd = np.exp(self._dice.uniform(low, high, CASES))
        self.sd[self._dice.random(CASES) < noise.strangers[0]] = noise.strangers[1]

    def launch(self, cases: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Candidate and baseline of these cases in one launch: cases x rounds, in us."""
        noise, dice, count = self.noise, self._dice, len(cases)
        rounds = FEW_ROUNDS if count > MANY else POLICY.rounds
        common = dice.normal() * math.sqrt(noise.shared)
        effect = self.effects[cases] + self.sd[cases] * (common + math.sqrt(1 - noise.shared) * dice.normal(size=count))
        effect += self._odd(noise.odd_launch, count) * dice.choice((-1, 1), count)
        effect += self._odd(noise.slow_clock, count) - self._odd(noise.slow_clock, count)
        sides = dice.normal(0, ROUND_SD, (2, count, rounds)) + self._odd(noise.odd_round, (2, count, rounds))
        first = np.arange(rounds) % 2
        turns = np.stack((2 * np.arange(rounds) + first, 2 * np.arange(rounds) + 1 - first)) / (2 * rounds)
        logs = sides + noise.drift * turns[:, None, :] + np.log(self.took_us[cases])[:, None]
        return np.exp(logs[0] + effect[:, None]), np.exp(logs[1])

    def _odd(self, what: tuple[float, float], shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        often, by = what
        return np.where(self._dice.random(shape) < often, by, 0.0)


@dataclass
class Session:
    """What was measured of a family, arranged as the worker does it."""

    family: Family
    cases: list[str]

    def __post_init__(self) -> None:
        self._taken: dict[Why, list[list[tuple[tuple[float, ...], tuple[float, ...]]]]] = {
            "look": [[] for _ in self.cases],
            "confirm": [[] for _ in self.cases],
        }

    def until_decided(self, policy: Policy) -> list[Cell]:
        """First every look, then every confirmation, as `workers.launches` does."""
        on = list(range(len(self.cases)))
        for why in ("look", "confirm"):
            done = 0
            if why == "confirm":
                on = self._asked("confirm", policy)
            while on and (more := launches_until_next_look(done, policy, why)):
                for _ in range(more):
                    self._launch(why, on)
                done += more
                on = self._asked(why, policy)
        return self.cells()

    def _launch(self, why: Why, on: Sequence[int]) -> None:
        candidate, baseline = self.family.launch(np.array(on))
        for place, mine, theirs in zip(on, candidate.tolist(), baseline.tolist(), strict=True):
            self._taken[why][place].append((tuple(mine), tuple(theirs)))

    def _asked(self, why: Why, policy: Policy) -> list[int]:
        asked = wanted(self.cells(), policy)
        return [place for place, case in enumerate(self.cases) if asked.get(("norms", case)) == why]

    def cells(self) -> list[Cell]:
        looks, confirms = self._taken["look"], self._taken["confirm"]
        return [
            Cell("norms", case, _pairs(looks[place]), _pairs(confirms[place])) for place, case in enumerate(self.cases)
        ]


def _pairs(launches: Sequence[tuple[tuple[float, ...], tuple[float, ...]]]) -> Pairs:
    return Pairs(tuple(mine for mine, _ in launches), tuple(theirs for _, theirs in launches))
