"""How long does a case that lies stay unnoticed, and how long is a fair one quarantined?  Simulated lives of cases.

`python -m benchmarks.quarantine` prints the table of docs/calibration.md.
"""

import random
from itertools import pairwise
from statistics import median

from tests.service.domain.verdicts.lives import life

LIVES, COMPARISONS = 300, 1000


def main() -> None:
    print("rate  first (median)  ever quarantined  share of life  releases")
    for rate in (0.05, 0.1, 0.15, 0.2, 0.3):
        rng = random.Random(5)
        lives = [list(life(rng, [rate] * COMPARISONS)) for _ in range(LIVES)]
        first = median(one.index(True) + 1 if True in one else COMPARISONS + 1 for one in lives)
        ever, share = (sum(map(kind, lives)) / LIVES for kind in (any, sum))
        releases = sum(before and not now for one in lives for before, now in pairwise(one)) / LIVES
        print(f"{rate:.0%}  {first:g}  {ever:.1%}  {share / COMPARISONS:.2%}  {releases:.2f}")


if __name__ == "__main__":
    main()
