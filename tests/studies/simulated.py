"""Simulated runs of 200 cases, half of them shorter than 100 us, measured trial by trial as long as somebody asks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from kernels.arena.session import order
from service.domain.policy.policy import Policy
from service.domain.verdicts.judge import Why, trials_until_next_look, wanted
from service.domain.verdicts.samples import Cell, Pairs

CASES = 200
MANY, FEW_ROUNDS = 60, 4  # a trial of more cases has so few rounds on a GPU (workers/run/trials.py)
SIDES = 3  # head, baseline and the copy of the baseline
ROUND_SD = 0.001  # of one side's sample; head over parent was measured at .0015 (H200, November)
POLICY = Policy()


@dataclass(frozen=True)
class Noise:
    """What a trial adds to the log of head over baseline, in shares of 1."""

    name: str
    says: str
    sd: float = 0.0025  # of a trial (H200: half of the cases below .001, one in ten above .0017)
    widest: float | None = None  # a case's own sd is log-uniform from sd to this
    shared: float = 0.0  # the part of the variance that all cases of a trial have in common
    slow_clock: tuple[float, float] = (0.0, 0.0)  # how often a side has one in a trial, and how much slower it is then
    outlier_trial: tuple[float, float] = (0.0, 0.0)  # how often a trial is off, and by how much, either way
    odd_round: tuple[float, float] = (0.0, 0.0)  # how often a sample is off, and by how much
    strangers: tuple[float, float] = (0.0, 0.0)  # which part of the cases has another sd, and which
    drift: float = 0.0  # of the machine within a trial; whoever goes second in a round has more of it
    controlled: bool = True  # a copy of the baseline shares the session
    # What all trials of a session share, of head over baseline, each contender drawing its own:
    offset: float = 0.0  # sd, a case its own
    side: float = 0.0  # sd, the same at all cases of a contender
    alike: float = 0.0  # correlation of a trial with the next one, of the trial sd


NOISES = (
    Noise("facts", "trial sd .25 %, the same for all"),
    Noise("shared", "the same, and half of its variance is the machine's", shared=0.5),
    Noise("unlike", "sd from .05 to 1 %, each case its own", sd=0.0005, widest=0.01),
    Noise("strangers", "one case in 20 has a trial sd of 1 %", strangers=(0.05, 0.01)),
    Noise(
        "outliers",
        "one trial in 20 is off by 3 %, one sample in 20 by 10 %",
        outlier_trial=(0.05, 0.03),
        odd_round=(0.05, 0.1),
    ),
    Noise("clocks", "a side's clock is 3 % slower in one trial of 7", slow_clock=(0.15, 0.03)),
    Noise("drift", "the machine becomes 5 % slower within each trial", drift=0.05),
    Noise("loud", "trial sd 2 %", sd=0.02),
    Noise("alike", "trial sd .5 %, each trial like the one before (AR .8)", sd=0.005, alike=0.8),
    Noise("offsets", "an offset of the session at each case, sd .3 %", offset=0.003),
    Noise("large offsets", "an offset of the session at each case, sd .5 %", offset=0.005),
    Noise("sides", "an offset of the session for each contender, the same at all its cases, sd .3 %", side=0.003),
    Noise("large sides", "an offset of the session for each contender, the same at all its cases, sd .5 %", side=0.005),
)
SESSIONS = ("alike", "offsets", "large offsets", "sides", "large sides")  # what more trials do not average out


_ORDER = [[int(side) for side in order("012", number)] for number in range(POLICY.rounds)]


def names() -> list[str]:
    """200 cases: 8 groups of op, direction and dtype, 25 shapes each."""
    groups = product(("rmsnorm", "layernorm"), ("fwd", "bwd"), ("bf16", "fp32"))
    return [f"{op}.{direction}.{1024 * n}x4096.{dtype}" for op, direction, dtype in groups for n in range(1, 26)]


class Family:
    """The truth of one family, and as many trials of it as somebody asks for."""

    def __init__(self, noise: Noise, effects: Sequence[float], seed: int) -> None:
        self.noise, self.effects = noise, np.array(effects)
        self._dice = np.random.default_rng(seed)
        self.took_us = np.exp(self._dice.uniform(math.log(10), math.log(1000), CASES))  # half below 100 us
        low, high = math.log(noise.sd), math.log(noise.widest or noise.sd)
        self.sd = np.exp(self._dice.uniform(low, high, CASES))
        self.sd[self._dice.random(CASES) < noise.strangers[0]] = noise.strangers[1]
        self._last = np.full((SIDES, CASES), np.nan)
        at_cases = self._dice.normal(size=(SIDES, CASES)) * noise.offset
        self._offsets = (at_cases + self._dice.normal(size=(SIDES, 1)) * noise.side) / math.sqrt(2)

    def trial(self, cases: NDArray[np.int64]) -> NDArray[np.float64]:
        """Head, baseline and its copy at these cases in one trial: contenders x cases x rounds, in us."""
        noise, dice, count = self.noise, self._dice, len(cases)
        rounds = FEW_ROUNDS if count > MANY else POLICY.rounds
        # Half of the variance of a ratio is each side's.
        common = dice.normal(size=(SIDES, 1)) * math.sqrt(noise.shared / 2)
        own = self._own(cases) * math.sqrt((1 - noise.shared) / 2)
        logs = self.sd[cases] * (common + own) + self._offsets[:, cases]
        logs[0] += self.effects[cases]
        logs[::2] += self._odd(noise.outlier_trial, (2, count)) * dice.choice((-1, 1), (2, count))
        logs += self._odd(noise.slow_clock, (SIDES, count))
        samples = dice.normal(0, ROUND_SD, (SIDES, count, rounds)) + self._odd(noise.odd_round, (SIDES, count, rounds))
        turns = np.array([[turn.index(side) for turn in _ORDER[:rounds]] for side in range(SIDES)])
        turns = (turns + SIDES * np.arange(rounds)) / (SIDES * rounds)
        samples += logs[:, :, None] + noise.drift * turns[:, None, :] + np.log(self.took_us[cases])[:, None]
        return np.exp(samples)

    def _own(self, cases: NDArray[np.int64]) -> NDArray[np.float64]:
        """What a trial adds at each case of each side, of variance 1, and like the trial before where they are."""
        fresh = self._dice.normal(size=(SIDES, len(cases)))
        if not self.noise.alike:
            return fresh
        rho = self.noise.alike
        before = self._last[:, cases]
        now = np.where(np.isnan(before), fresh, rho * before + math.sqrt(1 - rho**2) * fresh)
        self._last[:, cases] = now
        return now

    def _odd(self, what: tuple[float, float], shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        often, by = what
        return np.where(self._dice.random(shape) < often, by, 0.0)


WHYS: tuple[Why, Why] = ("look", "confirm")


@dataclass
class Session:
    """What was measured of a family, arranged as the worker does it."""

    family: Family
    cases: list[str]

    def __post_init__(self) -> None:
        self._taken: dict[Why, list[list[list[tuple[float, ...]]]]] = {
            why: [[[] for _ in self.cases] for _ in range(SIDES)] for why in WHYS
        }

    def until_decided(self, policy: Policy) -> list[Cell]:
        """First every look, then every confirmation, as `workers.run.trials` does."""
        on = list(range(len(self.cases)))
        for why in WHYS:
            done = 0
            if why == "confirm":
                on = self._asked("confirm", policy)
            while on and (more := trials_until_next_look(done, policy, why)):
                for _ in range(more):
                    self._trial(why, on)
                done += more
                on = self._asked(why, policy)
        return self.cells()

    def _trial(self, why: Why, on: Sequence[int]) -> None:
        for side, taken in zip(self._taken[why], self.family.trial(np.array(on)).tolist(), strict=True):
            for place, rounds in zip(on, taken, strict=True):
                side[place].append(tuple(rounds))

    def _asked(self, why: Why, policy: Policy) -> list[int]:
        asked = wanted(self.cells(), policy)
        return [place for place, case in enumerate(self.cases) if asked.get(("norms", case)) == why]

    def cells(self) -> list[Cell]:
        return [self._cell(place, case) for place, case in enumerate(self.cases)]

    def _cell(self, place: int, case: str) -> Cell:
        (head, base, copy), (heads, bases, copies) = ([side[place] for side in self._taken[why]] for why in WHYS)
        control = Pairs((*copy, *copies), (*base, *bases)) if self.family.noise.controlled else Pairs()
        return Cell("norms", case, Pairs(tuple(head), tuple(base)), Pairs(tuple(heads), tuple(bases)), control)
