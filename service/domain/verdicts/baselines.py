"""How the head stands beside baselines other than its parent: SOTA, the best there is, the last release, a good one.

One rule for all: slower than a limit is what a minimum-effect test (McCarthy & Smyth 2009) of the first trials says,
with variances moderated as between head and parent, and Benjamini-Hochberg over all cases beside that kind of
baseline.  Nobody asks for more trials because of these ratios, so there are no looks to spend anything over.  Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import log1p

from kernels.cases import Comparison
from service.domain.metrics import words
from service.domain.policy.policy import Policy
from service.domain.stats.estimates import Estimate
from service.domain.stats.multiplicity import benjamini_hochberg
from service.domain.stats.sequential import LEAST
from service.domain.verdicts.analysis import comparison, family, group_of, usual
from service.domain.verdicts.judge import in_percent
from service.domain.verdicts.samples import Name, Outcome, Pairs


@dataclass(frozen=True)
class Beside:
    """The first trials of one case, and those of a baseline at it."""

    provider: str  # the head's
    case: str
    baseline: str  # who that is, for people: a provider, or a revision
    pairs: Pairs = field(default_factory=Pairs)
    trouble: str | None = None  # why the baseline has no times here

    @property
    def name(self) -> Name:
        return self.provider, self.case

    @property
    def missing(self) -> str:
        return self.trouble or f"{self.baseline} has no times for this case"


@dataclass(frozen=True)
class Stand:
    """`slower` is beyond the limit that was asked about, and not by chance; `q` is p among all cases of the run.

    `is_open`: neither that nor the opposite could be shown.
    """

    baseline: str
    outcome: Outcome
    reason: str
    slower: bool = False
    comparison: Comparison | None = None
    p: float | None = None
    q: float | None = None
    is_open: bool = False


@dataclass(frozen=True)
class Compared:
    """One measured case, and what the test says of its being slower than `most` (relative)."""

    asked: Beside
    estimate: Estimate
    comparison: Comparison
    most: float
    p: float
    q: float

    def is_slower(self, false: float) -> bool:
        return self.q <= false

    def outcome(self, false: float, missed: float) -> Outcome:
        if self.estimate.p_below(log1p(self.most)) <= missed:
            faster = self.comparison.high < 1 and self.comparison.ratio * (1 + self.most) <= 1
            return Outcome.IMPROVEMENT if faster else Outcome.STEADY
        return Outcome.REGRESSION if self.is_slower(false) else Outcome.INCONCLUSIVE


Limit = Callable[[Policy, Beside], float]  # in the policy as it is at this case: slower by more than this share


def compared(besides: Iterable[Beside], policy: Policy, most: Limit, share: float = 1.0) -> dict[Name, Compared]:
    """Test every case that has times for being slower than `most`, or than this share of it."""
    timed = [(one, one.pairs.effects()) for one in besides]
    known = family([(one.case, effects) for one, effects in timed], policy)
    seen = []
    for one, effects in timed:
        if (estimate := Estimate.of(effects, known.get(group_of(one.case)))) is not None:
            limit = most(policy.at(one.case), one)
            seen.append((one, estimate, limit, estimate.p_above(share * log1p(limit))))
    qs = benjamini_hochberg([p for *_, p in seen])
    return {
        one.name: Compared(one, estimate, comparison(estimate, one.pairs, policy.confidence), limit, p, q)
        for (one, estimate, limit, p), q in zip(seen, qs, strict=True)
    }


def leaks(besides: Sequence[Beside], policy: Policy) -> dict[Name, Stand]:
    """Against the slow baseline: what became slower by more than `policy.leak`, in however small steps."""
    return _stands(besides, compared(besides, policy, lambda limits, _: limits.leak), policy)


def against_good(besides: Sequence[Beside], policy: Policy) -> dict[Name, Stand]:
    """Against the last revision that was not slow: is a known slow-down still there?

    Past the same share of the smallest relevant change as between head and parent.  There is no confirmation: this
    opens nothing, it only says whether what is known still stands.
    """

    def smallest(limits: Policy, one: Beside) -> float:
        return limits.relevant(one.case, usual(one.pairs.baseline, limits.screening[0]))

    return _stands(besides, compared(besides, policy, smallest, LEAST), policy)


def _stands(besides: Sequence[Beside], seen: dict[Name, Compared], policy: Policy) -> dict[Name, Stand]:
    stood = {}
    for one in besides:
        if (found := seen.get(one.name)) is None:
            stood[one.name] = Stand(one.baseline, Outcome.NEW, one.missing)
            continue
        outcome = found.outcome(policy.fdr, policy.beta)
        reason = _reason(found, outcome)
        stood[one.name] = Stand(
            one.baseline, outcome, reason, outcome is Outcome.REGRESSION, found.comparison, found.p, found.q
        )
    return stood


def _reason(seen: Compared, outcome: Outcome) -> str:
    said, ratio, limit = words(seen.asked.case), seen.comparison.ratio, in_percent(seen.most)
    if outcome in (Outcome.REGRESSION, Outcome.IMPROVEMENT):
        return f"{abs(ratio - 1):.1%} {said.more if ratio > 1 else said.less} than {seen.asked.baseline}"
    if outcome is Outcome.STEADY:
        return f"not more than {limit} {said.more} than {seen.asked.baseline}"
    return f"not clearly less, nor more, than {limit} {said.more} than {seen.asked.baseline}"


def best_of(baselines: Sequence[Beside]) -> Beside | None:
    """The fastest of several baselines at one case, by their medians over trials; None where none has times.

    Whoever is fastest in these trials is partly so by luck, by less than the noise of a trial: next to the limit of
    being behind that is nothing, but who of two that are equally fast is named here says nothing about them.
    """
    timed = [(usual(one.pairs.baseline), place) for place, one in enumerate(baselines)]
    fastest = min(((took, place) for took, place in timed if took > 0), default=None)
    return baselines[fastest[1]] if fastest else None
