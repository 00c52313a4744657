"""How often verdicts err: families of simulated cases go through `judge` and `wanted`, launch by launch.

python -m service.studies.families [--families 2000] [--others 200] [--noise facts] [--quick] [--seed 1] [--out FOLDER]

A family is what one run measures: 200 cases in groups of op, direction and dtype, half of them shorter than 100 us.
Harmless families have no change; in the others one case in ten is slower by 1, 2, 3 or 5 %.
"""

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from service.cells import Cell, Outcome, Pairs
from service.policy import Policy
from service.statistics.looking import LEAST
from service.verdicts import CHANGES, Why, judge, launches_until_next_look, wanted

CASES = 200
EFFECTS = (0.01, 0.02, 0.03, 0.05)
PLANTED = 20  # of the cases of a family that is not harmless: five of each effect
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


def harmless(_seed: int) -> list[float]:
    return [0.0] * CASES


def planted(seed: int) -> list[float]:
    """One case in ten is slower, at random places."""
    effects = [0.0] * CASES
    places = np.random.default_rng(seed).permutation(CASES)[:PLANTED]
    for number, place in enumerate(places):
        effects[place] = math.log1p(EFFECTS[number % len(EFFECTS)])
    return effects


def edge(_seed: int) -> list[float]:
    """The hardest to keep quiet about: long cases are all slower by as much as is just no change yet."""
    return [LEAST * math.log1p(POLICY.smallest_change)] * CASES


TRUTHS = {"harmless": harmless, "planted": planted, "edge": edge}


def score(noise: Noise, truth: str, seed: int) -> Counter[str]:
    """What became of one family, in counts that add up over families."""
    effects, family = TRUTHS[truth](seed), Family(noise, TRUTHS[truth](seed), seed)
    cells = Session(family, names()).until_decided(POLICY)
    verdicts, found, false = judge(cells, POLICY), 0, 0
    count = Counter[str](families=1)
    for cell, effect, us in zip(cells, effects, family.took_us, strict=True):
        verdict = verdicts[cell.name]
        launches = len(cell.looked.candidate) + len(cell.confirmed.candidate)
        told = verdict.outcome in CHANGES
        found += told
        false += told and (truth != "planted" or not effect or verdict.outcome is Outcome.IMPROVEMENT)
        kind = f"{math.expm1(effect) * 100:.1f}% {'long' if us >= POLICY.short_us else 'short'} "
        count += Counter(
            {
                f"{kind}cases": 1,
                f"{kind}launches": launches,
                f"{kind}suspected": int(verdict.suspected),
                f"{kind}{'told' if told else verdict.outcome}": 1,
                **{f"{kind}told by {most}": int(told and launches <= most) for most in (5, 8)},
            }
        )
    return count + Counter(alarmed=int(false > 0), found=found, false=false, fdp=round(1e6 * false / max(1, found)))


def _scores(noise: Noise, truth: str, seeds: Sequence[int]) -> Counter[str]:
    return sum((score(noise, truth, seed) for seed in seeds), Counter[str]())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=int, default=2000, help="harmless and planted, with the noise of the facts")
    parser.add_argument("--others", type=int, default=200, help="the same for every other noise")
    parser.add_argument("--noise", action="append", choices=[noise.name for noise in NOISES], help="only this one")
    parser.add_argument("--quick", action="store_true", help="20 and 5, to see that it runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    facts, others = (20, 5) if chosen.quick else (chosen.families, chosen.others)
    found = dict[str, dict[str, Counter[str]]]()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for noise in NOISES:
            if noise.name not in (chosen.noise or [noise.name]):
                continue
            for truth, families in amounts(noise, facts, others).items():
                seeds = range(chosen.seed * 1_000_000, chosen.seed * 1_000_000 + families)
                chunks = [seeds[start : start + 25] for start in range(0, families, 25)]
                scored = pool.map(partial(_scores, noise, truth), chunks)
                found.setdefault(noise.name, {})[truth] = sum(scored, Counter[str]())
                sys.stderr.write(f"{noise.name} {truth}: {families} families\n")
                if chosen.out:
                    keep(found, chosen.out)
    sys.stdout.write(table(found))


def amounts(noise: Noise, facts: int, others: int) -> dict[str, int]:
    """How many families of each truth."""
    if noise.name != "facts":
        return {"harmless": others, "planted": others}
    return {"harmless": facts, "planted": facts, "edge": max(1, facts // 4)}


def keep(found: Mapping[str, Mapping[str, Counter[str]]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables.md").write_text(table(found))
    (folder / "counts.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def table(found: Mapping[str, Mapping[str, Counter[str]]]) -> str:
    """What is in the documents: harmless families, and what is found of the planted."""
    lines = [
        "| noise | families | any alarm | 95 % at most | suspected | steady | inconclusive | launches a case |",
        "|---|---|---|---|---|---|---|---|",
    ]
    says = {noise.name: noise.says for noise in NOISES}
    for name, truths in found.items():
        for truth in ("harmless", "edge"):
            if (seen := truths.get(truth)) is None:
                continue
            cases, families, alarmed = _all(seen, "cases"), seen["families"], seen["alarmed"]
            most = float(betaincinv(alarmed + 1, max(families - alarmed, 1), 0.95))
            what = (
                says[name]
                if truth == "harmless"
                else f"the same, long cases slower by {LEAST * POLICY.smallest_change:.1%}"
            )
            shares = [f"{_all(seen, key) / cases:.4f}" for key in ("suspected", "steady", "inconclusive")]
            per_case = _all(seen, "launches") / cases
            rates = (f"{alarmed / families:.4f}", f"{most:.4f}", *shares, f"{per_case:.2f}")
            lines.append(f"| {what} | {families} | {' | '.join(rates)} |")
    lines += [
        "",
        "| noise | families | false of those told | 1 % in 8 launches | in all | 2 % in 5 | in 8 | in all "
        "| 3 % in 8 | 5 % in 8 | 1 % called steady |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, truths in found.items():
        if (seen := truths.get("planted")) is None:
            continue
        asked = (
            "1.0 told by 8",
            "1.0 told",
            "2.0 told by 5",
            "2.0 told by 8",
            "2.0 told",
            "3.0 told by 8",
            "5.0 told by 8",
            "1.0 steady",
        )
        shares = [f"{_of_long(seen, *key.split(' ', 1)):.3f}" for key in asked]
        lines.append(
            f"| {says[name]} | {seen['families']} | {seen['fdp'] / 1e6 / seen['families']:.5f} | {' | '.join(shares)} |"
        )
    return "\n".join(lines) + "\n"


def _all(seen: Counter[str], key: str) -> int:
    return sum(number for name, number in seen.items() if name.endswith(f" {key}"))


def _of_long(seen: Counter[str], effect: str, key: str) -> float:
    """A share of the planted cases above 100 us, whose smallest relevant change is 1 %."""
    return seen[f"{effect}% long {key}"] / max(1, seen[f"{effect}% long cases"])


if __name__ == "__main__":
    main()
