"""How long does a case that lies stay unnoticed, and how long is a fair one quarantined?  Simulated lives of cases.

`python -m tests.studies.quarantine` prints the table of docs/calibration.md.
"""

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise
from statistics import median

from service.domain.policy.policy import Calibrating
from service.domain.verdicts.calibration import distrusted, trusted_again

LIVES, COMPARISONS = 300, 1000
RULES = Calibrating()


def life(rng: random.Random, rates: Iterable[float], rules: Calibrating = RULES) -> Iterator[bool]:
    """Is the case quarantined after each of its comparisons, which speak against it at these rates?

    The rule as service.ledger.calibration.quarantines applies it: only one
    more comparison that speaks against it can quarantine a
    case, and what was before a release counts no more.
    """
    against: list[bool] = []
    quarantined, earlier = False, 0
    for rate in rates:
        against.append(rng.random() < rate)
        changes = trusted_again(against, earlier, rules) if quarantined else against[-1] and distrusted(against, rules)
        if changes:
            earlier += quarantined
            quarantined, against = not quarantined, []
        yield quarantined


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
