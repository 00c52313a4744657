"""The statistics by themselves: tables of numbers from the sources, and what they do to samples with a known answer."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import digamma, polygamma

from service.domain.stats.estimates import (
    Estimate,
    Stop,
    benjamini_hochberg,
    pooled_variance,
    stops,
    trial_effect,
    trial_effects,
    variance,
    winsorised_mean,
)
from service.domain.stats.variance_prior import MIN_CASES, Prior, priors

# -- effects


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([3.0], 3.0),
        ([1.0, 3.0], 2.0),
        ([1.0, 2.0, 90.0], 2.0),  # of three: the median
        ([1.0, 2.0, 3.0, 90.0], 2.5),  # of four: the middle two
        ([0.0, 2.0, 3.0, 4.0, 5.0, 90.0], 3.5),  # (2 + 2 + 3 + 4 + 5 + 5) / 6
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 90.0], 5.5),  # two at each end
    ],
)
def test_the_winsorised_mean(values, mean):
    assert winsorised_mean(values) == pytest.approx(mean)


def test_rounds_are_paired_and_what_one_side_lost_is_lost_on_both():
    effect = trial_effect((110.0, None, 220.0, 900.0), (100.0, 5.0, 200.0, None))
    assert effect == pytest.approx(math.log(1.1))
    assert trial_effect((None, 3.0), (2.0, None)) is None


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.floats(-1, 1))
def test_a_mean_moves_with_its_values_and_stays_among_them(values, by):
    mean = winsorised_mean(values)
    assert min(values) - 1e-12 <= mean <= max(values) + 1e-12
    assert winsorised_mean([value + by for value in values]) == pytest.approx(mean + by)


# -- estimates


SAMPLE = [0.011, 0.009, 0.013, 0.010, 0.012]


def test_without_a_prior_it_is_the_t_test():
    estimate = Estimate.of(SAMPLE)
    assert estimate.p_no_change() == pytest.approx(stats.ttest_1samp(SAMPLE, 0).pvalue)
    assert estimate.p_above(0.005) == pytest.approx(stats.ttest_1samp(SAMPLE, 0.005, alternative="greater").pvalue)
    assert estimate.p_below(0.02) == pytest.approx(stats.ttest_1samp(SAMPLE, 0.02, alternative="less").pvalue)
    assert estimate.interval(0.95) == pytest.approx(stats.ttest_1samp(SAMPLE, 0).confidence_interval(0.95))


def test_within_is_the_harder_of_two_one_sided_tests():
    estimate = Estimate.of(SAMPLE)
    assert estimate.p_within(0.02) == pytest.approx(max(estimate.p_below(0.02), estimate.p_above(-0.02)))


@pytest.mark.parametrize(
    ("size", "no_change", "above", "within"),
    [(0.0, 1.0, 1.0, 0.0), (0.004, 0.0, 1.0, 0.0), (0.01, 0.0, 0.0, 1.0), (0.02, 0.0, 0.0, 1.0)],
)
def test_what_does_not_vary_is_certain(size, no_change, above, within):
    """… against a limit of 1 %: at the limit itself it is not within."""
    exact = Estimate.of([size] * 3)
    assert (exact.p_no_change(), exact.p_above(0.004), exact.p_within(0.01)) == (no_change, above, within)


def test_one_launch_is_no_estimate():
    assert Estimate.of([0.1]) is None
    assert Estimate.of([0.1], Prior(1e-6, 10, 100)) is None


def test_a_prior_moderates_and_a_floor_holds():
    prior = Prior(variance=4e-6, df=8, pooled=400)
    moderated = Estimate.of([0.009, 0.011], prior)  # its own variance is 2e-6
    assert moderated.df == 9
    assert moderated.error == pytest.approx(math.sqrt((8 * 4e-6 + 1 * 2e-6) / 9 / 2))
    assert Estimate.of([0.009, 0.011], prior, at_least=9e-6).error == pytest.approx(math.sqrt(9e-6 / 2))


def test_variances_are_pooled_around_means_of_their_own():
    assert pooled_variance([1.0, 3.0], [11.0, 12.0, 13.0]) == pytest.approx((2.0 + 2 * 1.0) / 3)
    assert (pooled_variance([1.0]), variance([2.0, 2.0 + 1e-12])) == (0.0, 0.0)


# -- moderation


def simulated(count: int, spread: float, *, seed: int, df: int = 2, sd: float = 0.0025) -> list[float]:
    """Variances of `count` cases whose own standard deviations differ by a log-normal `spread`."""
    dice = np.random.default_rng(seed)
    return list((sd * np.exp(spread * dice.normal(size=count))) ** 2 * dice.chisquare(df, count) / df)


@pytest.mark.parametrize(
    ("spread", "least", "most"),
    [
        (0.0, 12, math.inf),  # all alike: the group says nearly everything
        (0.25, 4, 40),  # digamma'(d0 / 2) = 4 * .25^2 gives 9
        (0.5, 1.5, 4),  # … 2.7
        (1.0, 0.5, 1.3),  # … 1: each case by itself
    ],
)
def test_the_more_cases_differ_the_less_they_say_of_each_other(spread, least, most):
    prior = priors(simulated(400, spread, seed=1), ["rmsnorm"] * 400, 2)["rmsnorm"]
    assert least <= prior.df <= most


def test_the_prior_is_squeezevars_where_nothing_is_odd():
    """Smyth 2004, section 6.2, by plain moments of the log-variances; ours pulls the tails in first."""
    own = np.array(simulated(4000, 0.4, seed=2))
    logs = np.log(own) - digamma(1) + np.log(1)
    excess = logs.var(ddof=1) - polygamma(1, 1)
    half = next(d for d in np.geomspace(0.1, 100, 20_000) if polygamma(1, d) <= excess)
    prior = priors(list(own), ["rmsnorm"] * len(own), 2)["rmsnorm"]
    assert prior.df == pytest.approx(2 * half, rel=0.25)
    assert prior.variance == pytest.approx(math.exp(logs.mean() + digamma(half) - math.log(half)), rel=0.15)


def test_a_few_that_vary_far_more_do_not_spoil_the_fit_and_stand_alone():
    alike = simulated(190, 0.0, seed=3)
    with_odd = [*alike, *simulated(10, 0.0, seed=4, sd=0.05)]
    clean = priors(alike, ["rmsnorm"] * 190, 2)["rmsnorm"]
    fitted = priors(with_odd, ["rmsnorm"] * 200, 2)["rmsnorm"]
    assert fitted.df >= 5
    assert fitted.variance == pytest.approx(clean.variance, rel=0.3)
    assert fitted.moderate(0.05**2, 2) == (0.05**2, 2)


def test_each_group_has_its_own_level_and_a_small_one_that_of_its_metric():
    own = [*simulated(40, 0, seed=5), *simulated(40, 0, seed=6, sd=0.01), *simulated(MIN_CASES - 1, 0, seed=7)]
    known = priors(own, ["fwd"] * 40 + ["bwd"] * 40 + ["new"] * (MIN_CASES - 1), 2)
    assert known["bwd"].variance / known["fwd"].variance == pytest.approx(16, rel=0.6)
    assert known["fwd"].variance < known["new"].variance < known["bwd"].variance
    assert (known["fwd"].pooled, known["new"].pooled) == (80, 2 * len(own))


def test_few_cases_have_no_prior_and_what_does_not_vary_is_no_case():
    assert priors(simulated(MIN_CASES - 1, 0, seed=8), ["fwd"] * (MIN_CASES - 1), 2) == {}
    assert priors([0.0] * 100, ["fwd"] * 100, 2) == {}
    alone = priors(simulated(20, 0, seed=9), ["fwd"] * 20, 2)["fwd"]
    beside = priors([*simulated(20, 0, seed=9), *[0.0] * 100], ["fwd"] * 120, 2)["fwd"]
    assert alone == beside


@given(st.floats(1e-8, 1e-2), st.sampled_from([1, 2, 4, 11]), st.floats(0.25, 200), st.integers(8, 400))
def test_a_moderated_variance_lies_between_its_own_and_the_groups(own, df, prior_df, cases):
    prior = Prior(1e-5, prior_df, 2.0 * cases)
    moderated, total = prior.moderate(own, df)
    assert min(own, 1e-5) * (1 - 1e-9) <= moderated <= max(own, 1e-5) * (1 + 1e-9)
    assert df <= total <= max(prior.pooled, df)


# -- families of questions


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([], []),
        ([0.02], [0.02]),
        ([0.01, 0.04, 0.03, 0.005], [0.02, 0.04, 0.04, 0.02]),
        ([0.9, 0.001, 1.0], [1.0, 0.003, 1.0]),
        ([0.0, 0.0, 0.5], [0.0, 0.0, 0.5]),
    ],
)
def test_benjamini_hochberg(p, q):
    assert benjamini_hochberg(p) == pytest.approx(q)


@given(st.lists(st.floats(0, 1), max_size=40))
def test_benjamini_hochberg_is_scipys(p):
    assert benjamini_hochberg(p) == pytest.approx(list(stats.false_discovery_control(p)) if p else [])


@pytest.mark.parametrize(
    ("made", "looks"),
    [
        (0, []),
        (2, [(2, 2 / 16)]),  # the session ended early
        (3, [(3, 3 / 16)]),
        (4, [(3, 3 / 16), (4, 1 / 16)]),
        (16, [(3, 3 / 16), (5, 2 / 16), (8, 3 / 16), (12, 4 / 16), (16, 4 / 16)]),
        (20, [(3, 3 / 16), (5, 2 / 16), (8, 3 / 16), (12, 4 / 16), (20, 4 / 16)]),
    ],
)
def test_what_may_be_wrong_is_spent_in_proportion_to_launches(made, looks):
    assert list(stops((3, 5, 8, 12, 16), made)) == [Stop(at, pytest.approx(share)) for at, share in looks]


def test_effects_of_many_launches_are_those_of_each():
    dice = random.Random(1)
    whole = [([dice.uniform(90, 110) for _ in range(8)], [dice.uniform(90, 110) for _ in range(8)]) for _ in range(30)]
    odd = [
        ([100.0, None, 101.0], [99.0, 98.0, None]),
        ([None], [1.0]),
        ([1.0, 2.0], [1.0, 1.0]),
        ([1.0] * 3, [1.0] * 2),
    ]
    trials = [*whole, *odd, ([0.0, 1.0, 2.0], [1.0, 1.0, 1.0])]
    alone = [trial_effect(mine, theirs) for mine, theirs in trials]
    together = trial_effects(trials)
    assert [one is None for one in together] == [one is None for one in alone]
    assert together[:30] == pytest.approx(alone[:30])
