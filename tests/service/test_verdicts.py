"""Deciding: the table of what samples give which verdict, and the laws that hold for all of them."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.policy import Policy
from service.verdicts import Cell, Outcome, Pairs, compare, judge, launches_until_next_look, wanted

POLICY = Policy(smallest_change=0.02, looks=(3, 5, 8), confirms=(3, 5, 8))


def pairs(
    ratio: float, launches: int = 3, *, launch_noise: float = 0.002, round_noise: float = 0.005, seed: int = 0
) -> Pairs:
    """A kernel of 100 us and a candidate `ratio` times as slow; the noise of a launch is shared by its rounds."""
    dice = random.Random(seed)
    candidate, baseline = [], []
    for _ in range(launches):
        placement = 1 + dice.gauss(0, launch_noise)
        drift = [1 + 0.05 * dice.random() for _ in range(20)]  # the machine's, so both sides share it
        candidate.append(tuple(100 * ratio * placement * d * (1 + dice.gauss(0, round_noise)) for d in drift))
        baseline.append(tuple(100 * d * (1 + dice.gauss(0, round_noise)) for d in drift))
    return Pairs(tuple(candidate), tuple(baseline))


def verdict(cell: Cell, policy: Policy = POLICY) -> Outcome:
    [only] = judge([cell], policy).values()
    return only.outcome


@pytest.mark.parametrize(
    ("looked", "confirmed", "expected"),
    [
        (1.000, None, Outcome.STEADY),
        (1.005, None, Outcome.STEADY),
        (1.050, 1.050, Outcome.REGRESSION),
        (0.900, 0.900, Outcome.IMPROVEMENT),
        (1.050, 1.000, Outcome.STEADY),  # fresh launches say that there is nothing
        (1.050, 0.950, Outcome.INCONCLUSIVE),  # … or point the other way
        (1.050, None, Outcome.INCONCLUSIVE),  # a suspicion alone is never a regression
    ],
)
def test_a_change_is_told_only_when_fresh_launches_agree(looked, confirmed, expected):
    fresh = pairs(confirmed, seed=1) if confirmed else Pairs()
    assert verdict(Cell("norms", "a case", pairs(looked), fresh)) is expected


def test_a_noisy_case_is_inconclusive_and_never_silently_green():
    assert verdict(Cell("norms", "a case", pairs(1.0, launch_noise=0.05))) is Outcome.INCONCLUSIVE


def test_a_wrong_result_is_invalid_however_fast_it_is():
    wrong = Cell("norms", "a case", pairs(0.5), pairs(0.5, seed=1), trouble=(Outcome.INVALID, "y is wrong"))
    assert verdict(wrong) is Outcome.INVALID


def test_without_a_baseline_a_case_is_new():
    assert verdict(Cell("norms", "a case", Pairs(pairs(1.0).candidate))) is Outcome.NEW


def test_the_same_machine_code_is_never_a_regression():
    [only] = judge([Cell("norms", "a case", pairs(1.05), pairs(1.05, seed=1), same_code=True)], POLICY).values()
    assert only.outcome is Outcome.INCONCLUSIVE
    assert only.reason.startswith("it ran the same compiled kernels as its baseline, launched alike")
    assert "suspect the machine" in only.reason


def test_a_suspicion_that_fresh_launches_leave_open_is_inconclusive():
    left_open = Cell("norms", "a case", pairs(1.05), pairs(1.02, launches=8, launch_noise=0.02, seed=3))
    assert verdict(left_open) is Outcome.INCONCLUSIVE


def test_fresh_launches_that_repeat_nothing_say_so():
    [only] = judge([Cell("norms", "a case", pairs(1.05), pairs(1.0, seed=1))], POLICY).values()
    assert only.reason == "within 2% of its baseline: 3 fresh launches did not repeat what looked like a change"
    assert only.comparison.launches == 3


@pytest.mark.parametrize(
    ("looked", "confirmed", "said"),
    [
        (Pairs(), Pairs(), "the session ended before more launches could settle it"),
        (pairs(1.0, launch_noise=0.05), Pairs(), "the session ended before more launches could settle it"),
        (pairs(1.0, 8, launch_noise=0.05), Pairs(), "the interval is still too wide after 8 launches"),
        (
            pairs(1.5),
            Pairs(),
            "it looked like a change, and the session ended before fresh launches could settle it",
        ),
        (
            pairs(1.5),
            pairs(1.5, 1),
            "it looked like a change, and the session ended before fresh launches could settle it",
        ),
        (
            Pairs(((None,),) * 8, ((None,),) * 8),
            Pairs(),
            "the rounds of 8 of 8 launches were lost to a throttled device",
        ),
        (
            pairs(1.5),
            Pairs(((None, None),) * 7 + ((150.0,),), ((None, None),) * 7 + ((100.0,),)),
            "it looked like a change, and the rounds of 7 of 8 launches were lost to a throttled device",
        ),
        (
            Pairs(((None,),) * 7 + ((),), ((None,),) * 7 + ((),)),  # the last launch ended before the case
            Pairs(),
            "the session ended before more launches could settle it",
        ),
        (pairs(1.05), pairs(0.95), "it looked like a change, and fresh launches did not confirm it"),
        (
            pairs(1.05),
            pairs(1.02, 8, launch_noise=0.02, seed=3),
            "it looked like a change, and fresh launches did not confirm it",
        ),
    ],
)
def test_the_undecided_say_what_they_lack(looked, confirmed, said):
    measured = Pairs(looked.candidate, looked.baseline or ((),))
    [only] = judge([Cell("norms", "a case", measured, confirmed)], POLICY).values()
    assert (only.outcome, only.reason) == (Outcome.INCONCLUSIVE, said)


@pytest.mark.parametrize(("smallest", "said"), [(0.02, "within 2%"), (0.005, "within 0.5%"), (0.15, "within 15%")])
def test_a_small_limit_is_not_rounded_to_nothing(smallest, said):
    [only] = judge(
        [Cell("norms", "a case", pairs(1.0, launch_noise=0.0001))], Policy(smallest_change=smallest)
    ).values()
    assert only.reason == f"{said} of its baseline"


def test_a_change_says_when_nothing_controlled_it():
    slower = Cell("norms", "a case", pairs(1.05), pairs(1.05, seed=1), control=pairs(1.0, seed=2))
    alone = replace(slower, control=Pairs())
    controlled, uncontrolled = (judge([cell], POLICY)[cell.name].reason for cell in (slower, alone))
    assert controlled.endswith("slower than its baseline, confirmed by 3 fresh launches")
    assert uncontrolled == f"{controlled}, without an A/A control at this case"


def test_a_leaning_control_takes_the_trust_from_the_session():
    leaning = Cell("norms", "a case", pairs(1.05), pairs(1.05, seed=1), control=pairs(1.04, seed=2))
    [only] = judge([leaning], POLICY).values()
    assert only.outcome is Outcome.INCONCLUSIVE
    assert "A/A" in only.reason
    assert only.control == pytest.approx(1.04, abs=0.005), "it is kept beside the verdict, paired as that is"


MEMORY = "rmsnorm.fwd.4096x1024.bf16.memory"


def exactly(ratio: float, launches: int = 3) -> Pairs:
    """Bytes: the same in every round of every launch."""
    held = 16_777_216
    return Pairs(((held * ratio,),) * launches, ((float(held),),) * launches)


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


def test_a_change_of_memory_is_not_said_to_be_one_of_time():
    doubled, more = (judge([Cell("norms", MEMORY, exactly(r), exactly(r))], POLICY) for r in (2.0, 1.25))
    said = "25.0% more memory than its baseline, confirmed by 3 fresh launches, without an A/A control at this case"
    assert [verdict.reason for verdict in more.values()] == [said]
    [twice] = doubled.values()
    assert twice.reason.startswith("2.0 times as much memory as its baseline")


@pytest.mark.parametrize(
    ("lane", "expected"), [("", Outcome.REGRESSION), (".call", Outcome.STEADY), (".compile", Outcome.STEADY)]
)
def test_each_lane_has_a_smallest_change_of_its_own(lane, expected):
    slower = pairs(1.035, seed=1)
    cell = Cell("norms", f"rmsnorm.fwd.4096x1024.bf16{lane}", slower, pairs(1.035, seed=2))
    assert verdict(cell) is expected


def test_only_the_undecided_get_more_launches_and_only_the_suspected_are_confirmed():
    cells = [
        Cell("norms", "quiet", pairs(1.0)),
        Cell("norms", "noisy", pairs(1.0, launch_noise=0.05)),
        Cell("norms", "slower", pairs(1.05)),
        Cell("norms", "told", pairs(1.05), pairs(1.05, seed=1)),
        Cell("norms", "refuted", pairs(1.05), pairs(1.0, seed=1)),
        Cell("norms", "half confirmed", pairs(1.05), pairs(1.05, launch_noise=0.05, seed=1)),
        Cell("norms", "wrong", pairs(1.05), trouble=(Outcome.INVALID, "y is wrong")),
        Cell("norms", "spent", pairs(1.0, launches=8, launch_noise=0.2)),
    ]
    assert wanted(cells, POLICY) == {
        ("norms", "noisy"): "look",
        ("norms", "slower"): "confirm",
        ("norms", "half confirmed"): "confirm",
    }


@pytest.mark.parametrize(("done", "more"), [(0, 3), (3, 2), (5, 3), (8, 0)])
def test_looks_come_after_the_launches_that_the_policy_names(done, more):
    assert launches_until_next_look(done, POLICY) == more


@given(st.floats(0.2, 5.0), st.integers(0, 10_000))
def test_the_unit_of_time_does_not_matter(scale, seed):
    original = pairs(1.03, seed=seed)
    scaled = Pairs(
        tuple(tuple(us * scale for us in launch) for launch in original.candidate),
        tuple(tuple(us * scale for us in launch) for launch in original.baseline),
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
def test_identical_times_raise_no_alarm(times, launches):
    same = Pairs((tuple(times),) * launches, (tuple(times),) * launches)
    assert verdict(Cell("norms", "a case", same, same)) is Outcome.STEADY


def test_a_lost_round_is_left_out_on_both_sides():
    whole = pairs(1.05)
    holed = Pairs(tuple((None, *launch[1:]) for launch in whole.candidate), whole.baseline)
    assert compare(holed, 0.95).ratio == pytest.approx(1.05, rel=0.01)


def test_harmless_changes_rarely_alarm_and_real_ones_are_rarely_missed():
    """500 harmless cases and 200 slow-downs of 5 %, with the noise of a kernel above 30 us."""

    def decided(ratio: float, seed: int) -> Outcome:
        return verdict(Cell("norms", "a case", pairs(ratio, seed=seed), pairs(ratio, seed=seed + 1_000_000)))

    assert sum(decided(1.0, seed) is Outcome.REGRESSION for seed in range(500)) == 0
    assert sum(decided(1.05, seed) is Outcome.REGRESSION for seed in range(200)) >= 195
