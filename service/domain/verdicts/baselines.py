"""Comparison with every kind of baseline: one engine and one table of rules.  Pure.

The comparison with the parent is sequential (`service.domain.verdicts.judge`).  Every other baseline takes part in the
screening trials alone: a minimum-effect test (McCarthy & Smyth 2009) of these trials asks whether the head is slower by
more than a limit.  Variances are moderated as between head and parent.  Benjamini-Hochberg controls the error rate over
all cases that are compared with that kind of baseline.  No trial is added because of these ratios, so no error rate is
spent over several screenings.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import log1p
from operator import attrgetter
from types import MappingProxyType

from kernels.cases import Comparison, Role
from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind, Outcome
from service.domain.stats.counts import smallest
from service.domain.stats.estimates import Estimate, benjamini_hochberg
from service.domain.stats.offsets import Offset
from service.domain.stats.sequential import MIN_SHARE
from service.domain.verdicts.reasons import Reason, ReasonCode, reason
from service.domain.verdicts.samples import Name, Pairs, comparison, counted, family, group_of, usual


class Method(StrEnum):
    """How a kind of baseline is compared."""

    SEQUENTIAL = "sequential"  # screening, and confirmation by fresh trials where it looks like a change
    EQUIVALENCE = "equivalence"  # slower than the limit, not slower than the limit, or neither could be shown
    FLAG = "flag"  # the same test sets a flag; the outcome describes only the position of the interval


@dataclass(frozen=True)
class Rule:
    """How one kind of baseline is compared: slower by more than `limit`, with errors at most at `error_rate`."""

    roles: tuple[Role, ...]  # the contenders that may be this baseline in a session
    limit: Callable[[Policy, str, Pairs], float]  # relative, by the policy as it is at the case
    method: Method
    error_rate: Callable[[Policy], float]  # false discovery rate
    share: float = 1.0  # of the log of the limit: the test asks whether the effect exceeds this share


def _smallest_change(policy: Policy, case: str, pairs: Pairs) -> float:
    return policy.smallest_change_at(case, usual(pairs.baseline, policy.screening[0]) or 0.0)


_FDR: Callable[[Policy], float] = attrgetter("fdr")
_BEHIND_FDR: Callable[[Policy], float] = attrgetter("behind_sota_fdr")
RULES: Mapping[BaselineKind, Rule] = {
    BaselineKind.PARENT: Rule((Role.PARENT,), _smallest_change, Method.SEQUENTIAL, _FDR, share=MIN_SHARE),
    BaselineKind.WRONG_PARENT: Rule((Role.PARENT,), _smallest_change, Method.EQUIVALENCE, _FDR, share=MIN_SHARE),
    BaselineKind.LAST_GOOD: Rule((Role.LAST_GOOD,), _smallest_change, Method.EQUIVALENCE, _FDR, share=MIN_SHARE),
    BaselineKind.PINNED: Rule((Role.PINNED,), lambda policy, *_: policy.leak, Method.EQUIVALENCE, _FDR),
    BaselineKind.SOTA: Rule((Role.SOTA,), lambda policy, *_: policy.behind_sota, Method.FLAG, _BEHIND_FDR),
    BaselineKind.BEST: Rule((Role.SOTA, Role.RIVAL), lambda policy, *_: policy.behind_sota, Method.FLAG, _BEHIND_FDR),
}
OWN_CODE = (BaselineKind.LAST_GOOD, BaselineKind.PINNED)  # earlier revisions of the target, other than the parent
OWN_REVISIONS = (BaselineKind.WRONG_PARENT, *OWN_CODE)
OTHER_CODE = (BaselineKind.BEST, BaselineKind.SOTA)  # other people's code


@dataclass(frozen=True)
class BaselineCase:
    """The screening trials of one case of the head, and those of a baseline at the same case."""

    provider: str  # the head's
    case: str
    baseline: str  # who that is, for people: a provider, or a revision
    pairs: Pairs = field(default_factory=Pairs)
    trouble: Reason | None = None  # why the baseline has no times here

    @property
    def name(self) -> Name:
        return self.provider, self.case

    @property
    def missing(self) -> Reason:
        return self.trouble or reason(ReasonCode.NO_TIMES, baseline=self.baseline)


@dataclass(frozen=True)
class SessionOffset:
    """What equal code of the session shows at a case, as the comparison with the parent reads it."""

    offset: Offset | None = None  # a part of the error
    doubt: Reason | None = None  # why the session cannot decide the case


NO_OFFSET = SessionOffset()


@dataclass(frozen=True)
class BaselineVerdict:
    """`slower` is beyond the limit of the rule, and not by chance; `q` is p among all cases of the run.

    `is_open`: neither that nor the opposite could be shown.
    """

    baseline: str
    outcome: Outcome
    reason: Reason
    slower: bool = False
    comparison: Comparison | None = None
    p: float | None = None
    q: float | None = None
    is_open: bool = False


@dataclass(frozen=True)
class _Tested:
    """One measured case, and the result of the test for being slower than `limit` (relative)."""

    at: BaselineCase
    estimate: Estimate
    comparison: Comparison
    limit: float
    p: float
    q: float
    doubt: Reason | None = None  # why the session cannot decide it

    def verdict(self, outcome: Outcome, why: Reason, *, slower: bool, is_open: bool = False) -> BaselineVerdict:
        why = counted(self.at.pairs, self.at.baseline, smallest(self.limit)) or why
        return BaselineVerdict(
            baseline=self.at.baseline,
            outcome=outcome,
            reason=why,
            slower=slower,
            comparison=self.comparison,
            p=self.p,
            q=self.q,
            is_open=is_open,
        )


def judge_baseline(
    kind: BaselineKind,
    cases: Sequence[BaselineCase],
    policy: Policy,
    controls: Mapping[Name, float | None] = MappingProxyType({}),
    offsets: Mapping[Name, SessionOffset] = MappingProxyType({}),
) -> dict[Name, BaselineVerdict]:
    """Judge every case of a run against one kind of baseline other than the parent.

    `controls`: how far the A/A control of each case was off, as a ratio; it widens the interval of a flag.
    `offsets`: what equal code of the session shows at each case; it counts for earlier revisions of the target.
    """
    rule = RULES[kind]
    tested = _tested(cases, policy, rule, offsets if kind in OWN_REVISIONS else {})
    verdicts = {case.name: BaselineVerdict(case.baseline, Outcome.NEW, case.missing) for case in cases}
    for name, test in tested.items():
        slower = test.q <= rule.error_rate(policy)
        if rule.method is Method.FLAG:
            verdicts[name] = _flagged(test, slower, controls.get(name) or 1.0)
        else:
            verdicts[name] = _compared(test, slower, policy.beta)
    return verdicts


def _tested(
    cases: Iterable[BaselineCase], policy: Policy, rule: Rule, offsets: Mapping[Name, SessionOffset]
) -> dict[Name, _Tested]:
    """The cases that have times, each tested for being slower than its limit."""
    timed = [(case, case.pairs.effects()) for case in cases]
    priors = family([(case.case, effects) for case, effects in timed], policy)
    tests = list[_Tested]()
    for case, effects in timed:
        here = offsets.get(case.name, NO_OFFSET)
        if (estimate := Estimate.of(effects, priors.get(group_of(case.case)), offset=here.offset)) is not None:
            limit = rule.limit(policy.at(case.case), case.case, case.pairs)
            compared, p = (
                comparison(estimate, case.pairs, policy.confidence),
                estimate.p_above(rule.share * log1p(limit)),
            )
            tests.append(_Tested(case, estimate, compared, limit, p, 1.0, here.doubt))
    # What cannot be decided must not make room among the discoveries for what can.
    families = [[test for test in tests if (test.doubt is not None) is doubted] for doubted in (False, True)]
    return {
        test.at.name: replace(test, q=q)
        for members in families
        for test, q in zip(members, benjamini_hochberg([test.p for test in members]), strict=True)
    }


def _compared(test: _Tested, slower: bool, beta: float) -> BaselineVerdict:
    """Slower, shown not to be slower, or undecided.  There is no confirmation: this opens nothing by itself."""
    ratio, baseline = test.comparison.ratio, test.at.baseline
    if test.doubt is not None:
        return test.verdict(Outcome.INCONCLUSIVE, test.doubt, slower=False)
    if test.estimate.p_below(log1p(test.limit)) <= beta:
        faster = test.comparison.high < 1 and ratio * (1 + test.limit) <= 1
        outcome = Outcome.IMPROVEMENT if faster else Outcome.STEADY
    else:
        outcome = Outcome.REGRESSION if slower else Outcome.INCONCLUSIVE
    if outcome is Outcome.STEADY:
        why = reason(ReasonCode.NOT_SLOWER, limit=test.limit, baseline=baseline)
    elif outcome is Outcome.INCONCLUSIVE:
        why = reason(ReasonCode.UNDECIDED, limit=test.limit, baseline=baseline)
    else:
        why = reason(ReasonCode.CHANGED, ratio=ratio, baseline=baseline, limit=test.limit)
    return test.verdict(outcome, why, slower=outcome is Outcome.REGRESSION)


def _flagged(test: _Tested, behind: bool, control: float) -> BaselineVerdict:
    """Behind: slower beyond the limit, and not by chance.

    A case is shown not to be behind where the upper bound of its interval, widened by how far the control of the case
    was off, is within the limit.  What is neither is open, and *inconclusive* where it measured beyond the limit.
    Every other outcome describes only the position of the interval.
    """
    ratio, low, high = test.comparison.ratio, test.comparison.low, test.comparison.high
    is_open = not behind and high * max(control, 1 / control) > 1 + test.limit
    if is_open and ratio > 1 + test.limit:
        why = reason(ReasonCode.PERHAPS_BEHIND, baseline=test.at.baseline, low=low, high=high)
        return test.verdict(Outcome.INCONCLUSIVE, why, slower=behind, is_open=is_open)
    outcome = Outcome.REGRESSION if low > 1 else Outcome.IMPROVEMENT if high < 1 else Outcome.STEADY
    return test.verdict(outcome, _distance(test, behind), slower=behind, is_open=is_open)


def _distance(test: _Tested, behind: bool) -> Reason:
    ratio, high, baseline = test.comparison.ratio, test.comparison.high, test.at.baseline
    if behind or high < 1:
        return reason(ReasonCode.TAKES, ratio=ratio, baseline=baseline, faster=high < 1)
    if high <= 1 + test.limit:
        return reason(ReasonCode.WITHIN_LIMIT, limit=test.limit, baseline=baseline)
    return reason(ReasonCode.NOT_CLEARLY_BEHIND, baseline=baseline)


def best_of(baselines: Sequence[BaselineCase]) -> BaselineCase | None:
    """The fastest of several baselines at one case, by their medians over trials; None where none has times.

    Whoever is fastest in these trials is partly so by luck, by less than the noise of a trial: next to the limit of
    being behind that is nothing, but which of two equally fast baselines is named here says nothing about them.
    """
    timed = [(usual(case.pairs.baseline), place) for place, case in enumerate(baselines)]
    fastest = min(((took, place) for took, place in timed if took is not None), default=None)
    return baselines[fastest[1]] if fastest else None
