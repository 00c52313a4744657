"""The noise of a series: its size next to steps, and noise whose neighbours are alike."""

import numpy as np
import pytest

from service.domain.changepoints.step_test import local_noise, median, row_medians, spread


def correlated(random: np.random.Generator, count: int, r: float) -> np.ndarray:
    values = [random.normal()]
    for shock in random.normal(0, np.sqrt(1 - r * r), count - 1):
        values.append(r * values[-1] + shock)
    return np.array(values)


@pytest.mark.parametrize("step", [0.0, 3.0, 200.0])
def test_the_noise_does_not_contain_the_steps(step):
    random = np.random.default_rng(0)
    values = random.normal(0, 1, 400) + step * (np.arange(400) // 20 % 2)
    assert local_noise(values) == pytest.approx(1, abs=0.2)


def test_medians_of_rows_leave_out_what_is_not_known():
    rows = np.array([[np.nan, 1, 3], [5, 1, 2], [np.nan, np.nan, np.nan]])
    assert row_medians(rows).tolist()[:2] == [2, 2]
    assert np.isnan(row_medians(rows)[2])
    assert [median(np.array(one)) for one in ([3.0, 1, 2], [4.0, 1, 2, 3])] == [2, 2.5]


def test_a_spread_is_zero_only_if_all_values_are_equal():
    assert spread(np.array([0.0] * 9 + [1.0])) > 0
    assert spread(np.zeros(5)) == 0
