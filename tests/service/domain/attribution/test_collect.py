"""What of a session becomes a cause: when fresh trials speak for noise."""

import math
from dataclasses import replace

import pytest

from kernels.cases import Case, Role
from service.domain.attribution.causes import Kind
from service.domain.attribution.collect import against_baseline, against_parent
from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind, CellState, Outcome, Rounds
from service.domain.verdicts.baselines import judge_baseline
from service.domain.verdicts.judge import judge
from service.domain.verdicts.session_result import ContenderResult, SessionResult, baseline_cases, cells

CASE = Case.parse("rmsnorm.fwd.4096x4096.bf16")
SUSPECTED = (0.028, 0.026, 0.027)


def took(role: Role, screened: tuple[float, ...], confirmed: tuple[float | None, ...]) -> ContenderResult:
    """Log-ratios to 200 us, one for each trial; None for a trial that lost its rounds."""

    def rounds(effects: tuple[float | None, ...]) -> tuple[Rounds, ...]:
        return tuple((None if effect is None else 200 * math.exp(effect),) * 4 for effect in effects)

    return ContenderResult(role, "norms", CASE, CellState.MEASURED, None, rounds(screened), rounds(confirmed))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("fresh", "noise"),
    [
        ((), False),
        ((0.0155, 0.0040), False),  # less than half of the suspicion, and 1 % or more is possible
        ((0.0055, 0.0015), True),  # at most 0.85 %, with 95 % confidence
        ((0.026, -0.014) * 6, True),  # all trials are spent, and show 0.6 %
        ((0.048, -0.012) * 6, False),  # all are spent, and show 1.8 %
        ((0.026, -0.014, 0.026, -0.014, *(None,) * 8), False),  # few trials count
        ((-0.015, -0.014, -0.016, -0.015, -0.015), True),
    ],
)
def test_it_is_noise_only_if_fresh_trials_refute_it(fresh: tuple[float | None, ...], noise: bool, sign: int):
    effects = tuple(None if one is None else sign * one for one in fresh)
    head = took(Role.HEAD, tuple(sign * one for one in SUSPECTED), effects)
    parent = took(Role.PARENT, (0.0,) * len(SUSPECTED), (0.0,) * len(fresh))
    result = SessionResult((head, parent), "c0", (), {}, {}, True)
    found = cells(result.taken)
    judged = judge(found, Policy())
    [verdict] = judged.values()
    [cause] = against_parent(result, found, judged).values()
    assert (verdict.outcome, cause.kind is Kind.NOISE) == (Outcome.INCONCLUSIVE, noise), verdict


def test_what_a_wrong_parent_took_sizes_the_causes_too():
    """Without it atomics that explain 150 % rank behind two more launches that explain 1 %."""
    atomics = {"name": "_backward", "registers": 64, "settings": {}}
    facts = {
        "kind": "triton",
        "code": "a",
        "triton": [{**atomics, "sass": "a"}],
        "operators": [{"name": "aten::sum", "bytes": 2_000_000}],
    }
    now = {
        "kind": "triton",
        "code": "b",
        "triton": [{**atomics, "sass": "b", "work": {"atomic": 134_000_000}}],
        "operators": [{"name": name, "bytes": 80_000} for name in ("aten::zeros", "aten::_to_copy")],
    }
    head = replace(took(Role.HEAD, (), ()), facts=now, apart=((505.0,) * 8,) * 3)
    parent = replace(
        took(Role.PARENT, (), ()), facts=facts, apart=((205.0,) * 8,) * 3, state=CellState.INVALID, reason="dx is wrong"
    )
    result = SessionResult((head, parent), "c0", (), {}, {"ceilings": {"copy_gb_s": 4240.0}}, True)
    verdicts = judge_baseline(BaselineKind.WRONG_PARENT, baseline_cases(BaselineKind.WRONG_PARENT, result), Policy())
    [cause] = against_baseline(result, BaselineKind.WRONG_PARENT, verdicts).values()
    assert cause.args["what"].startswith("it now makes 134 million atomic operations instead of 0")
