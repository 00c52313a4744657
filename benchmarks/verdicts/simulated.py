"""Simulated runs: trials of equal code as an H200 made them, disturbed, measured as long as the judge asks for more."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from benchmarks.verdicts.h200 import Donor, donors
from kernels.arena.session import order
from kernels.cases import Metric
from service.domain.policy.policy import Policy
from service.domain.stats.case_variances import PastComparison, learn
from service.domain.stats.estimates import variance, winsorised_mean
from service.domain.verdicts.analysis import NONE_KNOWN, KnownVariances
from service.domain.verdicts.judge import Why, trials_until_next_look, wanted
from service.domain.verdicts.samples import Cell, Pairs

CASES = 200
ROUNDS = 4  # of a trial, as in runs of many cases on a GPU (workers/run/trials.py); few cases have 8, and vary less
SIDES = 3  # head, baseline and the copy of the baseline
BUILDS, BUILD_OF = 2, [0, 1, 1]  # the build of each side
ROUND_SD = 0.001  # of one side's sample, where the noise is not drawn from the H200
PAST = 10  # calibrations of the worker that the judge knows: controls, and two builds of one source
PROVIDER = "norms"
POLICY = Policy()
# A trial of two equal sides lacks a third.  The copy is this share of their own difference, and for the rest that of
# another trial: then head and copy correlate as two sides that are compared with the same third.
_OWN, _OTHER = 0.5, math.sqrt(0.75)


@dataclass(frozen=True)
class Noise:
    """Trials as they were measured on an H200 (`sd` None) or normal with `sd`, and what disturbs them, in shares of 1.

    A pair is how often something happens, and by how much.
    """

    name: str
    says: str
    sd: float | None = None  # of head over baseline
    scale: tuple[float, float] = (1.0, 1.0)  # each case's noise is multiplied by a log-uniform number between these
    tails: float | None = None  # degrees of freedom of Student's t, of what trials add; None leaves them as they are
    outlier_trial: tuple[float, float] = (0.0, 0.0)
    odd_round: tuple[float, float] = (0.0, 0.0)
    slow_clock: tuple[float, float] = (0.0, 0.0)  # a side in a whole trial
    slow_moment: tuple[float, float] = (0.0, 0.0)  # a side in half of the rounds of a trial
    modes: tuple[float, float] = (0.0, 0.0)  # a process, in all rounds of its trial
    drift: float = 0.0  # of the machine within a trial; the side that is second in a round has more of it
    alike: float = 0.0  # correlation of a trial with the next one
    # What all trials of a session share, of head over baseline, each contender drawing its own:
    offset: float = 0.0  # sd, a case its own
    side: float = 0.0  # sd, the same at all cases of a contender
    # The same of two builds of one source.  The copy of the baseline is of its build.
    build: float = 0.0  # sd, a case its own
    build_side: float = 0.0  # sd, the same at all cases of a build
    controlled: bool = True  # a copy of the baseline shares the session


NOISES = (
    Noise("h200", "as measured on the H200"),
    Noise("tails", "heavy tails: what trials add is spread by Student's t with 3 degrees of freedom", tails=3),
    Noise("unlike", "each case its own variance: noise times .25 to 4", scale=(0.25, 4.0)),
    Noise("alike", "trials of a session alike: each like the one before (AR .8)", alike=0.8),
    Noise("offsets", "an offset of the session at each case, sd .3 %", offset=0.003),
    Noise("shifts", "an offset of the session at each case, sd .07 %, the largest of the H200", offset=0.0007),
    Noise("sides", "an offset of the session for each contender, the same at all its cases, sd .3 %", side=0.003),
    Noise("builds", "an offset of the build at each case, sd .08 %", build=0.0008),
    Noise("layouts", "an offset of the build at each case, sd .3 %", build=0.003),
    Noise("links", "an offset of the build, the same at all its cases, sd .3 %", build_side=0.003),
    Noise("both", "offsets of the session and of the build at each case, sd .3 % each", offset=0.003, build=0.003),
    Noise(
        "moments",
        "a slow moment: one side 3 % slower in half of the rounds, in one trial of 7",
        slow_moment=(0.15, 0.03),
    ),
    Noise("clocks", "a side's clock 3 % slower in one trial of 7", slow_clock=(0.15, 0.03)),
    Noise("modes", "modes: one process in 4 is 1 % slower", modes=(0.25, 0.01)),
    Noise("drift", "the machine becomes 5 % slower within each trial", drift=0.05),
    Noise(
        "outliers",
        "one trial in 20 off by 3 %, one sample in 20 by 10 %",
        outlier_trial=(0.05, 0.03),
        odd_round=(0.05, 0.1),
    ),
    Noise("loud", "noise times 8", scale=(8.0, 8.0)),
    Noise("normal", "normal, trial sd .25 %, the same for all", sd=0.0025),
)
SESSIONS = ("alike", "offsets", "shifts", "sides")  # what more trials do not average out

_ORDER = [[int(side) for side in order("012", number)] for number in range(ROUNDS)]


@cache
def _by_source() -> dict[str, list[list[Donor]]]:
    """The donors of each source: the short ones, and the long ones."""
    found: dict[str, list[list[Donor]]] = {}
    for one in donors():
        found.setdefault(one.source, [[], []])[one.long].append(one)
    return found


def names(size: int = CASES) -> list[str]:
    """Cases in 8 groups of op, direction and dtype."""
    groups = list(product(("rmsnorm", "layernorm"), ("fwd", "bwd"), ("bf16", "fp32")))
    return sorted(_named(*groups[n % len(groups)], n) for n in range(size))


def _named(op: str, direction: str, dtype: str, number: int) -> str:
    return f"{op}.{direction}.{1024 * (number + 1)}x4096.{dtype}"


def _numbered(case: str, number: int) -> str:
    """A case of the same group."""
    op, direction, _, dtype, *_ = case.split(".")
    return _named(op, direction, dtype, number)


class Family:
    """The truth of one run, and as many trials of it as somebody asks for.

    `effects` are logs, one for each case.  The `cases` of the H200 are drawn, unless they are given.
    """

    def __init__(self, noise: Noise, effects: Sequence[float], seed: int, cases: Sequence[Donor] | None = None) -> None:
        self.noise, self.effects, self.size = noise, np.array(effects), len(effects)
        self._dice = np.random.default_rng(seed)
        low, high = (math.log(end) for end in noise.scale)
        self._scale = np.exp(self._dice.uniform(low, high, self.size))
        if noise.sd is None:
            self._donors = self._drawn() if cases is None else cases
            self.took_us = np.array([one.us for one in self._donors])
            texts = [one.case for one in self._donors]
            self.names = texts if cases else [_numbered(text, number) for number, text in enumerate(texts)]
        else:
            self.took_us = np.exp(self._dice.uniform(math.log(10), math.log(1000), self.size))  # half below 100 us
            self.names = names(self.size)
        self.begin()

    def _drawn(self) -> list[Donor]:
        """Cases of one source, which is drawn by its number of cases; each second case is long."""
        sources = _by_source()
        weights = np.array([sum(map(len, lengths)) for lengths in sources.values()], dtype=float)
        lengths = list(sources.values())[int(self._dice.choice(len(weights), p=weights / weights.sum()))]
        kinds = self._dice.permutation(np.arange(self.size) % 2)
        pools = [lengths[kind] or lengths[1 - kind] for kind in kinds]
        return [pool[int(self._dice.integers(len(pool)))] for pool in pools]

    def begin(self) -> None:
        """Draw what all trials of the next session share."""
        at_cases = self._dice.normal(size=(SIDES, self.size)) * self.noise.offset
        self._offsets = (at_cases + self._dice.normal(size=(SIDES, 1)) * self.noise.side) / math.sqrt(2)
        if self.noise.build or self.noise.build_side:
            builds = self._dice.normal(size=(BUILDS, self.size)) * self.noise.build
            builds += self._dice.normal(size=(BUILDS, 1)) * self.noise.build_side
            self._offsets += builds[BUILD_OF] / math.sqrt(2)
        self._last = np.full((SIDES, self.size), np.nan)

    def past(self, sessions: int = PAST, share: float = 1.0, part: float = 1.0) -> KnownVariances:
        """What earlier calibrations say, in which noise was `share` of today's, at a part of the cases."""
        past = []
        shares = np.where(np.arange(self.size) < part * self.size, share, 1.0)
        for session in range(sessions):
            self.begin()
            trials = [self.trial(np.arange(self.size)) for _ in range(POLICY.screening[0])]
            for place, name in enumerate(self.names):
                for side, is_copy in ((2, True), (0, False)):
                    effects = [
                        shares[place] * winsorised_mean(np.log(trial[side, place] / trial[1, place]).tolist())
                        for trial in trials
                    ]
                    centre, own = fmean(effects), variance(effects)
                    past.append(PastComparison(session, (PROVIDER, name), centre, own, len(effects) - 1, is_copy))
        self.begin()
        learned = learn(past, POLICY.screening[0] - 1)
        return {Metric.KERNEL: learned} if learned else NONE_KNOWN

    def trial(self, cases: NDArray[np.int64]) -> NDArray[np.float64]:
        """Head, baseline and its copy at these cases in one trial: contenders x cases x rounds, in us."""
        noise, dice, count = self.noise, self._dice, len(cases)
        rounds = self._normal(count) if noise.sd is not None else self._redrawn(cases)
        rounds *= self._scale[cases, None]
        added = np.median(rounds, axis=2)  # the winsorised mean of four
        rounds -= added[:, :, None]
        if noise.tails is not None:
            added *= np.sqrt(noise.tails / dice.chisquare(noise.tails, (SIDES, count)))
        if noise.alike:
            added = self._like_the_last(added, cases)
        logs = added + self._offsets[:, cases]
        logs[0] += self.effects[cases]
        logs[::2] += self._odd(noise.outlier_trial, (2, count)) * dice.choice((-1, 1), (2, count))
        logs += self._odd(noise.slow_clock, (SIDES, count)) + self._odd(noise.modes, (SIDES, count))
        samples = rounds + logs[:, :, None] + self._odd(noise.odd_round, rounds.shape)
        samples[:, :, : ROUNDS // 2] += self._odd(noise.slow_moment, (SIDES, count))[:, :, None]
        turns = np.array([[turn.index(side) for turn in _ORDER] for side in range(SIDES)])
        turns = (turns + SIDES * np.arange(ROUNDS)) / (SIDES * ROUNDS)
        return np.exp(samples + noise.drift * turns[:, None, :] + np.log(self.took_us[cases])[:, None])

    def _normal(self, count: int) -> NDArray[np.float64]:
        added = self._dice.normal(0, (self.noise.sd or 0.0) / math.sqrt(2), (SIDES, count, 1))
        return added + self._dice.normal(0, ROUND_SD, (SIDES, count, ROUNDS))

    def _redrawn(self, cases: NDArray[np.int64]) -> NDArray[np.float64]:
        """Whole trials of the donors, with their rounds, and with three of their sides."""
        found = np.empty((SIDES, len(cases), ROUNDS))
        for place, case in enumerate(cases):
            trials = self._donors[case].trials
            whole = self._sides(trials)
            if len(whole) < SIDES:
                other = self._sides(trials)
                copy = whole[1] + _OWN * (whole[0] - whole[1]) + _OTHER * (other[0] - other[1])
                whole = np.array([*whole, copy])
            found[:, place] = whole
        return found

    def _sides(self, trials: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Up to three sides of one trial in random order, in `ROUNDS` consecutive rounds."""
        trial = trials[int(self._dice.integers(len(trials)))]
        start = int(self._dice.integers(trial.shape[1] - ROUNDS + 1))
        return trial[self._dice.permutation(len(trial))[:SIDES], start : start + ROUNDS]

    def _like_the_last(self, fresh: NDArray[np.float64], cases: NDArray[np.int64]) -> NDArray[np.float64]:
        rho, before = self.noise.alike, self._last[:, cases]
        now = np.where(np.isnan(before), fresh, rho * before + math.sqrt(1 - rho**2) * fresh)
        self._last[:, cases] = now
        return now

    def _odd(self, what: tuple[float, float], shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        often, by = what
        return np.where(self._dice.random(shape) < often, by, 0.0) if often else np.zeros(shape)


WHYS: tuple[Why, Why] = ("look", "confirm")


@dataclass
class Session:
    """What was measured of a family, arranged as the worker does it; `known` of the worker's earlier sessions."""

    family: Family
    known: KnownVariances = field(default_factory=lambda: NONE_KNOWN)

    def __post_init__(self) -> None:
        self.cases = self.family.names
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
        asked = wanted(self.cells(), policy, self.known)
        return [place for place, case in enumerate(self.cases) if asked.get((PROVIDER, case)) == why]

    def cells(self) -> list[Cell]:
        return [self._cell(place, case) for place, case in enumerate(self.cases)]

    def _cell(self, place: int, case: str) -> Cell:
        (head, base, copy), (heads, bases, copies) = ([side[place] for side in self._taken[why]] for why in WHYS)
        control = Pairs((*copy, *copies), (*base, *bases)) if self.family.noise.controlled else Pairs()
        return Cell(PROVIDER, case, Pairs(tuple(head), tuple(base)), Pairs(tuple(heads), tuple(bases)), control)
