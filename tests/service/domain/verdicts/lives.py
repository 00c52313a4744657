"""Simulated lives of cases under the rule that quarantines them."""

import random
from collections.abc import Iterable, Iterator

from service.domain.policy.policy import Calibrating
from service.domain.verdicts.calibration import distrusted, trusted_again

RULES = Calibrating()


def life(rng: random.Random, rates: Iterable[float], rules: Calibrating = RULES) -> Iterator[bool]:
    """Is the case quarantined after each of its comparisons, which speak against it at these rates?

    The rule as service.ledger.calibration.quarantines applies it: only one more comparison that speaks against it can
    quarantine a case, and what was before a release counts no more.
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
