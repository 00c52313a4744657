"""A second session of one comparison: what it is to decide, and what both sessions say together."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.stats.estimates import Estimate
from service.domain.stats.offsets import Offset
from service.domain.stats.sequential import Limits, Suspect, Zone, confirm, screen
from service.domain.stats.variance_prior import Prior

LIMITS = Limits(math.log(1.01), (3, 5, 8, 12, 16), 0.025, 0.05)
CONFIRMATION = Limits(math.log(1.01), (2, 5, 8, 12), 0.025, 0.01)
PRIOR = Prior(0.0005**2, 100.0, math.inf)
FEW_TRIALS, MANY_TRIALS = 3, 12


def trials(centre: float, count: int = FEW_TRIALS) -> list[float]:
    return [centre + 0.0005 * (number % 3 - 1) for number in range(count)]


def offset(sd: float, df: float = 40.0) -> Offset:
    return Offset(sd**2, 0.0, df, 1, learned=True)


def twice(centre: float, sd: float, then: float | None = None) -> Zone:
    """What a second session with this centre shows after the first one."""
    before = Estimate.of(trials(centre), PRIOR)
    seen = centre if then is None else then
    return screen(trials(seen, 16), LIMITS, PRIOR, offset(sd).of_two_sessions(), before).zone


@pytest.mark.parametrize(
    ("centre", "sd", "futile", "second", "shows"),
    [
        (0.000, 0.001, False, False, Zone.SMALL),
        (0.004, 0.003, True, True, Zone.SMALL),
        (-0.004, 0.003, True, True, Zone.SMALL),
        (0.000, 0.009, True, False, Zone.OPEN),  # two sessions are too few as well
        (0.030, 0.003, False, False, Zone.MORE),
    ],
)
def test_a_second_session_is_asked_for_where_it_could_decide(centre, sd, futile, second, shows):
    first = screen(trials(centre), LIMITS, PRIOR, offset(sd))
    assert (first.futile, first.second) == (futile, second)
    assert twice(centre, sd) is shows


def test_sessions_that_contradict_each_other_count_alike():
    assert twice(0.009, 0.003, then=-0.009) is Zone.SMALL
    assert twice(0.000, 0.003, then=0.010) is twice(0.010, 0.003, then=0.000)


@given(st.floats(-0.02, 0.02), st.floats(0.0005, 0.02), st.floats(3, 200))
def test_a_second_session_with_the_same_result_never_decides_where_none_is_asked_for(centre, sd, df):
    first = screen(trials(centre, 16), LIMITS, PRIOR, offset(sd, df))
    if first.futile and not first.second:
        before = Estimate.of(trials(centre, 16), PRIOR)
        again = screen(trials(centre, 16), LIMITS, PRIOR, offset(sd, df).of_two_sessions(), before)
        assert again.zone is Zone.OPEN


@given(st.floats(-0.1, 0.1), st.floats(-0.1, 0.1), st.floats(1e-5, 0.1), st.floats(1e-5, 0.1))
def test_the_mean_of_two_sessions_lies_between_them_and_is_at_least_as_precise_as_the_worse(one, other, mine, theirs):
    first, second = Estimate(one, mine, 4.0, 3), Estimate(other, theirs, 9.0, 16)
    mean = second.averaged(first)
    assert min(one, other) - 1e-12 <= mean.centre <= max(one, other) + 1e-12
    assert mean.error <= max(mine, theirs)
    assert 4.0 - 1e-9 <= mean.df <= 13.0 + 1e-9
    assert (mean.centre, mean.error) == pytest.approx((first.averaged(second).centre, first.averaged(second).error))


def test_an_offset_that_raised_a_suspicion_once_is_not_confirmed_by_the_second_session():
    """The first session saw 1.4 %, the second nothing more than its share of that."""
    before = Estimate.of(trials(0.014), PRIOR)
    suspect = Suspect(Zone.MORE, trials(0.006), trials(0.006, MANY_TRIALS), CONFIRMATION, PRIOR, offset(0.003), 0.0)
    [alone] = confirm([suspect], 6)
    [both] = confirm([Suspect(**{**vars(suspect), "before": before, "offset": offset(0.003).of_two_sessions()})], 6)
    assert Zone.MORE not in (alone.zone, both.zone)


def test_a_change_that_both_sessions_show_is_found():
    before = Estimate.of(trials(0.011), PRIOR)
    suspect = Suspect(Zone.MORE, trials(0.011), trials(0.011, MANY_TRIALS), CONFIRMATION, PRIOR, offset(0.003), 0.0)
    [alone] = confirm([suspect], 6)
    [both] = confirm([Suspect(**{**vars(suspect), "before": before, "offset": offset(0.003).of_two_sessions()})], 6)
    assert (alone.zone, alone.futile, alone.second) == (Zone.OPEN, True, True)
    assert both.zone is Zone.MORE
