"""The run in a few lines: one geometric mean for each metric, provider, op and direction.  Pure."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from kernels.cases import Metric
from service.domain.metrics import metric_of
from service.domain.policy.policy import Policy
from service.domain.stats.estimates import Estimate
from service.domain.verdicts.samples import Cell


@dataclass(frozen=True)
class Summary:
    """Head over baseline, over cases: `ratio` is 1.02 where they take 2 % more in the geometric mean."""

    provider: str
    op: str
    direction: str
    metric: Metric
    cases: int
    ratio: float
    low: float
    high: float
    trials: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        return cls(**{**stored, "metric": Metric(stored["metric"])})


def summaries(cells: Sequence[Cell], policy: Policy) -> list[Summary]:
    """One for each metric, provider, op and direction, in this order, from the first trials that all cases share.

    Counts have none: a mean of differences over cases says nothing.

    The cases of a trial ran on one machine in one hour, so they err together, and the trial is what is counted: for
    each trial the mean over cases of the log of head over baseline, and over trials the mean with a t interval.
    Taking every pair of case and trial for a sample of its own would claim far more than was seen.
    """
    members = defaultdict[tuple[Metric, str, str, str], list[list[float | None]]](list)
    for cell in cells:
        if cell.comparable and not cell.screened.counts:
            op, direction = [*cell.case.split("."), ""][:2]
            made = cell.screened.made(policy.screening[0])
            members[metric_of(cell.case), cell.provider, op, direction].append(made)
    found, order = [], list(Metric)
    for metric, provider, op, direction in sorted(members, key=lambda key: (order.index(key[0]), *key[1:])):
        whole = _whole(members[metric, provider, op, direction])
        estimate = Estimate.of([sum(trial) / len(trial) for trial in zip(*whole, strict=True)])
        if estimate is not None:
            low, high = (math.exp(end) for end in estimate.interval(policy.confidence))
            ratio = math.exp(estimate.centre)
            found.append(Summary(provider, op, direction, metric, len(whole), ratio, low, high, estimate.trials))
    return found


def _whole(cases: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """The effects of the cases that have one in every trial that at least half of them have.

    A mean over other cases in one trial than in the next would differ by which they are; and a trial that a throttled
    device took from all but a few must not leave the mean of those few.
    """
    having = [sum(n < len(one) and one[n] is not None for one in cases) for n in range(max(map(len, cases)))]
    trials = [n for n, count in enumerate(having) if 0 < max(having) <= 2 * count]
    whole = ([one[n] for n in trials if n < len(one)] for one in cases)
    return [effects for one in whole if len(effects := [e for e in one if e is not None]) == len(trials)]
