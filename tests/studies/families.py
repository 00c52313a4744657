"""How often verdicts err: families of simulated cases go through `judge` and `wanted`, trial by trial.

python -m tests.studies.families [--families 2000] [--others 200] [--noise facts] [--quick] [--seed 1] [--out FOLDER]

A family is what one run measures: 200 cases in groups of op, direction and dtype, half of them shorter than 100 us.
Harmless families have no change; in the planted ones a case in ten is slower by 1, 2, 3 or 5 %.  At the edge everything
is slower by as much as is just no change yet, and in mixed families that is so of all that is not planted.
"""

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import betaincinv

from service.domain.stats.sequential import MIN_SHARE
from service.domain.verdicts.judge import CHANGES, judge
from service.domain.verdicts.samples import Outcome
from tests.studies.simulated import CASES, NOISES, POLICY, Family, Noise, Session, names

MESSAGES = (0.01, 0.02, 0.03, 0.05)
PLANTED = 20  # of the cases of a family that is not harmless: five of each effect
ALONE_SDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02)
LONG = POLICY.model_copy(
    update={"smallest_change_short": POLICY.smallest_change, "smallest_change_ns": 0.0}
)  # 1 % for all
EDGE = MIN_SHARE * math.log1p(POLICY.smallest_change)  # the log of what is just no change yet of a long case


def harmless(_seed: int) -> list[float]:
    return [0.0] * CASES


def planted(seed: int) -> list[float]:
    """One case in ten is slower, at random places."""
    effects = [0.0] * CASES
    places = np.random.default_rng(seed).permutation(CASES)[:PLANTED]
    for number, place in enumerate(places):
        effects[place] = math.log1p(MESSAGES[number % len(MESSAGES)])
    return effects


def edge(_seed: int) -> list[float]:
    """The hardest to keep quiet about: long cases are all slower by as much as is just no change yet."""
    return [EDGE] * CASES


def mixed(seed: int) -> list[float]:
    """The hardest equal case to keep quiet, among cases with changes."""
    return [effect or EDGE for effect in planted(seed)]


TRUTHS = {"harmless": harmless, "planted": planted, "edge": edge, "mixed": mixed}


def score(noise: Noise, truth: str, seed: int) -> Counter[str]:
    """What became of one family, in counts that add up over families."""
    effects, family = TRUTHS[truth](seed), Family(noise, TRUTHS[truth](seed), seed)
    cells = Session(family, names()).until_decided(POLICY)
    verdicts, found, false = judge(cells, POLICY), 0, 0
    count = Counter[str](families=1)
    for cell, effect, us in zip(cells, effects, family.took_us, strict=True):
        verdict = verdicts[cell.name]
        trials = len(cell.looked.candidate) + len(cell.confirmed.candidate)
        told = verdict.outcome in CHANGES
        found += told
        false += told and (effect <= EDGE or verdict.outcome is Outcome.IMPROVEMENT)
        kind = f"{math.expm1(effect) * 100:.1f}% {'long' if us >= POLICY.short_us else 'short'} "
        count += Counter(
            {
                f"{kind}cases": 1,
                f"{kind}trials": trials,
                f"{kind}suspected": int(verdict.suspected),
                f"{kind}{'told' if told else verdict.outcome}": 1,
                **{f"{kind}told by {most}": int(told and trials <= most) for most in (5, 8)},
            }
        )
    return count + Counter(alarmed=int(false > 0), found=found, false=false, fdp=round(1e6 * false / max(1, found)))


def _scores(noise: Noise, truth: str, seeds: Sequence[int]) -> Counter[str]:
    return sum((score(noise, truth, seed) for seed in seeds), Counter[str]())


def told_alone(sd: float, effect: float, seeds: Sequence[int]) -> int:
    """Of so many cases that have no family: how many are told, where trials vary by `sd` (in shares of 1)."""
    noise, told = replace(NOISES[0], sd=sd), 0
    for seed in seeds:
        cells = Session(Family(noise, [effect] * CASES, seed), names()[:1]).until_decided(LONG)
        told += sum(verdict.outcome in CHANGES for verdict in judge(cells, LONG).values())
    return told


def alone(count: int, seed: int) -> None:
    """The table of cases without a family."""
    seeds = range(seed * 1_000_000, seed * 1_000_000 + count)
    sys.stdout.write("| trial sd | told of those that are equal | of those slower by .4 % |\n|---|---|---|\n")
    for sd in ALONE_SDS:
        equal, nearly = (told_alone(sd, effect, seeds) / count for effect in (0.0, EDGE))
        sys.stdout.write(f"| {sd:.2%} | {equal:.4f} | {nearly:.4f} |\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=int, default=2000, help="harmless and planted, with the noise of the facts")
    parser.add_argument("--others", type=int, default=200, help="the same for every other noise")
    parser.add_argument("--noise", action="append", choices=[noise.name for noise in NOISES], help="only this one")
    parser.add_argument("--truth", action="append", choices=list(TRUTHS), help="only this one")
    parser.add_argument("--quick", action="store_true", help="20 and 5, to see that it runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--alone", type=int, help="so many cases without a family, instead")
    chosen = parser.parse_args()
    if chosen.alone:
        alone(chosen.alone, chosen.seed)
        return
    facts, others = (20, 5) if chosen.quick else (chosen.families, chosen.others)
    found = dict[str, dict[str, Counter[str]]]()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for noise in NOISES:
            if noise.name not in (chosen.noise or [noise.name]):
                continue
            for truth, families in amounts(noise, facts, others).items():
                if truth not in (chosen.truth or [truth]):
                    continue
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
        return {"harmless": others, "planted": others, "mixed": others}
    return {"harmless": facts, "planted": facts, "edge": max(1, facts // 4), "mixed": others}


def keep(found: Mapping[str, Mapping[str, Counter[str]]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables.md").write_text(table(found))
    (folder / "counts.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def table(found: Mapping[str, Mapping[str, Counter[str]]]) -> str:
    """What is in the documents: harmless families, and what is found of the planted."""
    lines = [
        "| noise | families | any alarm | 95 % at most | suspected | steady | inconclusive | trials a case |",
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
                else f"the same, long cases slower by {MIN_SHARE * POLICY.smallest_change:.1%}"
            )
            shares = [f"{_all(seen, key) / cases:.4f}" for key in ("suspected", "steady", "inconclusive")]
            per_case = _all(seen, "trials") / cases
            rates = (f"{alarmed / families:.4f}", f"{most:.4f}", *shares, f"{per_case:.2f}")
            lines.append(f"| {what} | {families} | {' | '.join(rates)} |")
    lines += [
        "",
        "| noise | families | false of those told | 1 % in 8 trials | in all | 2 % in 5 | in 8 | in all "
        "| 3 % in 8 | 5 % in 8 | 1 % called steady |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, truth in product(found, ("planted", "mixed")):
        if (seen := found[name].get(truth)) is None:
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
        what = says[name] if truth == "planted" else f"{says[name]}, the others at the edge"
        said = [f"{seen['fdp'] / 1e6 / seen['families']:.5f}"]
        said += [f"{_of_long(seen, *key.split(' ', 1)):.3f}" for key in asked]
        lines.append(f"| {what} | {seen['families']} | {' | '.join(said)} |")
    return "\n".join(lines) + "\n"


def _all(seen: Counter[str], key: str) -> int:
    return sum(number for name, number in seen.items() if name.endswith(f" {key}"))


def _of_long(seen: Counter[str], effect: str, key: str) -> float:
    """A share of the planted cases above 100 us, whose smallest relevant change is 1 %."""
    return seen[f"{effect}% long {key}"] / max(1, seen[f"{effect}% long cases"])


if __name__ == "__main__":
    main()
