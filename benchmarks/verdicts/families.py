"""How often verdicts err: simulated runs go through `judge` and `wanted`, trial by trial.

    python -m benchmarks.verdicts.families [--families 300] [--only h200:6] [--quick] [--seed 1] [--out FOLDER]
    python -m benchmarks.verdicts.families --left-out     calibrate on all stored sessions but one, score on that one
    python -m benchmarks.verdicts.families --alone 6000   single cases without anything known

A family is what one run measures: 6, 20 or 200 cases, half of them shorter than 100 us, with the noise of an H200.
Harmless families have no change; in the planted ones a case in ten, and at least one, is slower by 1, 2, 3 or 5 %.  At
the edge everything is slower by as much as is just no change yet, and in mixed families that is so of all that is not
planted.
"""

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.verdicts.left_out import UNITS, family_of, known_without
from benchmarks.verdicts.simulated import CASES, NOISES, PAST, POLICY, Family, Noise, Session
from benchmarks.verdicts.tables import tables
from service.domain.states import Outcome
from service.domain.stats.case_variances import MIN_SESSIONS
from service.domain.stats.sequential import MIN_SHARE
from service.domain.verdicts.analysis import NONE_KNOWN, KnownVariances
from service.domain.verdicts.judge import CHANGES, Verdict, judge, needs_second_session

EFFECTS = (0.01, 0.02, 0.03, 0.05)
PLANTED = 0.1  # of the cases of a family that is not harmless
MOST = (5, 8, 16)  # trials of a case within which a change is found
SIZES = (6, 20, CASES)
TIMES = {6: 8, 20: 3, CASES: 1}  # more families of few cases: each of them says less
OFFSETS = ("offsets", "shifts", "builds", "layouts", "links", "both")
TINY_US = 2.5  # below this 50 ns are more than 2 %
ALONE_SDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02)
LONG = POLICY.model_copy(update={"smallest_change_short": POLICY.smallest_change, "smallest_change_ns": 0.0})
NOISE = {noise.name: noise for noise in NOISES}

Truth = Callable[[Sequence[float], int], list[float]]  # smallest changes and a seed in, the log of each effect out


def harmless(smallest: Sequence[float], _seed: int) -> list[float]:
    return [0.0] * len(smallest)


def planted(smallest: Sequence[float], seed: int) -> list[float]:
    """One case in ten is slower, at random places."""
    effects, size = [0.0] * len(smallest), len(smallest)
    places = np.random.default_rng(seed + 10**9).permutation(size)[: max(1, round(PLANTED * size))]
    for number, place in enumerate(places):
        effects[place] = math.log1p(EFFECTS[(number + seed) % len(EFFECTS)])
    return effects


def edge(smallest: Sequence[float], _seed: int) -> list[float]:
    """The hardest to keep quiet about: every case is slower by as much as is just no change yet."""
    return [MIN_SHARE * math.log1p(one) for one in smallest]


def mixed(smallest: Sequence[float], seed: int) -> list[float]:
    """The hardest equal case to keep quiet, among cases with changes."""
    return [effect or least for effect, least in zip(planted(smallest, seed), edge(smallest, seed), strict=True)]


TRUTHS: dict[str, Truth] = {"harmless": harmless, "planted": planted, "edge": edge, "mixed": mixed}


@dataclass(frozen=True)
class Row:
    """One kind of families.  The worker knows `past` sessions, in which noise was `share` of what it is now.

    With `part` that is so of this part of the cases only.  A run has up to so many `sessions`: a second one where it
    could decide.
    """

    noise: str
    size: int
    past: int = PAST
    share: float = 1.0
    part: float = 1.0
    sessions: int = 1

    @property
    def key(self) -> str:
        return f"{self.noise}:{self.size}:{self.past}:{self.share:g}:{self.part:g}:{self.sessions}"


def plan() -> list[tuple[Row, str]]:
    """What `make bench-families` simulates: every row with its truths."""
    rows = [Row("h200", size, past) for size in SIZES for past in (PAST, 0)]
    found = [(row, truth) for row in rows for truth in ("harmless", "planted")]
    found += [(Row("h200", CASES), truth) for truth in ("edge", "mixed")]
    quiet = [(0.5, 1.0), (0.25, 1.0), (0.25, 0.5)]
    found += [(Row("h200", size, PAST, *of), "harmless") for size in (6, CASES) for of in quiet]
    others = [Row(noise.name, size) for noise in NOISES[1:] for size in (6, CASES)]
    new = [Row(name, size, 0) for name in ("alike", *OFFSETS) for size in (6, CASES)]
    new += [Row(name, size, MIN_SESSIONS) for name in OFFSETS for size in (6, CASES)]
    new += [Row(name, size, PAST, sessions=2) for name in ("offsets", "layouts", "both") for size in (6, CASES)]
    found += [(row, truth) for row in [*others, *new] for truth in ("harmless", "planted")]
    return [*found, (Row("offsets", 6, PAST, 0.25), "harmless")]


def score(row: Row, truth: str, seed: int, noise: Noise | None = None) -> Counter[str]:
    """What became of one family, in counts that add up over families."""
    family = Family(noise or NOISE[row.noise], [0.0] * row.size, seed)
    known = family.past(row.past, row.share, row.part) if row.past else NONE_KNOWN
    return scored(family, TRUTHS[truth], known, seed, row.sessions)


def scored(family: Family, truth: Truth, known: KnownVariances, seed: int, sessions: int = 1) -> Counter[str]:
    smallest = [POLICY.smallest_change_at(name, us) for name, us in zip(family.names, family.took_us, strict=True)]
    family.effects = np.array(truth(smallest, seed))
    cells = Session(family, known).until_decided(POLICY)
    verdicts, count, false = judge(cells, POLICY, known), Counter[str](families=1), 0
    if sessions > 1 and needs_second_session(verdicts):
        first = {cell.name: (*cell.screened.effects(), *cell.confirmed.effects()) for cell in cells}
        known = {metric: replace(variances, first=first) for metric, variances in known.items()}
        family.begin()
        cells = Session(family, known).until_decided(POLICY)
        verdicts = judge(cells, POLICY, known)
        count["seconds"] += 1
    for cell, effect, us, least in zip(cells, family.effects, family.took_us, smallest, strict=True):
        verdict = verdicts[cell.name]
        trials = len(cell.screened.candidate) + len(cell.confirmed.candidate)
        reported = verdict.outcome in CHANGES
        nothing = bool(effect <= MIN_SHARE * math.log1p(least) * (1 + 1e-9))
        false += reported and (nothing or verdict.outcome is Outcome.IMPROVEMENT)
        length = "tiny" if us < TINY_US else "short" if us < POLICY.short_us else "long"
        size = "edge" if truth in (edge, mixed) and nothing else f"{math.expm1(effect):.0%}"
        found = [f"within {most}" for most in MOST if reported and trials <= most]
        said = ["cases", "reported" if reported else str(verdict.outcome), *found, *["suspected"] * verdict.suspected]
        count.update(f"{size} {length} {one}" for one in said)
        count[f"{size} {length} trials"] += trials
        count.update(_covered(verdict, float(effect), reported=reported))
    found_all = sum(number for key, number in count.items() if key.endswith(" reported"))
    return count + Counter(alarmed=int(false > 0), false=false, fdp=round(1e6 * false / max(1, found_all)))


def _covered(verdict: Verdict, effect: float, *, reported: bool) -> list[str]:
    """Whether the interval has the truth in it, by what became of the case."""
    if verdict.comparison is None:
        return []
    kind = "reported" if reported else f"{verdict.outcome}{' suspected' * verdict.suspected}"
    inside = verdict.comparison.low <= math.exp(effect) <= verdict.comparison.high
    return [f"interval {kind}", *[f"inside {kind}"] * inside]


def _scores(row: Row, truth: str, seeds: Sequence[int]) -> Counter[str]:
    return sum((score(row, truth, seed) for seed in seeds), Counter[str]())


def _left_out(unit: str, truth: str, seeds: Sequence[int]) -> Counter[str]:
    known = known_without(unit)
    return sum((scored(family_of(unit, seed), TRUTHS[truth], known, seed) for seed in seeds), Counter[str]())


def reported_alone(sd: float, effect: float, seeds: Sequence[int]) -> int:
    """Of so many cases without a family: how many are reported, where trials vary by `sd` (in shares of 1)."""
    noise, reported = replace(NOISE["normal"], sd=sd), 0
    for seed in seeds:
        cells = Session(Family(noise, [effect], seed)).until_decided(LONG)
        reported += sum(verdict.outcome in CHANGES for verdict in judge(cells, LONG).values())
    return reported


def alone(count: int, seed: int) -> str:
    """The table of cases without a family."""
    seeds = range(seed * 1_000_000, seed * 1_000_000 + count)
    lines = ["| trial sd | reported of those that are equal | of those slower by .4 % |", "|---|---|---|"]
    for sd in ALONE_SDS:
        least = MIN_SHARE * math.log1p(LONG.smallest_change)
        equal, nearly = (reported_alone(sd, effect, seeds) / count for effect in (0.0, least))
        lines.append(f"| {sd:.2%} | {equal:.4f} | {nearly:.4f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=int, default=300, help="of 200 cases; more of fewer cases")
    parser.add_argument("--others", type=int, default=100, help="the same for each noise but that of the H200")
    parser.add_argument("--only", action="append", default=[], help="what begins so: tails, h200:6:0")
    parser.add_argument("--quick", action="store_true", help="3 families, to see that it runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    parser.add_argument("--left-out", action="store_true", help="the table of sessions left out, instead")
    parser.add_argument("--alone", type=int, help="so many cases without a family, instead")
    chosen = parser.parse_args()
    if chosen.alone:
        sys.stdout.write(alone(chosen.alone, chosen.seed))
        return
    families, others = (3, 1) if chosen.quick else (chosen.families, chosen.others)
    if chosen.left_out:
        work = [
            ({"unit": unit}, partial(_left_out, unit), families, truth)
            for unit in UNITS
            for truth in ("harmless", "planted")
        ]
    else:
        work = [
            (asdict(row), partial(_scores, row), (families if row.noise == "h200" else others) * TIMES[row.size], truth)
            for row, truth in plan()
            if not chosen.only or any(f"{row.key}:{truth}:".startswith(f"{one}:") for one in chosen.only)
        ]
    kept = list[dict[str, object]]()
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for of, scores, amount, truth in work:
            first = chosen.seed * 1_000_000
            chunks = [range(start, min(start + 25, first + amount)) for start in range(first, first + amount, 25)]
            counts = sum(pool.map(partial(scores, truth), chunks), Counter[str]())
            kept.append({**of, "truth": truth, "counts": counts})
            sys.stderr.write(f"{of} {truth}: {amount} families\n")
            if chosen.out:
                keep(kept, chosen.out, "left-out" if chosen.left_out else "families")
    sys.stdout.write(tables(kept))


def keep(kept: Sequence[dict[str, object]], folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(tables(kept))
    (folder / f"{name}.json").write_text(json.dumps(kept, sort_keys=True, indent=0) + "\n")


if __name__ == "__main__":
    main()
