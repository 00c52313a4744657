"""A judged run in a few numbers: outcomes, geometric means, and since when cases are behind SOTA.  Pure.

Who moved is the answer of `service.domain.attribution.gap`.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from kernels.cases import Metric
from service.domain.metrics import metric_of, op_of
from service.domain.policy.policy import Policy
from service.domain.states import Outcome
from service.domain.stats.estimates import Estimate
from service.domain.verdicts.reasons import Reason, ReasonCode, reason
from service.domain.verdicts.samples import Cell


@dataclass(frozen=True)
class SotaMean:
    """Times over those of SOTA, so that the means of several runs can be joined.

    `log` is the sum of the logarithms of `cases` ratios.  Only means with the same digest are over the same cases.
    """

    log: float
    cases: int
    digest: str

    @property
    def ratio(self) -> float:
        return math.exp(self.log / self.cases)

    @classmethod
    def of(cls, ratios: Mapping[tuple[str, str], float]) -> "SotaMean | None":
        """The mean of ratios by provider and case."""
        positive = {name: ratio for name, ratio in ratios.items() if ratio > 0}
        if not positive:
            return None
        named = "\n".join("\t".join(name) for name in sorted(positive))
        digest = hashlib.sha256(named.encode()).hexdigest()[:16]
        return cls(math.fsum(map(math.log, positive.values())), len(positive), digest)


@dataclass(frozen=True)
class Totals:
    """What a run came to.  Quarantined cases are in none of the numbers."""

    outcomes: Mapping[Outcome, int]
    newly_broken: int  # invalid or failed, and not so before
    slower_than_wrong: int  # slower than a parent whose results were wrong
    behind: int
    sota: str | None  # the provider that most cases were compared with
    mean: SotaMean | None


@dataclass(frozen=True)
class JudgedCase:
    """A case against its parent."""

    outcome: Outcome
    known_before: bool = False
    slower_than_wrong: bool = False


@dataclass(frozen=True)
class CaseAgainstSota:
    """A case against SOTA; `ratio` is None unless both have a kernel time."""

    provider: str
    case: str
    sota: str
    ratio: float | None
    behind: bool


def slower_than_wrong(outcome: Outcome, ratio: float | None, smallest_change: float | None) -> bool:
    """Whether a case is, or seems to be, slower than its parent, whose results were wrong.

    What could not be decided counts if it measured slower: right results are no reason to overlook that.
    """
    seems_slower = (ratio or 1.0) > 1 + (smallest_change or 0.0)
    return outcome is Outcome.REGRESSION or (outcome is Outcome.INCONCLUSIVE and seems_slower)


def totals(judged: Iterable[JudgedCase], against: Collection[CaseAgainstSota]) -> Totals:
    """Sum up the cases of a run."""
    cases = list(judged)
    broken = (Outcome.INVALID, Outcome.FAILED)
    named = Counter(case.sota for case in against if case.sota).most_common(1)
    return Totals(
        outcomes=Counter(case.outcome for case in cases),
        newly_broken=sum(case.outcome in broken and not case.known_before for case in cases),
        slower_than_wrong=sum(case.slower_than_wrong for case in cases),
        behind=sum(case.behind for case in against),
        sota=named[0][0] if named else None,
        mean=SotaMean.of({(case.provider, case.case): case.ratio for case in against if case.ratio is not None}),
    )


def joined(means: Iterable[SotaMean]) -> float | None:
    """The geometric mean over the cases of several runs."""
    every = list(means)
    cases = sum(mean.cases for mean in every)
    return math.exp(math.fsum(mean.log for mean in every) / cases) if cases else None


def change(now: Mapping[str, SotaMean], then: Mapping[str, SotaMean]) -> float | None:
    """The mean now over the mean then, on the devices where both are over the same cases; None if there is none."""
    same = [device for device, mean in now.items() if device in then and then[device].digest == mean.digest]
    after, before = joined(now[device] for device in same), joined(then[device] for device in same)
    return after / before if after and before else None


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
            op, direction = op_of(cell.case)
            made = cell.screened.made(policy.screening[0])
            members[metric_of(cell.case), cell.provider, op, direction].append(made)
    summaries, order = [], list(Metric)
    for metric, provider, op, direction in sorted(members, key=lambda key: (order.index(key[0]), *key[1:])):
        whole = _whole(members[metric, provider, op, direction])
        estimate = Estimate.of([sum(trial) / len(trial) for trial in zip(*whole, strict=True)])
        if estimate is not None:
            low, high = (math.exp(end) for end in estimate.interval(policy.confidence))
            ratio = math.exp(estimate.centre)
            summaries.append(
                Summary(
                    provider=provider,
                    op=op,
                    direction=direction,
                    metric=metric,
                    cases=len(whole),
                    ratio=ratio,
                    low=low,
                    high=high,
                    trials=estimate.trials,
                )
            )
    return summaries


def _whole(cases: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """The effects of the cases that have one in every trial that at least half of them have.

    A mean over other cases in one trial than in the next would differ by which they are; and a trial that a throttled
    device took from all but a few must not leave the mean of those few.
    """
    having = [sum(n < len(trials) and trials[n] is not None for trials in cases) for n in range(max(map(len, cases)))]
    trials = [n for n, count in enumerate(having) if 0 < max(having) <= 2 * count]
    whole = ([one[n] for n in trials if n < len(one)] for one in cases)
    return [effects for trial in whole if len(effects := [e for e in trial if e is not None]) == len(trials)]


@dataclass(frozen=True)
class SotaDistance:
    """How far one mainline revision was from SOTA.  `own` and `sota` in the unit of the case's metric."""

    revision: str  # short name, for people
    provider: str  # who SOTA was
    ratio: float
    own: float
    sota: float
    stack: int | None = None
    behind: bool = False
    since: str | None = None  # the revision from which it has been behind
    is_open: bool = False  # the session could neither show that it is behind nor that it is not


def behind_since(now: SotaDistance, before: SotaDistance | None, smallest_change: float) -> Reason:
    """Since when a case is behind, and whether the gap grew; `before` is the mainline revision measured before."""
    was_behind = before is not None and before.behind
    return reason(
        ReasonCode.BEHIND_SINCE,
        baseline=now.provider,
        since=(before.since or before.revision) if before and was_behind else now.revision,
        first=before is None,
        then=before.ratio if before and was_behind else None,
        now=now.ratio,
        changed=before is not None and abs(now.ratio / before.ratio - 1) > smallest_change,
    )


def still_open(now: SotaDistance, before: SotaDistance) -> Reason:
    """At a case with a known gap that this session could neither show nor close."""
    return reason(
        ReasonCode.BEHIND_OPEN,
        baseline=now.provider,
        since=before.since or before.revision,
        then=before.ratio,
        at=before.revision,
        now=now.ratio,
    )
