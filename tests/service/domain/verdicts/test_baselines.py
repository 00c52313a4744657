"""Against other baselines than the parent: the pinned one, the last good revision, SOTA, the best there is."""

import random

import pytest

from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind, Outcome
from service.domain.stats.offsets import Offset
from service.domain.verdicts.baselines import (
    OTHER_CODE,
    OWN_CODE,
    OWN_REVISIONS,
    RULES,
    BaselineCase,
    Method,
    SessionOffset,
    best_of,
    judge_baseline,
)
from service.domain.verdicts.reasons import ReasonCode as R
from service.domain.verdicts.reasons import reason
from service.domain.verdicts.samples import Pairs

UNFIT = reason(R.BASELINE_UNFIT, baseline="v1.2", state="failed", said="it does not build")
POLICY = Policy(leak=0.03, behind_sota=0.05)


def trials_of(
    case: str, ratio: float, *, baseline: str = "v1.2", us: float = 200, seed: int = 0, noise: float = 0.002
) -> BaselineCase:
    dice = random.Random(f"{case}{seed}")
    trials = [us * ratio * (1 + dice.gauss(0, noise)) for _ in range(3)]
    pairs = Pairs(tuple((one,) * 4 for one in trials), ((us,) * 4,) * 3)
    return BaselineCase("norms", case, baseline, pairs)


def family(*ratios: float, **more: float) -> list[BaselineCase]:
    """Twenty cases, the first of them with these ratios, the others as the baseline."""
    all_ratios = [*ratios, *[1.0] * (20 - len(ratios))]
    return [trials_of(f"rmsnorm.fwd.{n}x4096.bf16", ratio, **more) for n, ratio in enumerate(all_ratios, 1)]


def test_every_kind_of_baseline_has_a_rule():
    assert set(RULES) == set(BaselineKind) == {BaselineKind.PARENT, *OWN_REVISIONS, *OTHER_CODE}
    assert [kind for kind, rule in RULES.items() if rule.method is Method.SEQUENTIAL] == [BaselineKind.PARENT]


def test_a_leak_is_slower_than_the_last_release_by_more_than_the_policy_allows():
    slow, edge, fast, *others = judge_baseline(BaselineKind.PINNED, family(1.06, 1.03, 0.90), POLICY).values()
    assert (slow.outcome, slow.slower, slow.baseline) == (Outcome.REGRESSION, True, "v1.2")
    assert slow.reason == reason(R.CHANGED, ratio=slow.comparison.ratio, baseline="v1.2", limit=0.03)
    assert (edge.outcome, edge.slower) == (Outcome.INCONCLUSIVE, False)
    assert edge.reason == reason(R.UNDECIDED, limit=0.03, baseline="v1.2")
    assert (fast.outcome, fast.reason.code) == (Outcome.IMPROVEMENT, R.CHANGED)
    assert all(one.reason == reason(R.NOT_SLOWER, limit=0.03, baseline="v1.2") for one in others)


@pytest.mark.parametrize(
    ("ratio", "outcome"),
    [(1.05, Outcome.REGRESSION), (1.02, Outcome.REGRESSION), (1.0, Outcome.STEADY), (0.9, Outcome.IMPROVEMENT)],
)
def test_a_known_slow_down_is_still_there_or_it_is_not(ratio, outcome):
    first, *_ = judge_baseline(BaselineKind.LAST_GOOD, family(ratio), POLICY).values()
    assert first.outcome is outcome


@pytest.mark.parametrize(
    ("kind", "limit"), [(BaselineKind.LAST_GOOD, POLICY.smallest_change), (BaselineKind.PINNED, POLICY.leak)]
)
@pytest.mark.parametrize(("share", "outcome"), [(0.8, Outcome.STEADY), (1.2, Outcome.IMPROVEMENT)])
def test_faster_by_less_than_the_limit_is_no_improvement(kind, limit, share, outcome):
    """Also where the whole interval is below 1: without noise it is as narrow as can be."""
    case = trials_of("rmsnorm.fwd.1x4096.bf16", 1 / (1 + share * limit), noise=0)
    [verdict] = judge_baseline(kind, [case], POLICY).values()
    assert verdict.comparison.high < 1
    assert verdict.outcome is outcome


@pytest.mark.parametrize(("ratio", "q"), [(1.0045, 0.0), (1.0035, 1.0)])
def test_still_slow_is_past_the_same_share_of_the_smallest_change_as_a_regression_is(ratio, q):
    """.4 of 1 %; without noise, so that it is certain on which side of that it is."""
    [one] = judge_baseline(
        BaselineKind.LAST_GOOD, [trials_of("rmsnorm.fwd.1x4096.bf16", ratio, noise=0)], POLICY
    ).values()
    assert one.q == q


NARROW, WIDE = Offset(0.0005**2, 0.0, 20, 1), Offset(0.006**2, 0.0, 20, 1)
COPIES = reason(R.COPIES_DIFFER, spread=0.006, smallest_change=0.01)
OFF = reason(R.CONTROL_OFF, size=0.006, smallest_change=0.01)


@pytest.mark.parametrize("kind", OWN_CODE)
@pytest.mark.parametrize(
    ("ratio", "shows", "outcome", "why"),
    [
        (1.0, SessionOffset(NARROW), Outcome.STEADY, R.NOT_SLOWER),
        (1.1, SessionOffset(NARROW), Outcome.REGRESSION, R.CHANGED),
        (1.0, SessionOffset(WIDE, COPIES), Outcome.INCONCLUSIVE, R.COPIES_DIFFER),
        (1.0, SessionOffset(None, OFF), Outcome.INCONCLUSIVE, R.CONTROL_OFF),
        (1.1, SessionOffset(None, OFF), Outcome.INCONCLUSIVE, R.CONTROL_OFF),
        (0.9, SessionOffset(None, OFF), Outcome.INCONCLUSIVE, R.CONTROL_OFF),
    ],
)
def test_a_session_in_doubt_decides_against_no_earlier_revision(kind, ratio, shows, outcome, why):
    cases = family(ratio)
    first, *others = judge_baseline(kind, cases, POLICY, offsets={cases[0].name: shows}).values()
    assert (first.outcome, first.slower, first.reason.code) == (outcome, outcome is Outcome.REGRESSION, why)
    assert {one.outcome for one in others} == {Outcome.STEADY}


@pytest.mark.parametrize("kind", [kind for kind in BaselineKind if kind is not BaselineKind.PARENT])
def test_the_interval_against_an_earlier_revision_includes_the_spread_of_copies(kind):
    cases = family(1.0)
    offsets = {one.name: SessionOffset(WIDE) for one in cases}
    [plain, *_], [wide, *_] = (judge_baseline(kind, cases, POLICY, offsets=known).values() for known in ({}, offsets))
    half = (wide.comparison.high / wide.comparison.low) ** 0.5 - 1
    assert (half > 0.006) is (kind in OWN_REVISIONS)
    assert (wide == plain) is (kind not in OWN_REVISIONS)


def test_what_is_in_doubt_makes_no_room_among_the_discoveries():
    """A p of 0.02 is 0.2 among ten cases, and 0.02 with nine others that are surely slow."""
    cases = family(*[1.1] * 19, noise=0)
    cases[-1] = trials_of(cases[-1].case, 1.0075, noise=0.0015, seed=4)
    offsets = {one.name: SessionOffset(doubt=OFF) for one in cases[:-1]}
    among, alone = (
        judge_baseline(BaselineKind.LAST_GOOD, cases, POLICY, offsets=known)[cases[-1].name] for known in ({}, offsets)
    )
    assert (among.p, alone.q) == (alone.p, alone.p)


def test_hardly_anything_is_told_where_nothing_is():
    """Eight hundred ratios that are just at the limit, of noisy trials: chance alone puts half of them above it."""
    told = sum(
        verdict.slower
        for seed in range(40)
        for verdict in judge_baseline(BaselineKind.SOTA, family(*[1.05] * 20, seed=seed, noise=0.01), POLICY).values()
    )
    assert told / (40 * 20) < 0.01, "at the limit itself nobody is beyond it"


def test_what_has_no_times_says_why():
    [one] = judge_baseline(
        BaselineKind.PINNED,
        [BaselineCase("norms", "rmsnorm.fwd.1x8.bf16", "v1.2", trouble=UNFIT)],
        POLICY,
    ).values()
    assert (one.outcome, one.slower, one.comparison) == (Outcome.NEW, False, None)
    assert one.reason == UNFIT


def test_the_best_is_the_fastest_that_has_times():
    case = "rmsnorm.fwd.1x8.bf16"
    several = [
        trials_of(case, 1.0, baseline="quack", us=100),
        trials_of(case, 1.2, baseline="inductor", us=80),
        BaselineCase("norms", case, "liger", trouble=UNFIT),
    ]
    assert best_of(several).baseline == "inductor"
    assert best_of(several[2:]) is None
