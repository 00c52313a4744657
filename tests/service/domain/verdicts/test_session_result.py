"""From what was taken to what is judged."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from kernels.cases import Case, Metric, Role
from service.domain.states import BaselineKind, CellState, Outcome
from service.domain.verdicts.baselines import BaselineCase
from service.domain.verdicts.reasons import Quarantined, ReasonCode, reason
from service.domain.verdicts.samples import Name, Trouble
from service.domain.verdicts.session_result import ContenderResult, SessionResult, baseline_cases, cells, same_code

FIRST, SECOND = Case.parse("rmsnorm.fwd.512x512.fp32"), Case.parse("rmsnorm.fwd.64x4096.fp32")
WRONG = reason(ReasonCode.INVALID, said="y is wrong")
LIES = Quarantined("ada", "it lies")
TRIALS = ((100.0, 101.0), (100.0, 102.0), (99.0, 100.0))


def took(
    role: Role, case: Case = FIRST, state: CellState = CellState.MEASURED, provider: str = "norms", **rest
) -> ContenderResult:
    screened = TRIALS if state is CellState.MEASURED else ()
    return ContenderResult(role, provider, case, state, screened=screened, **rest)


def test_each_case_of_each_of_the_heads_providers_is_one_cell():
    taken = [
        took(role, case, provider=provider)
        for role in (Role.HEAD, Role.PARENT)
        for provider in ("norms", "norms-compiled")
        for case in (FIRST, SECOND)
    ]
    taken += [took(Role.CONTROL), took(Role.CONTROL, SECOND), took(Role.SOTA, provider="quack")]
    found = cells(taken)
    assert {cell.name for cell in found} == {(p, str(c)) for p in ("norms", "norms-compiled") for c in (FIRST, SECOND)}
    assert all(cell.screened.effects() == [0.0] * 3 for cell in found)
    assert all(cell.control.effects() == [0.0] * 3 for cell in found)
    assert [cell.borrowed for cell in found if cell.provider == "norms-compiled"] == ["norms", "norms"], (
        "whose copy did not run (it may not fit into the memory) is controlled by another's, and says so"
    )


def test_each_provider_has_a_control_of_its_own():
    slower = tuple(tuple(2 * us for us in trial) for trial in TRIALS)
    both = [took(role, provider=name) for role in (Role.HEAD, Role.PARENT) for name in ("norms", "compiled")]
    copies = [took(Role.CONTROL), replace(took(Role.CONTROL, provider="compiled"), screened=slower)]
    own, other = cells([*both, *copies])
    assert (own.borrowed, other.borrowed) == (None, None)
    assert own.control.effects() == [0.0] * 3
    assert other.control.effects() == pytest.approx([math.log(2)] * 3)


def test_what_neither_side_supports_is_no_cell():
    head = took(Role.HEAD, state=CellState.UNSUPPORTED)
    assert cells([head]) == []
    assert cells([head, took(Role.PARENT, state=CellState.UNSUPPORTED)]) == []


def test_a_case_that_the_head_no_longer_supports_has_failed():
    gone = took(Role.HEAD, state=CellState.UNSUPPORTED, reason="rows wider than 2048")
    [cell] = cells([gone, took(Role.PARENT)])
    assert cell.trouble == Trouble(Outcome.FAILED, reason(ReasonCode.UNSUPPORTED, said="rows wider than 2048"))


def test_a_wrong_head_is_invalid_even_beside_a_good_parent():
    [cell] = cells([took(Role.HEAD, state=CellState.INVALID, reason="y is wrong"), took(Role.PARENT)])
    assert cell.trouble == Trouble(Outcome.INVALID, WRONG)


@pytest.mark.parametrize("state", [CellState.INVALID, CellState.FAILED])
def test_what_was_broken_before_is_said_to_be(state):
    head, parent = took(Role.HEAD, state=state, reason="y is wrong"), took(Role.PARENT, state=state)
    [cell] = cells([head, parent])
    assert cell.trouble == Trouble(
        Outcome(state.value), reason(ReasonCode(state.value), said="y is wrong"), known_before=True
    )


def test_a_wrong_result_of_a_baseline_that_was_passed_over_is_no_news_either():
    head, parent = took(Role.HEAD, state=CellState.INVALID, reason="y is wrong"), took(Role.PARENT)
    [cell] = cells([head, parent], broken_before={("norms", str(FIRST)): CellState.INVALID})
    assert cell.trouble == Trouble(Outcome.INVALID, WRONG, known_before=True)


@pytest.mark.parametrize("said", ["already invalid before this revision: y is wrong", "quarantined: y is wrong"])
def test_a_revision_cannot_excuse_itself(said):
    [cell] = cells([took(Role.HEAD, state=CellState.INVALID, reason=said), took(Role.PARENT)])
    assert cell.trouble == Trouble(Outcome.INVALID, reason(ReasonCode.INVALID, said=said), known_before=False)


def test_a_wrong_parent_is_no_baseline():
    [cell] = cells([took(Role.HEAD), took(Role.PARENT, state=CellState.INVALID, reason="y is wrong")])
    assert cell.trouble is None
    assert cell.baseline_trouble == reason(ReasonCode.BASELINE_UNFIT, state="invalid", said="y is wrong")
    assert cell.screened.baseline == ()


def test_the_first_revision_is_controlled_by_a_copy_of_itself():
    [cell] = cells([took(Role.HEAD), took(Role.CONTROL)])
    assert cell.baseline_trouble == reason(ReasonCode.NO_BASELINE, note=None)
    assert cell.control.effects() == [0.0] * 3


def test_launches_that_confirm_are_controlled_too():
    twice = tuple(tuple(2 * us for us in trial) for trial in TRIALS)
    copy = replace(took(Role.CONTROL), confirmed=twice)
    [cell] = cells([took(Role.HEAD), replace(took(Role.PARENT), confirmed=TRIALS), copy])
    assert cell.control.effects() == pytest.approx([0.0] * 3 + [math.log(2)] * 3)


def test_the_control_of_a_second_provider_is_that_of_the_first_in_its_confirming_launches_as_far_as_it_ran():
    sat_out = ((),) * 3
    copy = replace(took(Role.CONTROL), confirmed=TRIALS)
    of_copy = [replace(took(role), confirmed=sat_out) for role in (Role.HEAD, Role.PARENT)]
    other = [replace(took(role, provider="compiled"), confirmed=TRIALS) for role in (Role.HEAD, Role.PARENT)]
    [_, cell] = cells([*of_copy, *other, copy])
    assert (cell.provider, cell.control.effects()) == ("compiled", [0.0] * 3)


def test_only_hashes_of_compiled_kernels_prove_the_same_code():
    compiled, operators = {"code": "abc", "kind": "triton", "ops": []}, {"code": "abc", "kind": "ops", "ops": []}
    assert same_code(compiled, compiled)
    assert not same_code(operators, operators), "the same operators may be called from slower Python"
    assert not same_code(compiled, {**compiled, "code": "abd"})


def test_another_compiler_may_make_other_machine_code_of_the_same_ptx():
    compiled = {"kind": "triton", "code": "abc", "ops": []}
    triton, liger = ({**compiled, "replaced": {name: "2"}} for name in ("triton", "liger"))
    assert not same_code(triton, {**compiled, "replaced": {"triton": "1"}})
    assert same_code(triton, triton)
    assert same_code(liger, {**compiled, "replaced": {"liger": "1"}}), "both ran with the Triton of the stack"


def test_the_same_kernels_excuse_only_the_time_of_the_kernels():
    facts = {"code": "abc", "kind": "triton", "ops": []}

    def same(metric: str) -> bool:
        case = replace(FIRST, metric=Metric(metric))
        [cell] = cells([replace(took(role), case=case, facts=facts) for role in (Role.HEAD, Role.PARENT)])
        return cell.same_code

    assert same("kernel")
    assert not same("call"), "the Python that trials them may have become slower"
    assert not same("memory")


def test_in_a_calibration_equal_code_excuses_nothing():
    facts = {"code": "abc", "kind": "triton", "ops": []}
    taken = [replace(took(role), facts=facts) for role in (Role.HEAD, Role.PARENT)]
    assert [cell.same_code for cell in cells(taken)] == [True]
    assert [cell.same_code for cell in cells(taken, code_decides=False)] == [False]


def against(
    kind: BaselineKind, taken: list[ContenderResult], last_good: Mapping[Name, str] = MappingProxyType({})
) -> list[BaselineCase]:
    return baseline_cases(kind, SessionResult(tuple(taken), "c0", (), {}, {}, sandboxed=True, last_good=last_good))


def test_sota_is_compared_case_by_case_and_says_why_it_has_no_times():
    head = took(Role.HEAD)
    [one] = against(BaselineKind.SOTA, [head, took(Role.SOTA, provider="quack")])
    assert (one.pairs.effects(), one.baseline, one.trouble) == ([0.0] * 3, "quack", None)
    without = took(Role.SOTA, provider="quack", state=CellState.UNSUPPORTED, reason="it needs CUDA")
    [one] = against(BaselineKind.SOTA, [head, without])
    assert (one.pairs.effects(), one.missing) == (
        [],
        reason(ReasonCode.BASELINE_UNFIT, baseline="quack", state="unsupported", said="it needs CUDA"),
    )
    [one] = against(BaselineKind.SOTA, [head])
    assert one.missing == reason(ReasonCode.BASELINE_ABSENT, baseline="SOTA")


def test_the_best_is_the_fastest_of_sota_and_its_rivals_at_each_case():
    def at(role: Role, case: Case, us: float, provider: str) -> ContenderResult:
        return replace(took(role, case, provider=provider), screened=((us, us), (us, us)))

    heads = [took(Role.HEAD), took(Role.HEAD, SECOND)]
    quack = [at(Role.SOTA, FIRST, 80.0, "quack"), at(Role.SOTA, SECOND, 80.0, "quack")]
    inductor = [at(Role.RIVAL, FIRST, 90.0, "inductor"), at(Role.RIVAL, SECOND, 70.0, "inductor")]
    wrong = [replace(took(Role.RIVAL, SECOND, CellState.INVALID, "liger"), reason="y is wrong")]

    best = against(BaselineKind.BEST, [*heads, *quack, *inductor, *wrong])

    assert {one.case: one.baseline for one in best} == {str(FIRST): "quack", str(SECOND): "inductor"}
    assert against(BaselineKind.BEST, [*heads, *quack]) == [], "SOTA alone is the best there is, and has its own flag"
    nobody = against(BaselineKind.BEST, [took(Role.HEAD, SECOND), *wrong])
    assert [one.missing for one in nobody] == [reason(ReasonCode.NO_TIMES)]


def test_another_revision_is_compared_where_it_took_part_and_in_the_launches_of_both():
    seen = ((100.0, 101.0), (100.0, 102.0), (99.0, 100.0), (50.0, 50.0))
    head = replace(took(Role.HEAD), screened=seen)
    good = replace(took(Role.LAST_GOOD), screened=(*TRIALS[:2], (), ()))

    found = against(BaselineKind.LAST_GOOD, [head, took(Role.HEAD, SECOND), good], {("norms", str(FIRST)): "a" * 40})

    [one] = found
    assert (one.name, one.baseline) == (("norms", str(FIRST)), "a" * 10)
    assert one.pairs.effects() == [0.0] * 2, "in the other trials only the undecided ran"
    absent = against(BaselineKind.LAST_GOOD, [head], {("norms", str(FIRST)): "1.2"})
    assert absent[0].missing == reason(ReasonCode.BASELINE_ABSENT, baseline="1.2")


def test_a_wrong_parent_is_compared_by_the_rounds_apart_and_is_no_other_baseline():
    apart = tuple(tuple(2.5 * each for each in trial) for trial in TRIALS)
    head = took(Role.HEAD, apart=apart)
    parent = took(Role.PARENT, state=CellState.INVALID, reason="y is wrong", apart=TRIALS)
    result = SessionResult((head, parent), "a" * 40, (), {}, {}, sandboxed=True)

    [case] = baseline_cases(BaselineKind.WRONG_PARENT, result)

    assert (case.name, case.baseline) == (("norms", str(FIRST)), "a" * 10)
    assert [round(math.exp(effect), 6) for effect in case.pairs.effects()] == [2.5] * 3
    assert (parent.median, parent.inexact_median) == (None, 100.5)
    assert (head.median, head.inexact_median) == (100.5, None)
    assert cells(result.taken)[0].baseline_trouble is not None


def test_trials_before_a_parent_was_called_wrong_count_as_well():
    """Its numbers are wrong by a hair, in some trials only."""
    head = took(Role.HEAD, apart=((), (), TRIALS[2]))
    parent = ContenderResult(
        Role.PARENT, "norms", FIRST, CellState.INVALID, "y", screened=(*TRIALS[:2], ()), apart=((), (), TRIALS[2])
    )
    result = SessionResult((head, parent), "a" * 40, (), {}, {}, sandboxed=True)
    [case] = baseline_cases(BaselineKind.WRONG_PARENT, result)
    assert case.pairs.effects() == [0.0] * 3


def test_a_wrong_parent_without_times_is_compared_with_nothing():
    result = SessionResult(
        (took(Role.HEAD), took(Role.PARENT, state=CellState.INVALID)), "a" * 40, (), {}, {}, sandboxed=True
    )
    assert baseline_cases(BaselineKind.WRONG_PARENT, result) == []


def test_what_is_quarantined_is_known_to_its_cell():
    cells_found = cells([took(Role.HEAD), took(Role.HEAD, SECOND)], quarantined={("norms", str(SECOND)): LIES})
    assert {cell.case: cell.quarantined for cell in cells_found} == {str(FIRST): None, str(SECOND): LIES}
