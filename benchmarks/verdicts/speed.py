"""How long a run of 200 cases takes to judge: `judge`, `wanted` and the summaries, from rounds as floats.

Times are the best of several, of the processor and not of the wall.

python -m benchmarks.verdicts.speed [--times 30] [--limit-ms 65]
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.verdicts.families import planted
from benchmarks.verdicts.simulated import CASES, NOISES, Family, Session
from service.domain.policy.policy import Policy
from service.domain.verdicts.judge import judge, wanted
from service.domain.verdicts.totals import summaries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=30, help="the best of so many counts: others use this machine too")
    parser.add_argument("--limit-ms", type=float, default=65)
    chosen = parser.parse_args()
    slowest = 0.0
    sys.stdout.write("| run | judge | wanted | summaries | together |\n|---|---|---|---|---|\n")
    for noise in NOISES:
        family = Family(noise, [0.0] * CASES, 1)
        family.effects = np.array(planted([0.0] * CASES, 1))
        known, policy = family.past(), Policy()
        cells = Session(family, known).until_decided(policy)
        calls = (partial(judge, cells, policy, known), partial(wanted, cells, policy, known))
        parts = [best_ms(call, chosen.times) for call in (*calls, partial(summaries, cells, policy))]
        slowest = max(slowest, sum(parts))
        trials = sum(len(cell.screened.candidate) + len(cell.confirmed.candidate) for cell in cells) / len(cells)
        row = [
            f"200 cases, {trials:.1f} trials each ({noise.says})",
            *(f"{ms:.1f} ms" for ms in (*parts, sum(parts))),
        ]
        sys.stdout.write(f"| {' | '.join(row)} |\n")
    sys.stdout.write(f"\nat most {slowest:.1f} ms; the limit is {chosen.limit_ms:g} ms\n")
    return int(slowest > chosen.limit_ms)


def best_ms(call: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.process_time()
        call()
        took.append(time.process_time() - began)
    return 1e3 * min(took)


if __name__ == "__main__":
    sys.exit(main())
