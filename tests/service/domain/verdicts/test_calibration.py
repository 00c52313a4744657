"""Comparisons of equal code: counting, quarantine and release of cases, and false quarantines."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cases import Case, Role
from service.domain.policy.policy import Calibrating, Policy
from service.domain.states import CellState, Equal
from service.domain.stats.estimates import variance
from service.domain.verdicts.calibration import (
    Rate,
    compared,
    distrusted,
    matters,
    patience,
    student,
    trusted_again,
    variance_of,
)
from service.domain.verdicts.session_result import ContenderResult
from tests.service.domain.verdicts.lives import life

CASE = "rmsnorm.fwd.32768x4096.bf16"
RULES = Calibrating()


def took(
    role: Role, *launches_us: float, provider: str = "norms", confirmed: tuple[float, ...] = ()
) -> ContenderResult:
    screened, fresh = (tuple((us, us) for us in one) for one in (launches_us, confirmed))
    return ContenderResult(role, provider, Case.parse(CASE), CellState.MEASURED, None, screened, fresh)


# -- what is compared


def test_a_calibration_compares_every_provider_with_itself():
    taken = [
        took(role, 200.0, 201.0, 202.0, provider=name)
        for name in ("norms", "other")
        for role in (Role.HEAD, Role.PARENT)
    ]
    found = compared(taken, Policy(), calibration=True)
    assert [(one.provider, one.ratio, one.p, one.trials, one.alarmed) for one in found] == [
        ("norms", 1.0, 1.0, 3, False),
        ("other", 1.0, 1.0, 3, False),
    ]


def test_a_calibration_compares_two_builds_and_two_processes_of_one():
    head, parent, control = (
        took(role, *(us,) * 3) for role, us in ((Role.HEAD, 202), (Role.PARENT, 200), (Role.CONTROL, 201))
    )
    found = compared([head, parent, control], Policy(), calibration=True)
    assert [(one.kind, one.ratio, one.value) for one in found] == [
        (Equal.COPY, pytest.approx(1.005), 200),
        (Equal.BUILD, pytest.approx(1.01), 200),
    ]


def test_another_session_compares_its_control_with_what_that_is_a_copy_of():
    head, parent, control = (
        took(Role.HEAD, 300, 300, 300),
        took(Role.PARENT, 200, 200, 200),
        took(Role.CONTROL, 202, 202, 202),
    )
    [beside] = compared([head, parent, control], Policy(), calibration=False)
    assert beside.ratio == pytest.approx(1.01)
    [alone] = compared([head, control], Policy(), calibration=False)  # the first revision: the copy is of the head
    assert alone.ratio == pytest.approx(202 / 300)


def test_nothing_is_said_of_what_was_not_measured_twice():
    failed = ContenderResult(Role.PARENT, "norms", Case.parse(CASE), CellState.FAILED, "it broke")
    assert compared([took(Role.HEAD, 200, 201), failed], Policy(), calibration=True) == []
    assert compared([took(Role.HEAD, 200), took(Role.PARENT, 200)], Policy(), calibration=True) == []


def test_p_is_students_of_the_first_look_alone():
    logs = (0.01, 0.02, 0.03, 5.0)
    taken = [took(Role.HEAD, *(200 * math.exp(log) for log in logs)), took(Role.PARENT, *(200.0,) * 4)]
    [one] = compared(taken, Policy(screening=(3, 4)), calibration=True)
    assert (one.p, one.ratio) == (
        pytest.approx(0.074180, abs=1e-6),
        pytest.approx(math.exp(0.02)),
    )  # t = 3.4641 of 2 degrees


def test_a_session_that_would_have_told_somebody_says_so():
    twice = [took(role, *(us,) * 3, confirmed=(us,) * 2) for role, us in ((Role.HEAD, 220.0), (Role.PARENT, 200.0))]
    [one] = compared(twice, Policy(), calibration=True)
    assert (one.alarmed, one.p) == (True, 0.0)


@given(st.lists(st.floats(-0.05, 0.05), min_size=2, max_size=8).filter(lambda effects: variance(effects) > 1e-12))
def test_the_variance_can_be_read_off_what_is_stored(effects: list[float]):
    centre = sum(effects) / len(effects)
    found = variance_of(math.exp(centre), student(effects), len(effects))
    if found is None:
        assert abs(centre) < 1e-9 * math.sqrt(variance(effects)) or student(effects) in (0.0, 1.0)
    else:
        assert found == pytest.approx(variance(effects), rel=1e-3)


@pytest.mark.parametrize(("ratio", "p", "trials"), [(1.0, 1.0, 3), (1.01, 0.0, 3), (1.01, 0.5, 1), (1 + 2e-16, 0.5, 3)])
def test_what_does_not_vary_has_no_variance_to_read(ratio: float, p: float, trials: int):
    assert variance_of(ratio, p, trials) is None


def test_on_a_fair_machine_the_test_is_nominal():
    """5 of 100 comparisons of equal code differ at .05, whatever the noise of trials."""
    rng = random.Random(7)
    ps = [student([rng.gauss(0, noise) for _ in range(3)]) for noise in (0.0003, 0.02) * 2000]
    assert 0.042 < sum(p < 0.05 for p in ps) / len(ps) < 0.058


@pytest.mark.parametrize(
    ("ratio", "p", "said"),
    [
        (1.02, 0.001, True),
        (0.98, 0.001, True),
        (1.02, 0.2, False),  # chance
        (1.0004, 0.001, False),  # beyond chance, and nobody would ever have heard of it
        (1.0051, 0.001, True),  # half of the smallest change is enough for a suspicion
    ],
)
def test_what_speaks_against_a_case(ratio: float, p: float, said: bool):
    assert matters(ratio, p, CASE, Policy()) is said


@pytest.mark.parametrize(
    ("value_us", "ratio", "said"),
    [
        (200.0, 1.005, True),
        (3.0, 1.005, False),  # a suspicion begins at 0.4 of 2 %
        (3.0, 1.0081, True),
        (1.0, 1.0081, False),  # … and here at 0.4 of 50 ns
        (1.0, 1.021, True),
    ],
)
def test_what_is_too_small_for_a_suspicion_does_not_speak_against_a_short_case(
    value_us: float, ratio: float, said: bool
):
    assert matters(ratio, 0.01, CASE, Policy(), value_us) is said


# -- when a case is quarantined


@pytest.mark.parametrize(
    ("differed", "of", "quarantined"),
    [
        (0, 60, False),
        (4, 19, False),  # too few to say anything
        (4, 20, False),  # 20 %, by chance in 1 of 8 where the rate is just twice the nominal one
        (5, 20, True),
        (6, 60, False),  # twice the nominal rate, and no more
        (10, 60, False),
        (11, 60, True),
    ],
)
def test_a_case_over_twice_the_nominal_rate_is_quarantined(differed: int, of: int, quarantined: bool):
    against = [True] * differed + [False] * (of - differed)
    assert (distrusted(against, RULES) is not None) is quarantined


def test_the_reason_is_in_words():
    said = distrusted([True] * 8 + [False] * 24, RULES)
    assert said == "8 of its last 32 comparisons of equal code differed beyond chance: 25% where 5% may"
    assert trusted_again([False] * 39 + [True], 0, RULES) == (
        "1 of its last 40 comparisons of equal code differed, no more than chance allows"
    )


def test_what_was_long_ago_does_not_count():
    assert distrusted([True] * 30 + [False] * 60, RULES) is None


@pytest.mark.parametrize(("earlier", "needed"), [(0, 40), (1, 80), (2, 160), (3, 320), (4, 320), (9, 320)])
def test_who_was_quarantined_again_waits_longer(earlier: int, needed: int):
    assert patience(earlier, RULES) == needed
    assert trusted_again([False] * (needed - 1), earlier, RULES) is None
    assert trusted_again([True] * 9 + [False] * needed, earlier, RULES) is not None, "what counts is the last ones"


@given(st.lists(st.booleans(), max_size=120), st.integers(0, 3))
def test_no_case_is_at_once_too_bad_and_good_enough(against: list[bool], earlier: int):
    assert not (distrusted(against, RULES) and trusted_again(against, earlier, RULES))


@given(st.lists(st.booleans(), min_size=1, max_size=120))
def test_one_more_difference_never_helps_a_case(against: list[bool]):
    if distrusted(against, RULES):
        worse = against.copy()
        worse[against.index(False) if False in against else 0] = True
        assert distrusted(worse, RULES)


# -- the whole life of a case, simulated


def test_a_fair_case_is_quarantined_in_less_than_one_of_a_hundred_sessions():
    rng = random.Random(1)
    lives = [list(life(rng, [0.05] * 1000)) for _ in range(100)]
    assert sum(map(sum, lives)) / 100_000 < 0.005
    assert sum(map(any, lives)) <= 5, "of 100 fair cases in 1,000 sessions each"


def test_a_case_at_four_times_the_nominal_rate_is_quarantined_in_about_thirty_sessions():
    rng = random.Random(2)
    lives = [list(life(rng, [0.2] * 1000)) for _ in range(101)]
    first = sorted(one.index(True) + 1 for one in lives)
    assert first[50] <= 35
    assert first[90] <= 130


@pytest.mark.parametrize("rate", [0.1, 0.15, 0.2, 0.4])
def test_nothing_flaps(rate: float):
    rng = random.Random(3)
    for _ in range(40):
        states = list(life(rng, [rate] * 1500))
        assert sum(one and not other for one, other in pairwise(states)) <= 4


def test_a_case_that_was_mended_is_released():
    rng = random.Random(4)
    waits = []
    for _ in range(50):
        states = list(life(rng, [0.5] * 30 + [0.03] * 400))
        waits.append(states[30:].index(False))
    assert sorted(waits)[25] <= 60


# -- rates


@pytest.mark.parametrize(
    ("differed", "of", "low", "high"),
    [(0, 20, 0.0, 0.1684), (1, 20, 0.0013, 0.2487), (20, 20, 0.8316, 1.0), (5, 100, 0.0164, 0.1128), (0, 0, 0.0, 1.0)],
)
def test_the_interval_is_clopper_and_pearsons(differed: int, of: int, low: float, high: float):
    rate = Rate(of, differed, 0)
    assert (rate.low, rate.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_rates_add_up():
    assert Rate(20, 1, 0) + Rate(40, 3, 1) == Rate(60, 4, 1)
    assert Rate(0, 0, 0).share is None
