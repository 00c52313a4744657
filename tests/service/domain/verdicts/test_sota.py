"""Behind SOTA: the flag, and since when.  Who moved is in attribution/test_gap.py."""

import pytest

from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind
from service.domain.verdicts.baselines import BaselineCase, BaselineVerdict, judge_baseline
from service.domain.verdicts.reasons import Reason, ReasonCode, reason
from service.domain.verdicts.samples import Pairs
from service.domain.verdicts.totals import SotaDistance, behind_since, still_open
from service.reports.words import of_reason

POLICY = Policy(smallest_change=0.02, behind_sota=0.05)
CASE = "rmsnorm.fwd.4096x1024.bf16"


def times(ratio: float) -> Pairs:
    return Pairs(
        ((100 * ratio, 101 * ratio), (100 * ratio, 100 * ratio), (101 * ratio, 100 * ratio)),
        ((100, 101), (100, 100), (101, 100)),
    )


def verdict_at(pairs: Pairs, case: str = CASE, trouble: Reason | None = None) -> BaselineVerdict:
    [only] = judge_baseline(BaselineKind.SOTA, [BaselineCase("norms", case, "quack", pairs, trouble)], POLICY).values()
    return only


@pytest.mark.parametrize(
    ("ratio", "behind", "said"),
    [
        (1.20, True, "takes 1.20 times as long as quack"),
        (1.03, False, "within 5% of quack"),
        (1.00, False, "within 5% of quack"),
        (0.80, False, "1.25 times as fast as quack"),
    ],
)
def test_the_flag(ratio, behind, said):
    verdict = verdict_at(times(ratio))
    assert (verdict.slower, of_reason(verdict.reason, CASE)) == (behind, said)


def test_without_times_of_sota_nothing_is_behind():
    trouble = reason(ReasonCode.BASELINE_UNFIT, baseline="quack", state="unsupported", said="no CUDA")
    verdict = verdict_at(Pairs(), trouble=trouble)
    assert (verdict.slower, verdict.reason) == (False, trouble)


def now(ratio: float = 1.2) -> SotaDistance:
    return SotaDistance("bbbb", "quack", ratio, 100 * ratio, 100, 1, behind=True)


def before(ratio: float, since: str | None = None) -> SotaDistance:
    return SotaDistance("aaaa", "quack", ratio, 100 * ratio, 100, 1, behind=since is not None, since=since)


@pytest.mark.parametrize(
    ("current", "earlier", "said"),
    [
        (now(), None, "behind quack since the first measurement (bbbb)"),
        (now(), before(1.0), "behind quack since bbbb"),
        (now(), before(1.2, "9999"), "behind quack since 9999; the gap did not change"),
        (now(1.22), before(1.2, "9999"), "behind quack since 9999; the gap did not change"),
        (now(1.5), before(1.2, "9999"), "behind quack since 9999; the gap grew from 1.20 to 1.50 times"),
        (now(1.1), before(1.2, "9999"), "behind quack since 9999; the gap shrank from 1.20 to 1.10 times"),
    ],
)
def test_it_says_since_when(current, earlier, said):
    assert of_reason(behind_since(current, earlier, 0.02), CASE) == said


def test_a_session_that_could_not_decide_says_what_was_known():
    said = of_reason(still_open(now(1.1), before(1.2, "9999")), CASE)
    assert said.startswith("behind quack since 9999, 1.20 times at aaaa; this session could not decide")


def test_memory_is_no_time():
    """Nor is it said to be one; a case is behind by what is a change in its metric at all."""
    memory = f"{CASE}.memory"
    less, more = (verdict_at(times(ratio), memory) for ratio in (0.5, 1.2))
    assert (less.slower, of_reason(less.reason, memory)) == (
        False,
        "takes 0.50 times as much memory as quack",
    )
    assert (more.slower, of_reason(more.reason, memory)) == (True, "takes 1.20 times as much memory as quack")
    assert not verdict_at(times(1.1), f"{CASE}.compile").slower
