"""Which component moved a case: the arms of a session with known effects, and what is said of them."""

import pytest

from kernels.cases import Role
from service.domain.isolation.evaluation import (
    CONTROL,
    FROM,
    TO,
    CaseIsolation,
    CaseVerdict,
    ComponentVerdict,
    IsolatedCase,
    Isolation,
    StackSide,
    backward,
    causes,
    evaluate,
    forward,
    steps,
)
from service.domain.policy.policy import Policy
from service.domain.states import CellState
from service.domain.verdicts.session_result import ContenderResult
from tests.fakes.stack_arms import CASE, COMPONENTS, Times, arms, result, session

POLICY = Policy()
V, C = ComponentVerdict, CaseVerdict


def judged(one: IsolatedCase, trials: int = 4) -> CaseIsolation:
    [found] = evaluate([one], COMPONENTS, POLICY, steps(4, trials))
    return found


@pytest.mark.parametrize(
    ("arms", "verdict", "triton", "torch", "only_together"),
    [
        (arms(1.38, (1.38, 1.0), (1.0, 1.38)), C.SLOWER, V.SLOWER, V.NOT_MOVED, False),
        (arms(0.80, (1.0, 0.8), (0.8, 1.0)), C.FASTER, V.NOT_MOVED, V.FASTER, False),
        (arms(1.32, (1.1, 1.2), (1.2, 1.1)), C.SLOWER, V.SLOWER, V.SLOWER, False),
        (arms(1.0, (1.25, 0.8), (0.8, 1.25)), C.NOT_MOVED, V.SLOWER, V.FASTER, False),
        (arms(1.3, (1.0, 1.0), (1.0, 1.0)), C.SLOWER, V.DEPENDS, V.DEPENDS, False),
        (arms(1.3, (1.0, 1.3), (1.0, 1.3)), C.SLOWER, V.NOT_MOVED, V.NOT_MOVED, True),
        (arms(1.0, (1.0, 1.0), (1.0, 1.0)), C.NOT_MOVED, V.NOT_MOVED, V.NOT_MOVED, False),
    ],
    ids=["one", "faster", "both", "cancel", "in one stack only", "only together", "nothing"],
)
def test_who_moved_it(
    arms: dict[str, Times],
    verdict: CaseVerdict,
    triton: ComponentVerdict,
    torch: ComponentVerdict,
    only_together: bool,
) -> None:
    found = judged(session(arms))
    assert found.verdict is verdict
    assert [one.verdict for one in found.components] == [triton, torch]
    assert found.only_together is only_together


def test_what_is_left_is_the_total_without_the_single_effects() -> None:
    found = judged(session(arms(1.5, (1.1, 1.25), (1.2, 1.25))))
    assert found.total.ratio == pytest.approx(1.5, rel=0.005)
    assert found.left.ratio == pytest.approx(1.5 / (1.1 * 1.2), rel=0.005)
    assert found.left_backward.ratio == pytest.approx(1.5 / ((1.5 / 1.25) * (1.5 / 1.25)), rel=0.005)
    low, high = found.left.interval(0.95) or (0.0, 0.0)
    assert low < 1.5 / (1.1 * 1.2) < high
    assert found.left.zone == "more"


def test_a_hybrid_that_does_not_run_leaves_its_direction_out() -> None:
    broken = CellState.FAILED
    found = judged(session(arms(1.38, (broken, 1.0), (1.0, broken))))
    triton, torch = found.components
    assert (triton.forward.zone, triton.verdict) == (None, V.SLOWER), "the other direction says it"
    assert (torch.backward.zone, torch.verdict) == (None, V.NOT_MOVED)
    assert found.unswapped == ("triton",)
    assert found.left.ratio == pytest.approx(1.38, rel=0.005), "what is left includes what could not be swapped"
    assert found.states[forward("triton")] == (broken, "it says so")


def test_a_component_of_which_no_hybrid_runs_is_missing() -> None:
    found = judged(session({FROM: 1.0, TO: 1.2, CONTROL: 1.0, forward("torch"): 1.0, backward("torch"): 1.2}))
    assert [one.verdict for one in found.components] == [V.MISSING, V.NOT_MOVED]
    assert found.only_together, "Triton may have done it, alone or together with torch"


@pytest.mark.parametrize(
    ("arms", "verdict", "triton"),
    [
        (arms(CellState.INVALID, (CellState.INVALID, 1.0), (1.0, CellState.INVALID)), C.BROKEN, V.BREAKS),
        (arms(CellState.INVALID, (1.0, 1.0), (1.0, CellState.INVALID)), C.BROKEN, V.NOT_MOVED),
    ],
)
def test_a_case_that_only_the_new_stack_breaks(
    arms: dict[str, Times], verdict: CaseVerdict, triton: ComponentVerdict
) -> None:
    found = judged(session(arms))
    assert (found.verdict, found.components[0].verdict) == (verdict, triton)


def test_without_times_of_the_old_stack_nothing_is_compared() -> None:
    found = judged(session({**arms(1.0, (1.0, 1.0), (1.0, 1.0)), FROM: CellState.FAILED}))
    assert (found.verdict, found.median, found.movers) == (C.FAILED, None, ())


def test_noise_is_undecided_until_more_trials_decide_it() -> None:
    noisy = arms(1.0, (1.0, 1.0), (1.0, 1.0))
    few = judged(session(noisy, noise=0.05), 12)
    assert (few.verdict, few.open) == (C.UNDECIDED, True)
    many = judged(session(noisy, trials=12, noise=0.01), 12)
    assert (many.verdict, many.open, many.trials) == (C.NOT_MOVED, False, 12)


def test_a_control_that_is_off_leaves_only_larger_effects() -> None:
    found = judged(session(arms(1.38, (1.38, 1.03), (1.03, 1.38), control=1.03)))
    triton, torch = found.components
    assert found.control_off
    assert (found.verdict, triton.verdict, torch.verdict) == (C.SLOWER, V.SLOWER, V.UNDECIDED)


def test_equal_stacks_move_nothing_in_a_hundred_sessions() -> None:
    """The false discovery rate of all swaps of a session is that of the policy, 1 %."""
    wrong = 0
    for number in range(100):
        cases = []
        for place in range(6):
            taken = {
                name: result(1.0, 4, 0.01, f"{number}/{place}/{name}") for name in arms(1.0, (1.0, 1.0), (1.0, 1.0))
            }
            cases.append(IsolatedCase("norms", CASE, taken))
        found = evaluate(cases, COMPONENTS, POLICY, steps(4, 4))
        wrong += any(one.movers or one.verdict in (C.SLOWER, C.FASTER) for one in found)
    assert wrong <= 3


def isolation(*cases: CaseIsolation) -> Isolation:
    side = StackSide("old", "3.12.3", {})
    return Isolation("norms", "abc", "h200", "smoke", side, side, (), cases, 0.95)


@pytest.mark.parametrize(
    ("cases", "code"),
    [
        ([arms(1.0, (1.0, 1.0), (1.0, 1.0))], 0),
        ([arms(0.8, (0.8, 1.0), (1.0, 0.8))], 0),
        ([arms(1.0, (1.0, 1.0), (1.0, 1.0)), arms(1.2, (1.2, 1.0), (1.0, 1.2))], 1),
        ([arms(CellState.INVALID, (1.0, 1.0), (1.0, 1.0))], 1),
        ([arms(1.0, (1.0, 1.0), (1.0, 1.0), control=1.03)], 3),
    ],
)
def test_exit_codes(cases: list[dict[str, Times]], code: int) -> None:
    assert isolation(*(judged(session(one)) for one in cases)).exit_code == code


def test_the_cause_is_what_the_swap_changed_in_the_code() -> None:
    one = session(arms(1.38, (1.38, 1.0), (1.0, 1.38)))
    spilling = {"kind": "triton", "code": "b", "spills": 40, "registers": 255, "kernels": 1}
    plain = {"kind": "triton", "code": "a", "spills": 0, "registers": 64, "kernels": 1}
    facts = {FROM: plain, backward("triton"): plain, TO: spilling, forward("triton"): spilling}
    taken = {
        name: ContenderResult(
            Role.RIVAL, "norms", found.case, found.state, None, found.screened, (), facts.get(name, {})
        )
        for name, found in one.arms.items()
    }
    one = IsolatedCase("norms", CASE, taken)
    found = causes([one], [judged(one)])
    assert list(found) == [("norms", CASE, "triton")]
    [why] = found.values()
    assert why.differences == ("code changed", "registers 64 → 255", "spills 0 → 40")
    assert why.cause is not None
    assert why.cause.code == "explained"


@pytest.mark.parametrize(("trials", "most", "at"), [(4, 4, (4,)), (4, 12, (4, 8, 12)), (5, 12, (5, 10, 12))])
def test_when_cases_are_tested(trials: int, most: int, at: tuple[int, ...]) -> None:
    assert steps(trials, most) == at
