"""Many cases with head, parent and SOTA: how long a run of 200 takes, and where the time goes.

At the pace that a run of many cases has, without its A/A control, with what is compiled in the caches.
"""

import math
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ..arena import Ahead, Launch, Pace
from ..suites import SUITES
from ..words import Case, Role
from .launching import contender, launched, say

LAUNCHES = 5
PACE = Pace(rounds=4, warm=1, timed=2, graph_s=0.8e-3)
FROM = ("quack", "pr101", "models", "small", "awkward", "rmsnorm")
WIDEST = 32768  # columns that our kernels take


def many(count: int, logs: Path) -> dict[str, Any]:
    texts = dict.fromkeys(text for suite in FROM for text in SUITES[suite] if text.startswith("rmsnorm."))
    texts |= dict.fromkeys(text.replace(".bwd.", ".fwd.") for text in texts)
    for dtypes in ("bf16", "fp16"):  # with weights of the same kind as well
        texts |= dict.fromkeys(text.replace("bf16-fp32", dtypes) for text in texts)
    cases = [case for case in map(Case.parse, texts) if case.cols <= WIDEST][:count]
    contenders = [
        contender(Role.SOTA, "quack", logs),
        contender(Role.PARENT, "triton", logs),
        contender(Role.HEAD, "triton", logs),
    ]
    ahead, seconds, lean = Ahead(contenders), list[dict[str, float]](), list[float]()
    spent: dict[str, dict[str, float]] = {}
    try:
        launched(ahead, contenders, cases, PACE, LAUNCHES)  # what has to be compiled is now
        ahead.close()  # the first process of a run has nobody to start it ahead
        began = time.monotonic()
        for number in range(LAUNCHES):
            launch = launched(ahead, contenders, cases, PACE, number)
            seconds.append(launch.seconds)
            _add_up(spent, launch, "first" if number == 0 else "later")
            lean += _leans(launch, cases)
    finally:
        ahead.close()
    wall = time.monotonic() - began
    say(f"\n{len(cases)} cases, head, parent and SOTA, {LAUNCHES} launches: {wall:.0f} s")
    total = {what: sum(each.get(what, 0.0) for each in seconds) for what in seconds[0]}
    say("  " + ", ".join(f"{what} {s:.1f} s" for what, s in total.items()))
    for who, steps in spent.items():
        say(f"  getting ready, {who}: " + ", ".join(f"{step} {s:.1f} s" for step, s in steps.items()))
    if away := sorted(abs(each) for each in lean):
        most = away[int(0.95 * len(away))]
        say(f"  head against parent, the same code: mean {fmean(lean):+.3%}, 95 of 100 within {most:.2%}")
    return {"wall_s": wall, "seconds": seconds, "spent": spent, "lean": lean, "cases": [str(case) for case in cases]}


def _add_up(spent: dict[str, dict[str, float]], launch: Launch, when: str) -> None:
    """Seconds of each step of getting ready, by contender."""
    for (label, _), cell in launch.cells.items():
        total = spent.setdefault(f"{when} {label}", {})
        for step, s in cell.extra.get("spent", {}).items():
            total[step] = total.get(step, 0.0) + s


def _leans(launch: Launch, cases: list[Case]) -> list[float]:
    """log of head over parent, which are the same code, at each case of a launch."""
    found = []
    for case in cases:
        head, parent = (launch.cells[label, case].samples for label in ("head:triton", "parent:triton"))
        pairs = [math.log(a / b) for a, b in zip(head, parent, strict=False) if a and b]
        found += [median(pairs)] if pairs else []
    return found
