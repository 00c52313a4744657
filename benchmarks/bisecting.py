"""How often a bisection names the right revision: simulated searches, whose every step is judged as a session is.

python -m benchmarks.bisecting [--searches 200] [--seed 1]

A line of 64 revisions, three cases of 200 us; one revision makes all three slower, and one in ten of the others moves
each of them a little, too little for anybody to hear of.
"""

import argparse
import math
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from service.domain.bisection.search import BisectionStep, Question, StepVerdict, decide
from service.domain.policy.policy import Policy
from service.domain.states import SearchState
from service.domain.verdicts.judge import Verdict, Why, judge, trials_until_next_look, wanted
from service.domain.verdicts.samples import Cell, Pairs
from workers.run.trials import ROUNDS

REVISIONS, CASES, TOOK_US = 64, [f"rmsnorm.fwd.{rows}x4096.bf16" for rows in (8192, 16384, 32768)], 200.0
MESSAGES, TRIAL_SDS = (0.01, 0.02, 0.05, 0.20), (0.0025, 0.005, 0.01)
ROUND_SD = 0.0015  # H200, November
WOBBLING, WOBBLE_SD = 0.1, 0.001  # which part of the harmless revisions moves a case at all, and how far
POLICY = Policy()


class Line:
    """What is true of 64 revisions, and sessions that compare two of them."""

    def __init__(self, effect: float, trial_sd: float, seed: int) -> None:
        self._dice, self._trial_sd = np.random.default_rng(seed), trial_sd
        self.shas = [f"c{place}" for place in range(REVISIONS)]
        self.culprit = int(self._dice.integers(1, REVISIONS))
        moves = self._dice.normal(0, WOBBLE_SD, (REVISIONS, len(CASES)))
        moves[self._dice.random(REVISIONS) > WOBBLING] = 0.0
        moves[self.culprit] = math.log1p(effect)
        self._logs = moves.cumsum(axis=0)
        self.trials = 0

    def measure(self, question: Question, cases: Collection[str]) -> BisectionStep:
        head, base = (self.shas.index(sha) for sha in (question.revision, question.against))
        places = [place for place, case in enumerate(CASES) if not cases or case in cases]
        told = judge(self._session(self._logs[head] - self._logs[base], places), POLICY)
        return BisectionStep(
            question.revision, question.against, {name: _verdict(verdict) for name, verdict in told.items()}
        )

    def _session(self, truth: NDArray[np.float64], places: Sequence[int]) -> list[Cell]:
        screened, confirmed = [Pairs()] * len(CASES), [Pairs()] * len(CASES)
        taken: dict[Why, list[Pairs]] = {"look": screened, "confirm": confirmed}

        def cells() -> list[Cell]:
            return [Cell("norms", CASES[place], screened[place], confirmed[place]) for place in places]

        on = places
        for why, kind in taken.items():
            done = 0
            if why == "confirm":
                on = _asked(cells(), why)
            while on and (more := trials_until_next_look(done, POLICY, why)):
                for _ in range(more):
                    self.trials += 1
                    for place in on:
                        kind[place] = self._launched(kind[place], truth[place])
                done, on = done + more, _asked(cells(), why)
        return cells()

    def _launched(self, pairs: Pairs, truth: float) -> Pairs:
        effect = truth + self._dice.normal(0, self._trial_sd)
        logs = self._dice.normal(0, ROUND_SD / math.sqrt(2), (2, ROUNDS)) + math.log(TOOK_US)
        mine, theirs = (tuple(np.exp(side).tolist()) for side in (logs[0] + effect, logs[1]))
        return Pairs((*pairs.candidate, mine), (*pairs.baseline, theirs))


def _asked(cells: Sequence[Cell], why: Why) -> list[int]:
    names = wanted(cells, POLICY)
    return [CASES.index(cell.case) for cell in cells if names.get(cell.name) == why]


def _verdict(verdict: Verdict) -> StepVerdict:
    seen = verdict.comparison
    if seen is None:
        return StepVerdict(verdict.outcome)
    return StepVerdict(verdict.outcome, seen.ratio, seen.low, seen.high, verdict.suspected, seen.trials)


def searched(line: Line) -> tuple[str, int]:
    """How a search ended, in a word, and in how many steps."""
    steps: list[BisectionStep] = []
    while (progress := decide(line.shas, steps, POLICY.bisect.max_runs)).question:
        steps.append(line.measure(progress.question, {case for _, case in progress.sizes}))
    culprit = line.shas[line.culprit]
    if progress.culprit:
        return "right" if progress.culprit == culprit else "wrong", len(steps)
    if progress.ending and progress.ending.state is SearchState.NOT_REPRODUCED:
        return "not reproduced", len(steps)
    return "range with it" if culprit in progress.suspects else "range without it", len(steps)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--searches", type=int, default=200, help="of each row")
    given.add_argument("--seed", type=int, default=1)
    asked = given.parse_args()
    ends = ("right", "wrong", "range with it", "range without it", "not reproduced")
    print("|", " | ".join(("slower by", "trial sd", *ends, "steps", "trials")), "|")
    print("|---" * (len(ends) + 4) + "|")
    for effect in MESSAGES:
        for trial_sd in TRIAL_SDS:
            lines = [Line(effect, trial_sd, asked.seed * 100_000 + number) for number in range(asked.searches)]
            found = [searched(line) for line in lines]
            count, steps = Counter(end for end, _ in found), sum(taken for _, taken in found) / len(found)
            trials = sum(line.trials for line in lines) / len(lines)
            cells = [f"{count[end] / len(found):.3f}" for end in ends]
            print(f"| {effect:.0%} | {trial_sd:.2%} |", " | ".join(cells), f"| {steps:.1f} | {trials:.0f} |")


if __name__ == "__main__":
    main()
