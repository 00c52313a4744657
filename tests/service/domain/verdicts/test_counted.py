"""Verdicts about counts: exact, without statistics, and 0 is a value like any other."""

import pytest

from kernels.cases import Metric
from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind, Outcome
from service.domain.stats import counts
from service.domain.verdicts.baselines import BaselineCase, best_of, judge_baseline
from service.domain.verdicts.judge import judge, wanted
from service.domain.verdicts.reasons import Quarantined, ReasonCode
from service.domain.verdicts.samples import Cell, Pairs
from service.domain.verdicts.totals import summaries

SHAPE = "rmsnorm.fwd.4096x1024.bf16"
KERNELS, BREAKS = f"{SHAPE}.kernels", f"{SHAPE}.breaks"
NAME = ("norms", KERNELS)


def pairs(head, baseline) -> Pairs:
    """One trial for each count; None for a trial whose round was lost."""
    return Pairs(tuple((one,) for one in head), tuple((one,) for one in baseline), counts=True)


def cell(head, baseline, **of) -> Cell:
    return Cell(*NAME, screened=pairs(head, baseline), **of)


@pytest.mark.parametrize(
    ("head", "baseline", "outcome", "difference"),
    [
        ([2, 2, 2], [2, 2, 2], Outcome.STEADY, 0),
        ([0, 0, 0], [0, 0, 0], Outcome.STEADY, 0),
        ([3, 3, 3], [2, 2, 2], Outcome.REGRESSION, 1),
        ([1, 1, 1], [0, 0, 0], Outcome.REGRESSION, 1),
        ([0, 0, 0], [2, 2, 2], Outcome.IMPROVEMENT, -2),
        ([1000, 1000], [999, 999], Outcome.REGRESSION, 1),
        ([3, None, 3], [2, 2, 2], Outcome.REGRESSION, 1),
        ([3, 2, 3], [2, 2, 2], Outcome.INCONCLUSIVE, 1),
        ([3, 3, 3], [2, 3, 2], Outcome.INCONCLUSIVE, 1),
        ([3], [2], Outcome.INCONCLUSIVE, None),
        ([None, None], [2, 2], Outcome.INCONCLUSIVE, None),
    ],
)
def test_one_more_is_a_regression_and_one_fewer_an_improvement(head, baseline, outcome, difference):
    [verdict] = judge([cell(head, baseline)], Policy()).values()

    assert verdict.outcome is outcome
    seen = verdict.comparison
    assert (counts.difference(seen.ratio) if seen else None) == difference
    assert verdict.confirmed is (outcome in (Outcome.REGRESSION, Outcome.IMPROVEMENT))


def test_the_reason_has_both_counts_and_those_that_disagree():
    [more] = judge([cell([3, 3], [2, 2])], Policy()).values()
    [vary] = judge([cell([3, 2, 3], [2, 2, 2])], Policy()).values()

    assert (more.reason.code, more.reason.args) == (ReasonCode.COUNTED, {"now": 3, "before": 2, "smallest": 1})
    assert (vary.reason.code, vary.reason.args) == (ReasonCode.COUNTS_VARY, {"now": [2, 3], "before": [2]})


@pytest.mark.parametrize(("head", "outcome"), [([3] * 3, Outcome.STEADY), ([4] * 3, Outcome.REGRESSION)])
@pytest.mark.parametrize(
    "policy",
    [
        {"metrics": {"kernels": 2}},
        {"cases": {"*.kernels": {"smallest_change_count": 2}}},
        {"metrics": {"kernels": 5}, "cases": {"rmsnorm.*": {"smallest_change_count": 2, "smallest_change": 0.9}}},
    ],
)
def test_the_policy_sets_the_smallest_change_as_a_count(policy, head, outcome):
    [verdict] = judge([cell(head, [2] * 3)], Policy.model_validate(policy)).values()
    assert verdict.outcome is outcome


def test_no_more_trials_are_made_and_no_copy_of_the_baseline_may_differ():
    control = pairs([2, 3, 2], [2, 2, 2])
    undecided = cell([3, 3, 3], [2, 2, 2], control=control)

    [verdict] = judge([undecided], Policy()).values()

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.args == {"now": [3], "before": [2, 3]}
    assert wanted([undecided, cell([3, 2], [2, 2])], Policy()) == {}


def test_the_control_of_another_provider_says_nothing():
    borrowed = cell([3, 3], [2, 2], control=pairs([7, 7], [9, 9]), borrowed="other")
    [verdict] = judge([borrowed], Policy()).values()
    assert verdict.outcome is Outcome.REGRESSION


def test_a_quarantined_count_raises_no_alarm():
    [verdict] = judge([cell([3, 3], [2, 2], quarantined=Quarantined("recipe", "known"))], Policy()).values()
    assert (verdict.outcome, verdict.quarantined_by) == (Outcome.INCONCLUSIVE, "recipe")


def test_a_count_changes_no_verdict_about_times():
    def timed(case, ratio):
        screened = tuple((100.0 * (1 + one),) * 8 for one in (0.001, -0.001, 0.0005))
        return Cell("norms", case, Pairs(tuple(tuple(ratio * us for us in one) for one in screened), screened))

    times = [timed(f"rmsnorm.fwd.{rows}x1024.bf16", 1.0 + rows / 1e5) for rows in (1, 2, 3)]
    alone, with_counts = judge(times, Policy()), judge([*times, cell([9, 9], [2, 2])], Policy())

    assert {name: with_counts[name] for name in alone} == alone
    assert {one.metric for one in summaries([*times, cell([9, 9], [2, 2])], Policy())} == {Metric.KERNEL}


@pytest.mark.parametrize(
    ("head", "other", "behind", "outcome"),
    [
        ([3, 3, 3], [1, 1, 1], True, Outcome.REGRESSION),
        ([1, 1, 1], [0, 0, 0], True, Outcome.REGRESSION),
        ([1, 1, 1], [1, 1, 1], False, Outcome.STEADY),
        ([0, 0, 0], [2, 2, 2], False, Outcome.IMPROVEMENT),
    ],
)
@pytest.mark.parametrize("kind", [BaselineKind.SOTA, BaselineKind.PINNED, BaselineKind.LAST_GOOD])
def test_other_baselines_have_the_same_limit(kind, head, other, behind, outcome):
    [verdict] = judge_baseline(kind, [BaselineCase(*NAME, "quack", pairs(head, other))], Policy()).values()

    assert (verdict.slower, verdict.outcome) == (behind, outcome)
    assert verdict.reason.args == {"now": head[0], "before": other[0], "smallest": 1, "baseline": "quack"}


def test_none_at_all_is_the_best():
    none, two = (
        BaselineCase("norms", BREAKS, "eager", pairs([1], [0])),
        BaselineCase("norms", BREAKS, "b", pairs([1], [2])),
    )
    assert best_of([two, none]) is none


def test_differences_add_up_over_revisions():
    assert counts.difference(counts.ratio(1) * counts.ratio(2) * counts.ratio(-3)) == 0
    for smallest in (1, 2, 7, 500):
        limit = counts.limit(smallest)
        assert counts.smallest(limit) == smallest
        assert counts.ratio(smallest) > 1 + limit > counts.ratio(smallest - 1)
        assert counts.ratio(-smallest) < 1 / (1 + limit) < counts.ratio(1 - smallest)
