"""The step test: its p is right where nothing changed, whatever the sides are like."""

import numpy as np
import pytest

from service.domain.changepoints.step_test import Step, step_between
from tests.service.domain.changepoints.test_noise import correlated

MANY = 20_000


def nulls(before: int, after: int, wider: float = 1.0) -> list[Step]:
    random = np.random.default_rng((before, after))
    return [step_between(random.normal(0, wider, before), random.normal(0, 1, after)) for _ in range(MANY)]


@pytest.mark.parametrize("sides", [(5, 5), (5, 40), (12, 40), (40, 40)])
def test_p_of_equal_sides_is_a_probability(sides):
    """No p is more than twice as frequent as it says; before, p 1e-5 was seen in 1 of 330 for five against five."""
    p = np.array([one.p for one in nulls(*sides)])
    for level, allowed in ((0.05, 1.1), (0.01, 1.25), (1e-3, 2)):
        assert np.mean(p <= level) <= allowed * level
    assert np.count_nonzero(p <= 1e-4) <= 8, "2 are expected"
    assert np.count_nonzero(p <= 1e-5) <= 2, ".2 are expected"


@pytest.mark.parametrize("sides", [(5, 5), (5, 40), (12, 40), (40, 40)])
def test_the_strict_p_is_right_if_one_side_varies_more(sides):
    p = np.array([one.strict_p for one in nulls(*sides, wider=2.0)])
    assert np.mean(p <= 0.05) <= 0.055
    assert np.mean(p <= 1e-3) <= 3e-3
    assert np.count_nonzero(p <= 1e-5) <= 3


@pytest.mark.parametrize("r", [0.3, 0.6, 0.9])
def test_correlated_noise_is_allowed_for(r):
    random = np.random.default_rng(7)
    p = np.array([step_between(*np.split(correlated(random, 80, r), 2), r).p for _ in range(4000)])
    assert np.mean(p <= 0.05) <= 0.07
    assert np.mean(p <= 1e-3) <= 3e-3


def test_a_drift_is_no_step_and_a_step_is_no_drift():
    random = np.random.default_rng(3)
    drifts = [step_between(*np.split(correlated(random, 80, 0.97), 2)).over_drift for _ in range(200)]
    steps = [step_between(*(random.normal(level, 1, 40) for level in (0, 2))).over_drift for _ in range(200)]
    assert np.median(drifts) < 3 < 10 < min(steps)


def test_a_step_is_refuted_by_what_it_looks_like():
    random = np.random.default_rng(5)
    step = step_between(random.normal(0, 1, 40), random.normal(2, 1, 40))
    assert step.p_of_less(step.shift) == pytest.approx(0.5)
    assert step.p_of_less(4.0) < 1e-6 < 0.999 < step.p_of_less(0.5)
    faster = step_between(random.normal(0, 1, 40), random.normal(-2, 1, 40))
    assert faster.p_of_less(-4.0) < 1e-6 < 0.999 < faster.p_of_less(-0.5)
    assert faster.p_of_less(1.0) < 1e-6, "the other way"
