"""Deciding: the table of what samples give which verdict, and the laws that hold for all of them."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cases import Metric
from service.domain.policy.policy import Policy
from service.domain.states import Outcome
from service.domain.stats.case_variances import CaseVariances
from service.domain.stats.offsets import Offset
from service.domain.verdicts.analysis import Doubt
from service.domain.verdicts.judge import (
    CHANGES,
    Cell,
    Pairs,
    compare,
    controls_are_off,
    judge,
    settled,
    trials_until_next_look,
    wanted,
)
from service.domain.verdicts.reasons import Quarantined, reason
from service.domain.verdicts.reasons import ReasonCode as R
from service.domain.verdicts.samples import Trouble

POLICY = Policy(smallest_change=0.02, screening=(3, 5, 8), confirmation=(3, 5, 8))


def pairs(
    ratio: float, trials: int = 3, *, trial_noise: float = 0.002, round_noise: float = 0.005, seed: int = 0
) -> Pairs:
    """A kernel of 100 us and a candidate `ratio` times as slow; the noise of a trial is shared by its rounds."""
    dice = random.Random(seed)
    candidate, baseline = [], []
    for _ in range(trials):
        placement = 1 + dice.gauss(0, trial_noise)
        drift = [1 + 0.05 * dice.random() for _ in range(20)]  # the machine's, so both sides share it
        candidate.append(tuple(100 * ratio * placement * d * (1 + dice.gauss(0, round_noise)) for d in drift))
        baseline.append(tuple(100 * d * (1 + dice.gauss(0, round_noise)) for d in drift))
    return Pairs(tuple(candidate), tuple(baseline))


def lost(whole: Pairs, trials: int) -> Pairs:
    """The same without the rounds of the first trials."""
    return Pairs(((None,) * 20,) * trials + whole.candidate[trials:], whole.baseline)


def verdict(cell: Cell, policy: Policy = POLICY) -> Outcome:
    [only] = judge([cell], policy).values()
    return only.outcome


@pytest.mark.parametrize(
    ("screened", "confirmed", "expected"),
    [
        (1.000, None, Outcome.STEADY),
        (1.005, None, Outcome.STEADY),
        (1.050, 1.050, Outcome.REGRESSION),
        (0.900, 0.900, Outcome.IMPROVEMENT),
        (1.050, 1.000, Outcome.STEADY),  # fresh trials say that there is nothing
        (1.050, 0.950, Outcome.INCONCLUSIVE),  # … or point the other way
        (1.050, None, Outcome.INCONCLUSIVE),  # a suspicion alone is never a regression
    ],
)
def test_a_change_is_told_only_when_fresh_launches_agree(screened, confirmed, expected):
    fresh = pairs(confirmed, seed=1) if confirmed else Pairs()
    assert verdict(Cell("norms", "a case", pairs(screened), fresh)) is expected


def test_a_noisy_case_is_inconclusive_and_never_silently_green():
    assert verdict(Cell("norms", "a case", pairs(1.0, trial_noise=0.05))) is Outcome.INCONCLUSIVE


def test_a_wrong_result_is_invalid_however_fast_it_is():
    wrong = Cell(
        "norms",
        "a case",
        pairs(0.5),
        pairs(0.5, seed=1),
        trouble=Trouble(Outcome.INVALID, reason(R.INVALID, said="y is wrong")),
    )
    assert verdict(wrong) is Outcome.INVALID


def test_without_a_baseline_a_case_is_new():
    assert verdict(Cell("norms", "a case", Pairs(pairs(1.0).candidate))) is Outcome.NEW


def test_the_same_machine_code_is_never_a_regression():
    [only] = judge([Cell("norms", "a case", pairs(1.05), pairs(1.05, seed=1), same_code=True)], POLICY).values()
    assert only.outcome is Outcome.INCONCLUSIVE
    assert only.reason == reason(R.SAME_CODE)


def test_the_same_machine_code_is_steady_however_noisy_it_is_and_is_measured_no_further():
    """LayerNorm with atomics varies by 15 % from process to process: 16 trials did not decide about a comment."""
    noisy = Cell("norms", "a case", pairs(1.0, trial_noise=0.05))
    assert wanted([noisy], POLICY) == {noisy.name: "look"}

    same = replace(noisy, same_code=True)
    assert wanted([same], POLICY) == {}
    [only] = judge([same], POLICY).values()
    assert (only.outcome, only.reason) == (Outcome.STEADY, reason(R.EQUAL_CODE, trials=3))
    assert only.comparison.high > 1.02, "the interval stays what was measured"


def test_the_same_machine_code_is_steady_where_fresh_launches_do_not_confirm_what_it_was_suspected_of():
    unlucky = Cell("norms", "a case", pairs(1.05), pairs(1.02, trials=8, trial_noise=0.02, seed=3), same_code=True)
    [only] = judge([unlucky], POLICY).values()
    assert (only.outcome, only.reason) == (Outcome.STEADY, reason(R.EQUAL_CODE, trials=11))


ONCE = Cell("norms", "rmsnorm.fwd.4096x4096.bf16", pairs(1.0, 1), control=pairs(1.0, 1, seed=1), same_code=True)
KNOWN = {Metric.KERNEL: CaseVariances({ONCE.name: math.log(0.002**2)}, {ONCE.name: 0.1}, 1.2, 2)}


def test_the_same_machine_code_is_steady_after_a_single_trial_that_showed_no_change():
    assert wanted([ONCE], POLICY, KNOWN) == {}
    [only] = judge([ONCE], POLICY, KNOWN).values()
    assert (only.outcome, only.reason) == (Outcome.STEADY, reason(R.EQUAL_CODE, trials=1))
    assert only.comparison is None, "one trial has no interval"


@pytest.mark.parametrize(
    ("cells", "known", "ends"),
    [
        pytest.param([ONCE], KNOWN, {ONCE.name}, id="the same code, which did not move"),
        pytest.param([replace(ONCE, same_code=False)], KNOWN, set(), id="other code"),
        pytest.param([replace(ONCE, screened=pairs(1.02, 1))], KNOWN, set(), id="the head moved"),
        pytest.param([replace(ONCE, control=pairs(0.98, 1))], KNOWN, set(), id="the control moved"),
        pytest.param([replace(ONCE, screened=lost(pairs(1.0, 1), 1))], KNOWN, set(), id="its rounds were lost"),
        pytest.param([ONCE], {}, set(), id="no earlier session knows how its trials vary"),
        pytest.param(
            [ONCE, replace(ONCE, case="rmsnorm.fwd.8192x8192.bf16", same_code=False)],
            KNOWN,
            set(),
            id="another case of the run has to learn from this one how trials vary",
        ),
        pytest.param([replace(ONCE, provider="others")], KNOWN, set(), id="never compared with SOTA"),
    ],
)
def test_the_same_machine_code_ends_after_its_first_trial_where_earlier_sessions_tell_the_rest(cells, known, ends):
    assert settled(cells, POLICY, known, {ONCE.name}) == ends


@pytest.mark.parametrize(
    ("screened", "confirmed"),
    [
        pytest.param(pairs(1.05, 1), Pairs(), id="a single trial, which is slower"),
        pytest.param(lost(pairs(1.0), 3), Pairs(), id="all rounds lost"),
        pytest.param(pairs(1.3), Pairs(), id="slower, and the session ended before the fresh trials"),
    ],
)
def test_the_same_machine_code_decides_nothing_that_was_not_measured(screened, confirmed):
    assert verdict(Cell("norms", "a case", screened, confirmed, same_code=True)) is Outcome.INCONCLUSIVE


def test_a_suspicion_that_fresh_launches_leave_open_is_inconclusive():
    left_open = Cell("norms", "a case", pairs(1.05), pairs(1.02, trials=8, trial_noise=0.02, seed=3))
    assert verdict(left_open) is Outcome.INCONCLUSIVE


def test_what_is_left_open_shows_the_interval_of_all_its_trials():
    """Those of the screening alone were chosen for looking large."""
    first, fresh = pairs(1.05), pairs(1.02, trials=8, trial_noise=0.02, seed=3)
    [only] = judge([Cell("norms", "a case", first, fresh)], POLICY).values()
    effects = [*first.effects(), *fresh.effects()]
    assert only.comparison.trials == len(effects)
    assert only.comparison.ratio == pytest.approx(math.exp(sum(effects) / len(effects)))
    assert only.comparison.rounds == first.rounds + fresh.rounds
    assert only.comparison.low < 1.02 < only.comparison.high


def test_fresh_launches_that_repeat_nothing_say_so():
    [only] = judge([Cell("norms", "a case", pairs(1.05), pairs(1.0, seed=1))], POLICY).values()
    assert only.reason == reason(R.NOT_REPEATED, smallest_change=0.02, trials=3)
    assert only.comparison.trials == 3


@pytest.mark.parametrize(
    ("screened", "confirmed", "why"),
    [
        (Pairs(), Pairs(), reason(R.SESSION_ENDED, suspected=False)),
        (pairs(1.0, trial_noise=0.05), Pairs(), reason(R.SESSION_ENDED, suspected=False)),
        (pairs(1.0, 8, trial_noise=0.05), Pairs(), reason(R.TOO_WIDE, trials=8)),
        (pairs(1.5), Pairs(), reason(R.SESSION_ENDED, suspected=True)),
        (pairs(1.5), pairs(1.5, 1), reason(R.SESSION_ENDED, suspected=True)),
        (
            Pairs(((None,),) * 8, ((None,),) * 8),
            Pairs(),
            reason(R.ROUNDS_LOST, suspected=False, lost=8, trials=8),
        ),
        (
            pairs(1.5),
            Pairs(((None, None),) * 7 + ((150.0,),), ((None, None),) * 7 + ((100.0,),)),
            reason(R.ROUNDS_LOST, suspected=True, lost=7, trials=8),
        ),
        (
            Pairs(((None,),) * 7 + ((),), ((None,),) * 7 + ((),)),  # the last trial ended before the case
            Pairs(),
            reason(R.SESSION_ENDED, suspected=False),
        ),
        # Without one of eight, what is left is as wide but for 7 %: the noise is the reason.
        (lost(pairs(1.0, 8, trial_noise=0.05), 1), Pairs(), reason(R.TOO_WIDE, trials=7)),
        (lost(pairs(1.0, 8, trial_noise=0.05), 2), Pairs(), reason(R.ROUNDS_LOST, suspected=False, lost=2, trials=8)),
        (pairs(1.05), lost(pairs(1.02, 8, trial_noise=0.02, seed=3), 1), reason(R.UNCONFIRMED)),
        (
            pairs(1.05),
            lost(pairs(1.02, 8, trial_noise=0.02, seed=3), 2),
            reason(R.ROUNDS_LOST, suspected=True, lost=2, trials=8),
        ),
        (pairs(1.05), pairs(0.95), reason(R.UNCONFIRMED)),
        (pairs(1.05), pairs(1.02, 8, trial_noise=0.02, seed=3), reason(R.UNCONFIRMED)),
    ],
)
def test_the_undecided_say_what_they_lack(screened, confirmed, why):
    measured = Pairs(screened.candidate, screened.baseline or ((),))
    [only] = judge([Cell("norms", "a case", measured, confirmed)], POLICY).values()
    assert (only.outcome, only.reason) == (Outcome.INCONCLUSIVE, why)


def test_a_confirmed_change_names_its_control():
    slower = Cell("norms", "a case", pairs(1.05), pairs(1.05, seed=1), control=pairs(1.0, seed=2))
    cells = [slower, replace(slower, borrowed="compiled"), replace(slower, control=Pairs())]
    told = [judge([cell], POLICY)[cell.name] for cell in cells]
    assert [one.reason.args["control"] for one in told] == [None, "compiled", False]
    for one in told:
        assert (one.outcome, one.confirmed, one.reason.code) == (Outcome.REGRESSION, True, R.CONFIRMED)
        assert one.reason.args["ratio"] == one.comparison.ratio == pytest.approx(1.05, abs=0.01)
        assert one.reason.args["trials"] == one.comparison.trials == 3


def test_a_leaning_control_takes_the_trust_from_the_session():
    leaning = Cell("norms", "a case", pairs(1.05), pairs(1.05, seed=1), control=pairs(1.04, seed=2))
    [only] = judge([leaning], POLICY).values()
    assert only.outcome is Outcome.INCONCLUSIVE
    assert only.doubt is Doubt.CONTROL
    assert only.control == pytest.approx(1.04, abs=0.005), "it is kept beside the verdict, paired as that is"


ONE_PERCENT = Policy(smallest_change_short=0.01)


def controlled(head: float, copy: float) -> Cell:
    """Head and copy of the baseline over the baseline, all of whose trials were confirmed."""
    quiet = {"trial_noise": 0.0005, "round_noise": 0.001}
    fresh, control = pairs(head, 5, seed=1, **quiet), pairs(copy, 8, seed=2, **quiet)
    return Cell("norms", "a case", pairs(head, **quiet), fresh, control=control)


@pytest.mark.parametrize(
    ("head", "copy", "expected", "doubt"),
    [
        (1.0130, 1.0195, Outcome.INCONCLUSIVE, Doubt.CONTROL),  # the copy moved more than the head
        (1.0130, 0.9925, Outcome.INCONCLUSIVE, Doubt.CONTROL),
        (1.0130, 1.0030, Outcome.REGRESSION, None),  # less than half of what matters
        (0.9870, 1.0195, Outcome.INCONCLUSIVE, Doubt.CONTROL),
        (1.0010, 1.0195, Outcome.INCONCLUSIVE, Doubt.CONTROL),  # 1.8 % from the copy: the baseline's process may be off
        (1.0040, 1.0070, Outcome.STEADY, None),  # steady beside either
        (1.0000, 1.0000, Outcome.STEADY, None),
    ],
)
def test_a_control_beyond_half_the_smallest_change_leaves_its_case_undecided(head, copy, expected, doubt):
    [only] = judge([controlled(head, copy)], ONE_PERCENT).values()
    assert (only.outcome, only.doubt) == (expected, doubt), only.reason


@pytest.mark.parametrize(
    ("sd", "expected", "doubt"), [(0.0, Outcome.REGRESSION, None), (0.01, Outcome.INCONCLUSIVE, Doubt.EARLIER)]
)
def test_a_run_of_few_cases_knows_from_earlier_sessions_how_far_they_shift(sd, expected, doubt):
    known = {Metric.KERNEL: CaseVariances({}, {}, 1.2, 2, Offset(sd**2, 0.0, 100, 1, learned=True))}
    judged = judge([controlled(1.013, 1.003)], ONE_PERCENT, known)
    [only] = judged.values()
    assert (only.outcome, only.doubt) == (expected, doubt), only.reason
    assert not controls_are_off(judged), "the controls of this session are fine"


@pytest.mark.parametrize(
    ("session_sd", "build_sd", "expected", "doubt"),
    [
        (0.0, 0.0, Outcome.REGRESSION, None),
        (0.0, 0.01, Outcome.INCONCLUSIVE, Doubt.BUILD),
        (0.004, 0.01, Outcome.INCONCLUSIVE, Doubt.BUILD),
        (0.01, 0.001, Outcome.INCONCLUSIVE, Doubt.EARLIER),
    ],
)
@pytest.mark.parametrize("cases", [1, 24])
def test_what_builds_differ_by_is_in_the_error_whether_controls_are_few_or_many(
    cases, session_sd, build_sd, expected, doubt
):
    of_sessions, of_builds = (Offset(sd**2, 0.0, 100, 1, learned=True) for sd in (session_sd, build_sd))
    known = {Metric.KERNEL: CaseVariances({}, {}, 1.2, 2, of_sessions, of_builds)}
    cells = [controlled(1.013, 1.0)] if cases == 1 else session(1.013, 1.0)
    judged = judge(cells, ONE_PERCENT, known)
    if cases == 24 and doubt is Doubt.EARLIER:
        expected, doubt = Outcome.REGRESSION, None  # its own controls show that this session shifted less
    assert {(one.outcome, one.doubt) for one in judged.values()} == {(expected, doubt)}
    assert not controls_are_off(judged), "the controls of this session are fine"


def test_a_control_that_is_off_is_a_reason_to_measure_again():
    assert controls_are_off(judge([controlled(1.013, 1.0195)], ONE_PERCENT))


def test_a_run_of_many_cases_knows_that_by_itself():
    known = {Metric.KERNEL: CaseVariances({}, {}, 1.2, 2, Offset(0.01**2, 0.0, 100, 1))}
    cells = session(1.03, 1.0)
    assert judge(cells, ONE_PERCENT, known) == judge(cells, ONE_PERCENT)


def session(head: float, copy: float, **more: Any) -> list[Cell]:
    """24 cases that all moved alike, and their controls."""
    quiet = {"trial_noise": 0.001, "round_noise": 0.001}
    return [
        Cell(
            "norms",
            case,
            pairs(head, seed=n, **quiet),
            pairs(head, 5, seed=100 + n, **quiet),
            control=pairs(copy, 8, seed=200 + n, **quiet),
            **more,
        )
        for n, case in enumerate(SHAPES)
    ]


def test_shared_code_that_became_slower_everywhere_is_a_regression_while_the_controls_hold():
    for copy in (1.0, 1.0002):
        told = judge(session(1.03, copy), ONE_PERCENT).values()
        assert {(one.outcome, one.doubt) for one in told} == {(Outcome.REGRESSION, None)}


def test_what_moved_the_controls_as_well_is_the_machine_and_no_regression():
    told = judge(session(1.008, 1.0045), ONE_PERCENT).values()
    assert {one.outcome for one in told} == {Outcome.INCONCLUSIVE}
    assert {one.doubt for one in told} == {Doubt.MACHINE}


def test_what_moved_cases_of_equal_code_as_well_is_the_machine():
    cells = session(1.02, 1.0)
    same = [replace(cell, same_code=n % 3 == 0) for n, cell in enumerate(cells)]
    told = judge(same, ONE_PERCENT).values()
    assert {(one.outcome, one.doubt) for one in told} == {(Outcome.INCONCLUSIVE, Doubt.MACHINE)}


def test_one_case_of_many_is_told_although_the_session_shifted_all_of_them():
    """All cases of the head's processes are .4 % slower, and so is the copy; one of them is slower by 5 % more."""
    cells = session(1.004, 1.004)
    changed = session(1.054, 1.004)[0]
    told = judge([changed, *cells[1:]], ONE_PERCENT)
    assert told[changed.name].outcome is Outcome.REGRESSION
    assert not [name for name, one in told.items() if one.outcome in CHANGES and name != changed.name]


MEMORY = "rmsnorm.fwd.4096x1024.bf16.memory"


def exactly(ratio: float, trials: int = 3) -> Pairs:
    """Bytes: the same in every round of every trial."""
    held = 16_777_216
    return Pairs(((held * ratio,),) * trials, ((float(held),),) * trials)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (1.0, Outcome.STEADY),
        (1.001, Outcome.STEADY),  # certain, and nothing that anybody acts on
        (0.995, Outcome.STEADY),
        (1.02, Outcome.REGRESSION),
        (0.5, Outcome.IMPROVEMENT),
    ],
)
def test_what_does_not_vary_at_all_is_decided_by_its_size(ratio, expected):
    cell = Cell("norms", MEMORY, exactly(ratio), exactly(ratio), control=exactly(1.0))
    [only] = judge([cell], POLICY).values()
    assert only.outcome is expected
    assert only.comparison.low == only.comparison.high == pytest.approx(ratio)
    assert not wanted([cell], POLICY)


@pytest.mark.parametrize(
    ("metric", "expected"), [("", Outcome.REGRESSION), (".call", Outcome.STEADY), (".compile", Outcome.STEADY)]
)
def test_each_metric_has_a_smallest_change_of_its_own(metric, expected):
    slower = pairs(1.035, seed=1)
    cell = Cell("norms", f"rmsnorm.fwd.4096x1024.bf16{metric}", slower, pairs(1.035, seed=2))
    assert verdict(cell) is expected


def test_only_the_undecided_get_more_launches_and_only_the_suspected_are_confirmed():
    cells = [
        Cell("norms", "quiet", pairs(1.0)),
        Cell("norms", "noisy", pairs(1.0, trial_noise=0.05)),
        Cell("norms", "slower", pairs(1.05)),
        Cell("norms", "told", pairs(1.05), pairs(1.05, seed=1)),
        Cell("norms", "refuted", pairs(1.05), pairs(1.0, seed=1)),
        Cell("norms", "half confirmed", pairs(1.05), pairs(1.05, trial_noise=0.05, seed=1)),
        Cell("norms", "wrong", pairs(1.05), trouble=Trouble(Outcome.INVALID, reason(R.INVALID, said="y is wrong"))),
        Cell("norms", "spent", pairs(1.0, trials=8, trial_noise=0.2)),
    ]
    assert wanted(cells, POLICY) == {
        ("norms", "noisy"): "look",
        ("norms", "slower"): "confirm",
        ("norms", "half confirmed"): "confirm",
    }


@pytest.mark.parametrize(("done", "more"), [(0, 3), (3, 2), (5, 3), (8, 0)])
def test_looks_come_after_the_launches_that_the_policy_names(done, more):
    assert trials_until_next_look(done, POLICY) == more


@given(st.floats(0.2, 5.0), st.integers(0, 10_000))
def test_the_unit_of_time_does_not_matter(scale, seed):
    original = pairs(1.03, seed=seed)
    scaled = Pairs(
        tuple(tuple(us * scale for us in trial) for trial in original.candidate),
        tuple(tuple(us * scale for us in trial) for trial in original.baseline),
    )
    one, other = compare(original, 0.95), compare(scaled, 0.95)
    assert one.ratio == pytest.approx(other.ratio)
    assert (one.low, one.high) == pytest.approx((other.low, other.high))


@given(st.integers(0, 10_000))
def test_changing_sides_turns_the_ratio_over(seed):
    there = pairs(1.03, seed=seed)
    back = Pairs(there.baseline, there.candidate)
    assert compare(there, 0.95).ratio == pytest.approx(1 / compare(back, 0.95).ratio)


@given(st.floats(0.8, 1.25), st.floats(1.0, 1.2), st.integers(0, 1000))
def test_a_slower_candidate_never_looks_faster(ratio, factor, seed):
    assert compare(pairs(ratio * factor, seed=seed), 0.95).ratio >= compare(pairs(ratio, seed=seed), 0.95).ratio - 1e-12


@given(st.lists(st.floats(1, 1e6), min_size=3, max_size=20), st.integers(2, 6))
def test_identical_times_raise_no_alarm(times, trials):
    same = Pairs((tuple(times),) * trials, (tuple(times),) * trials)
    assert verdict(Cell("norms", "a case", same, same)) is Outcome.STEADY


def test_a_lost_round_is_left_out_on_both_sides():
    whole = pairs(1.05)
    holed = Pairs(tuple((None, *trial[1:]) for trial in whole.candidate), whole.baseline)
    assert compare(holed, 0.95).ratio == pytest.approx(1.05, rel=0.01)


# -- the family of a run


SHAPES = [f"rmsnorm.{direction}.{1024 * n}x4096.bf16" for direction in ("fwd", "bwd") for n in range(1, 13)]
FAMILY = Policy(screening=(3, 5, 8), confirmation=(2, 5, 8))


def family(ratios: dict[str, float], seed: int = 0, fresh: int = 2, **more: Any) -> list[Cell]:
    """24 cases, those named slower, and fresh trials of these."""
    return [
        Cell(
            "norms",
            case,
            pairs(ratios.get(case, 1.0), seed=seed + n, round_noise=0.001),
            pairs(ratios[case], fresh, seed=seed + 100 + n, round_noise=0.001) if case in ratios else Pairs(),
            **more,
        )
        for n, case in enumerate(SHAPES)
    ]


def outcomes(cells: Sequence[Cell], policy: Policy = FAMILY) -> dict[str, Outcome]:
    return {case: told.outcome for (_, case), told in judge(cells, policy).items()}


def test_with_a_family_behind_it_two_fresh_launches_confirm_two_percent():
    """Alone, two trials say next to nothing of how much trials vary; 24 cases say it together."""
    [slow, *_] = SHAPES
    cells = family({slow: 1.025})
    assert outcomes(cells) == {case: Outcome.REGRESSION if case == slow else Outcome.STEADY for case in SHAPES}
    alone = [cell for cell in cells if cell.case == slow]
    assert judge(alone, FAMILY)["norms", slow].q > 5 * judge(cells, FAMILY)["norms", slow].q


def test_a_verdict_says_how_sure_it_is():
    [slow, *_] = SHAPES
    verdicts = judge(family({slow: 1.03}), FAMILY)
    told, steady = verdicts["norms", slow], verdicts["norms", SHAPES[1]]
    assert told.suspected
    assert told.p < told.q < FAMILY.fdr, "q is corrected for the looks and for how many were suspected"
    assert (told.smallest_change, told.comparison.trials) == (0.01, 2)
    assert told.comparison.low < 1.03 < told.comparison.high
    assert (steady.suspected, steady.q) == (False, None)
    assert 0 <= steady.p <= 1


def test_the_more_are_suspected_the_surer_each_must_be():
    """One that is just sure enough by itself is not, where twenty others turned out to be nothing."""
    slow, *others = SHAPES
    edge = [
        replace(cell, confirmed=pairs(1.0145, 2, seed=7, round_noise=0.0005)) if cell.case == slow else cell
        for cell in family({slow: 1.03})
    ]
    for_nothing = [
        replace(cell, screened=pairs(1.03, seed=n, round_noise=0.001), confirmed=pairs(1.007, 2, seed=50 + n))
        if cell.case in others
        else cell
        for n, cell in enumerate(edge)
    ]
    q_alone, q_among = (judge(cells, FAMILY)["norms", slow].q for cells in (edge, for_nothing))
    assert q_alone < q_among


@pytest.mark.parametrize(
    ("more", "why", "by"),
    [
        ({"quarantined": Quarantined("ada", "it lies")}, reason(R.QUARANTINED, why="it lies"), "ada"),
        ({"same_code": True}, reason(R.SAME_CODE), None),
    ],
)
def test_what_nobody_may_be_told_of_is_inconclusive_and_says_why(more, why, by):
    [slow, *_] = SHAPES
    told = judge(family({slow: 1.05}, **more), FAMILY)["norms", slow]
    assert told.outcome is Outcome.INCONCLUSIVE
    assert (told.reason, told.quarantined_by) == (why, by)
    assert told.suspected


def test_what_nobody_may_be_told_of_makes_no_room_for_others():
    """Discoveries allow discoveries (Benjamini-Hochberg); a machine that alarms everywhere must not."""
    slow, *others = SHAPES
    cells = family(dict.fromkeys(SHAPES, 1.03))
    mute = [replace(cell, quarantined=Quarantined("ada", "loud")) if cell.case in others else cell for cell in cells]
    alone = family({slow: 1.03})
    assert judge(mute, FAMILY)["norms", slow].q == pytest.approx(judge(alone, FAMILY)["norms", slow].q, rel=0.5)


def test_a_case_that_varies_more_than_its_family_is_not_taken_to_be_as_sure():
    """Its fresh trials agree by chance; its first ones did not."""
    [odd, *_] = SHAPES
    cells = family({odd: 1.02})
    spread = Pairs(((99.0,) * 4, (104.5,) * 4, (104.0,) * 4), ((100.0,) * 4,) * 3)
    steady = Pairs(((102.0,) * 4, (102.1,) * 4), ((100.0,) * 4,) * 2)
    told = judge(
        [replace(cell, screened=spread, confirmed=steady) if cell.case == odd else cell for cell in cells], FAMILY
    )
    assert told["norms", odd].outcome is Outcome.INCONCLUSIVE


def test_short_kernels_need_more_and_nobody_acts_on_nanoseconds():
    def told(us: float, ratio: float) -> Outcome:
        both = [
            Pairs(
                tuple(tuple(t * us / 100 for t in r) for r in one.candidate),
                tuple(tuple(t * us / 100 for t in r) for r in one.baseline),
            )
            for one in (pairs(ratio, 5, round_noise=0.001), pairs(ratio, 5, seed=1, round_noise=0.001))
        ]
        return verdict(Cell("norms", SHAPES[0], *both), Policy())

    assert told(1000, 1.03) is Outcome.REGRESSION
    assert told(50, 1.008) is Outcome.STEADY, "2 % is what matters below 100 us"
    assert told(2, 1.012) is Outcome.STEADY, "24 ns of 2 us, where 50 are nothing"
    assert told(2, 1.05) is Outcome.REGRESSION


@given(st.randoms(use_true_random=False), st.integers(0, 50))
@settings(max_examples=20)
def test_the_order_of_cases_and_launches_does_not_matter(dice, seed):
    cells = family({SHAPES[0]: 1.03, SHAPES[5]: 0.97, SHAPES[13]: 1.012}, seed)
    mixed = [replace(cell, screened=shuffled(cell.screened, dice)) for cell in cells]
    dice.shuffle(mixed)
    assert outcomes(mixed) == outcomes(cells)
    assert wanted(mixed, FAMILY) == wanted(cells, FAMILY)


def shuffled(one: Pairs, dice: random.Random) -> Pairs:
    order = list(range(len(one.candidate)))
    dice.shuffle(order)
    return Pairs(tuple(one.candidate[n] for n in order), tuple(one.baseline[n] for n in order))


@given(st.floats(0.2, 5.0), st.integers(0, 50))
@settings(max_examples=20)
def test_the_unit_does_not_matter_where_no_limit_has_one(scale, seed):
    free = Policy(screening=(3, 5, 8), confirmation=(2, 5, 8), short_us=0, smallest_change_ns=0)
    cells = family({SHAPES[0]: 1.03, SHAPES[5]: 0.97, SHAPES[13]: 1.012}, seed)

    def scaled(one: Pairs) -> Pairs:
        candidate, baseline = (
            tuple(tuple(us * scale for us in r) for r in side) for side in (one.candidate, one.baseline)
        )
        return Pairs(candidate, baseline)

    other = [replace(cell, screened=scaled(cell.screened), confirmed=scaled(cell.confirmed)) for cell in cells]
    assert outcomes(other, free) == outcomes(cells, free)


ORDER = [Outcome.IMPROVEMENT, Outcome.STEADY, Outcome.REGRESSION]


@given(st.floats(0.9, 1.1), st.floats(1.0, 1.1), st.integers(0, 50))
@settings(max_examples=30)
def test_a_slower_candidate_never_gets_a_better_verdict(ratio, factor, seed):
    one, other = (outcomes(family({SHAPES[0]: r}, seed))[SHAPES[0]] for r in (ratio, ratio * factor))
    if Outcome.INCONCLUSIVE not in (one, other):
        assert ORDER.index(other) >= ORDER.index(one)


@given(st.floats(1.1, 2.0), st.integers(1, 40), st.integers(0, 50))
@settings(max_examples=20)
def test_steady_cases_beside_it_never_hide_a_clear_regression(ratio, more, seed):
    cells = family({SHAPES[0]: ratio}, seed)
    beside = [Cell("norms", f"rmsnorm.fwd.{n}x128.bf16", pairs(1.0, seed=900 + n)) for n in range(more)]
    assert outcomes([*cells, *beside])[SHAPES[0]] is Outcome.REGRESSION


@given(st.lists(st.floats(1, 1e6), min_size=3, max_size=8), st.integers(0, 50))
@settings(max_examples=20)
def test_identical_times_raise_no_alarm_beside_noisy_ones(times, seed):
    same = Pairs((tuple(times),) * 3, (tuple(times),) * 3)
    told = outcomes([*family({}, seed), Cell("norms", "rmsnorm.fwd.7x7.bf16", same, same)])
    assert told["rmsnorm.fwd.7x7.bf16"] not in CHANGES


@given(st.integers(0, 50))
@settings(max_examples=10)
def test_judging_again_says_the_same_and_what_was_decided_needs_nothing_more(seed):
    cells = family({SHAPES[0]: 1.03}, seed)
    assert judge(cells, FAMILY) == judge(cells, FAMILY)
    told, asked = outcomes(cells), wanted(cells, FAMILY)
    assert all(told[case] is Outcome.INCONCLUSIVE for _, case in asked)


def test_what_was_decided_early_stays_so_whatever_the_others_need():
    """More trials of the undecided do not change what is known of those that got none."""
    cells = [*family({}), Cell("norms", "rmsnorm.fwd.9x9.bf16", pairs(1.0, 8, trial_noise=0.03, seed=3))]
    earlier = [replace(cell, screened=Pairs(cell.screened.candidate[:3], cell.screened.baseline[:3])) for cell in cells]
    before, after = judge(earlier, FAMILY), judge(cells, FAMILY)
    assert all(before[cell.name] == after[cell.name] for cell in cells[:-1])


def test_harmless_changes_rarely_alarm_and_real_ones_are_rarely_missed():
    """500 harmless cases and 200 slow-downs of 5 %, with the noise of a kernel above 30 us."""

    def decided(ratio: float, seed: int) -> Outcome:
        return verdict(Cell("norms", "a case", pairs(ratio, seed=seed), pairs(ratio, seed=seed + 1_000_000)))

    assert sum(decided(1.0, seed) is Outcome.REGRESSION for seed in range(500)) == 0
    assert sum(decided(1.05, seed) is Outcome.REGRESSION for seed in range(200)) >= 195
