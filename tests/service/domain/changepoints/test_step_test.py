"""The step test: its p is right where nothing changed, whatever the noise is like."""

import numpy as np
import pytest

from service.domain.changepoints.step_test import Step, step_between
from tests.service.domain.changepoints.test_noise import correlated

MANY = 20_000


def nulls(before: int, after: int, wider: float = 1.0) -> list[Step]:
    random = np.random.default_rng((before, after))
    return [step_between(random.normal(0, wider, before), random.normal(0, 1, after)) for _ in range(MANY)]


@pytest.mark.parametrize("sides", [(5, 5), (5, 40), (12, 40), (40, 40)])
@pytest.mark.parametrize("wider", [1.0, 2.0])
def test_p_is_a_probability_also_if_one_side_varies_more(sides, wider):
    p = np.array([step.p for step in nulls(*sides, wider=wider)])
    for level, allowed in ((0.05, 1.1), (0.01, 1.25), (1e-3, 2)):
        assert np.mean(p <= level) <= allowed * level
    assert np.count_nonzero(p <= 1e-4) <= 8, "2 are expected"
    assert np.count_nonzero(p <= 1e-5) <= 2, ".2 are expected"


@pytest.mark.parametrize(("r", "allowed"), [(0.3, 1.5), (0.6, 2), (0.9, 4)])
@pytest.mark.parametrize("side", [12, 40, 100])
def test_correlated_noise_is_allowed_for(side, r, allowed):
    random = np.random.default_rng(7)
    steps = [step_between(*np.split(correlated(random, 2 * side, r), 2)) for _ in range(2000)]
    p = np.array([step.p for step in steps])
    assert np.mean(p <= 0.01) <= allowed * 0.01
    assert np.mean(p <= 1e-3) <= 2 * allowed * 1e-3
    covered = [low <= 1 <= high for low, high in (step.interval() for step in steps)]
    assert np.mean(covered) >= 0.9


def test_a_drift_is_no_step_and_a_step_is_no_drift():
    random = np.random.default_rng(3)
    drifts = [step_between(*np.split(correlated(random, 80, 0.97), 2)).p for _ in range(200)]
    steps = [step_between(*(random.normal(level, 1, 40) for level in (0, 2))).p for _ in range(200)]
    assert np.median(drifts) > 0.05 > 0.005 > max(steps)


def test_a_step_is_refuted_by_what_it_looks_like():
    random = np.random.default_rng(5)
    step = step_between(random.normal(0, 1, 40), random.normal(2, 1, 40))
    assert step.p_of_less(step.shift) == pytest.approx(0.5)
    assert step.p_of_less(4.0) < 1e-6 < 0.999 < step.p_of_less(0.5)
    faster = step_between(random.normal(0, 1, 40), random.normal(-2, 1, 40))
    assert faster.p_of_less(-4.0) < 1e-6 < 0.999 < faster.p_of_less(-0.5)
    assert faster.p_of_less(1.0) < 1e-6, "the other way"
