"""A run of some cases with head, parent and SOTA: how long it takes, and the seconds of each phase.

At the pace that a run of so many cases has, without its A/A control.  What is compiled is in the caches, as of a
revision whose kernels did not change; `cold` begins with empty caches, as of one that is new.
"""

import math
import os
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ..arena.session import Pace, PrestartPool, Trial
from ..cases import Case, Role
from ..suites import SUITES
from .launching import contender, launched, say

TRIALS = 5
MANY_CASES = 60  # beyond so many a worker measures each for less time
PACE = Pace(rounds=4, warm=1, timed=2, graph_s=0.8e-3)
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "QUACK_CACHE_DIR", "CUDA_CACHE_PATH")
FROM = ("quack", "pr101", "models", "small", "awkward", "rmsnorm")
WIDEST = 32768  # columns that our kernels take


def many(count: int, logs: Path, trials: int = TRIALS, *, cold: bool = False) -> dict[str, Any]:
    """Raises ContenderLost where a process ends."""
    texts = dict.fromkeys(text for suite in FROM for text in SUITES[suite] if text.startswith("rmsnorm."))
    texts |= dict.fromkeys(text.replace(".bwd.", ".fwd.") for text in texts)
    for dtypes in ("bf16", "fp16"):  # with weights of the same kind as well
        texts |= dict.fromkeys(text.replace("bf16-fp32", dtypes) for text in texts)
    known = [case for case in map(Case.parse, texts) if case.cols <= WIDEST]
    # few of them are taken from everywhere in the list, which begins with the largest
    cases = known[:: max(1, len(known) // count)][:count]
    pace = PACE if count > MANY_CASES else Pace()
    if cold:
        os.environ |= {name: str(logs / f"cold-{name}") for name in CACHES}
    contenders = [
        contender(Role.SOTA, "quack", logs),
        contender(Role.PARENT, "triton", logs),
        contender(Role.HEAD, "triton", logs),
    ]
    ahead, seconds, lean = PrestartPool(contenders), list[dict[str, float]](), list[float]()
    spent: dict[str, dict[str, float]] = {}
    try:
        if not cold:
            launched(ahead, contenders, cases, pace, trials)  # what has to be compiled is now
            ahead.close()  # the first process of a run has nobody to start it ahead
        began = time.monotonic()
        for number in range(trials):
            trial = launched(ahead, contenders, cases, pace, number)
            seconds.append(trial.seconds)
            _add_up(spent, trial, "first" if number == 0 else "later")
            lean += _leans(trial, cases)
    finally:
        ahead.close()
    wall = time.monotonic() - began
    of = f"{len(cases)} cases, head, parent and SOTA, {trials} trials, {'empty' if cold else 'warm'} caches"
    say(f"\n{of}: {wall:.1f} s")
    for when, some in (("first trial", seconds[:1]), ("later ones", seconds[1:]), ("all", seconds)):
        total = {what: sum(each.get(what, 0.0) for each in some) for what in seconds[0]}
        say(f"  {when}: " + ", ".join(f"{what} {s:.1f} s" for what, s in total.items()))
    for who, steps in spent.items():
        say(f"  getting ready, {who}: " + ", ".join(f"{step} {s:.1f} s" for step, s in steps.items()))
    if away := sorted(abs(each) for each in lean):
        most = away[int(0.95 * len(away))]
        say(f"  head against parent, the same code: mean {fmean(lean):+.3%}, 95 of 100 within {most:.2%}")
    return {
        "cold": cold,
        "trials": trials,
        "wall_s": wall,
        "seconds": seconds,
        "spent": spent,
        "lean": lean,
        "cases": [str(case) for case in cases],
    }


def _add_up(spent: dict[str, dict[str, float]], trial: Trial, when: str) -> None:
    """Seconds of each step of getting ready, by contender."""
    for (label, _), cell in trial.cells.items():
        total = spent.setdefault(f"{when} {label}", {})
        for step, s in cell.extra.get("spent", {}).items():
            total[step] = total.get(step, 0.0) + s


def _leans(trial: Trial, cases: list[Case]) -> list[float]:
    """log of head over parent, which are the same code, at each case of a trial."""
    found = []
    for case in cases:
        head, parent = (trial.cells[label, case].samples for label in ("head:triton", "parent:triton"))
        pairs = [math.log(a / b) for a, b in zip(head, parent, strict=False) if a and b]
        found += [median(pairs)] if pairs else []
    return found
