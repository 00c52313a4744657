"""Duration of a run with head, parent and SOTA, in total and by phase.

Uses the pace of a run with that many cases, without its A/A control.  Compile caches are warm, as for a revision whose
kernels did not change; `cold` begins with empty caches, as for new kernels.
"""

import math
import os
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.kernels.trials import contender, run_prestarted, say
from kernels.arena.session import Pace, ProcessPool, Trial
from kernels.cases import Case, Role
from kernels.suites import SUITES

TRIALS = 5
MANY_CASES = 60  # with more, a worker measures each for less time
PACE = Pace(rounds=4, warm=1, timed=2, graph_s=0.8e-3)
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "QUACK_CACHE_DIR", "CUDA_CACHE_PATH")
FROM = ("quack", "pr101", "models", "small", "awkward", "rmsnorm")
MAX_COLS = 32768


def many(count: int, logs: Path, trials: int = TRIALS, *, cold: bool = False) -> dict[str, Any]:
    """Raises ContenderLost if a process ends."""
    texts = dict.fromkeys(text for suite in FROM for text in SUITES[suite] if text.startswith("rmsnorm."))
    texts |= dict.fromkeys(text.replace(".bwd.", ".fwd.") for text in texts)
    for dtypes in ("bf16", "fp16"):  # also with weights of the same dtype
        texts |= dict.fromkeys(text.replace("bf16-fp32", dtypes) for text in texts)
    known = [case for case in map(Case.parse, texts) if case.cols <= MAX_COLS]
    # spread over the list, which begins with the largest
    cases = known[:: max(1, len(known) // count)][:count]
    pace = PACE if count > MANY_CASES else Pace()
    if cold:
        os.environ |= {name: str(logs / f"cold-{name}") for name in CACHES}
    contenders = [
        contender(Role.SOTA, "quack", logs),
        contender(Role.PARENT, "triton", logs),
        contender(Role.HEAD, "triton", logs),
    ]
    pool = ProcessPool("cuda", len(contenders))
    seconds: list[dict[str, float]] = []
    lean: list[float] = []
    spent: dict[str, dict[str, float]] = {}
    try:
        if not cold:
            run_prestarted(pool, contenders, cases, pace, trials)  # fills the compile caches
            pool.drop()  # the first trial of a run has no prestarted processes
        began = time.monotonic()
        for number in range(trials):
            trial = run_prestarted(pool, contenders, cases, pace, number)
            seconds.append(trial.seconds)
            _add_up(spent, trial, "first" if number == 0 else "later")
            lean += _leans(trial, cases)
    finally:
        pool.close()
    wall = time.monotonic() - began
    setting = f"{len(cases)} cases, head, parent and SOTA, {trials} trials, {'empty' if cold else 'warm'} caches"
    say(f"\n{setting}: {wall:.1f} s")
    for when, some in (("first trial", seconds[:1]), ("later ones", seconds[1:]), ("all", seconds)):
        total = {what: sum(each.get(what, 0.0) for each in some) for what in seconds[0]}
        say(f"  {when}: " + ", ".join(f"{what} {s:.1f} s" for what, s in total.items()))
    for who, steps in spent.items():
        say(f"  preparing, {who}: " + ", ".join(f"{step} {s:.1f} s" for step, s in steps.items()))
    if away := sorted(abs(each) for each in lean):
        limit = away[int(0.95 * len(away))]
        say(f"  head against parent, the same code: mean {fmean(lean):+.3%}, 95 of 100 within {limit:.2%}")
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
    """Add the seconds of each step of the preparation, by contender."""
    for (label, _), cell in trial.cells.items():
        total = spent.setdefault(f"{when} {label}", {})
        for step, s in cell.extra.get("spent", {}).items():
            total[step] = total.get(step, 0.0) + s


def _leans(trial: Trial, cases: list[Case]) -> list[float]:
    """Log of head over parent, which are the same code, at each case of a trial."""
    found = []
    for case in cases:
        head, parent = (trial.cells[label, case].samples for label in ("head:triton", "parent:triton"))
        pairs = [math.log(a / b) for a, b in zip(head, parent, strict=False) if a and b]
        found += [median(pairs)] if pairs else []
    return found
