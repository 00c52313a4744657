"""A judged run in a few numbers: cases by outcome, and the geometric mean of its times over those of SOTA.  Pure."""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from service.domain.verdicts.samples import Outcome


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
    named = Counter(one.sota for one in against if one.sota).most_common(1)
    return Totals(
        outcomes=Counter(one.outcome for one in cases),
        newly_broken=sum(one.outcome in broken and not one.known_before for one in cases),
        slower_than_wrong=sum(one.slower_than_wrong for one in cases),
        behind=sum(one.behind for one in against),
        sota=named[0][0] if named else None,
        mean=SotaMean.of({(one.provider, one.case): one.ratio for one in against if one.ratio is not None}),
    )


def joined(means: Iterable[SotaMean]) -> float | None:
    """The geometric mean over the cases of several runs."""
    every = list(means)
    cases = sum(one.cases for one in every)
    return math.exp(math.fsum(one.log for one in every) / cases) if cases else None


def change(now: Mapping[str, SotaMean], then: Mapping[str, SotaMean]) -> float | None:
    """The mean now over the mean then, on the devices where both are over the same cases; None if there is none."""
    same = [device for device, mean in now.items() if device in then and then[device].digest == mean.digest]
    after, before = joined(now[one] for one in same), joined(then[one] for one in same)
    return after / before if after and before else None
