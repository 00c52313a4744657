"""Leaks: a rise over many revisions, named as what it is, with its parts as its course."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.changepoints import Change, HistoryLimits, Level, Seen, changes
from tests.service.domain.changepoints.test_noise import correlated

LIMITS = HistoryLimits(notify=0.01, block=0.02)


def found(logs: np.ndarray) -> list[Change]:
    return changes([Seen(10 * place, float(value)) for place, value in enumerate(np.exp(logs))], LIMITS)


def leaking(before: int, rising: int, after: int, size: float, sigma: float = 0.003, seed: int = 0) -> np.ndarray:
    """Logs that rise by `size` in all, in equal parts."""
    count = before + rising + after
    level = size * np.clip((np.arange(count) - before) / rising, 0, 1)
    return level + np.random.default_rng(seed).normal(0, sigma, count)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("before", "rising", "after"),
    [(40, 60, 0), (0, 80, 0), (60, 40, 30), (100, 60, 200)],  # it goes on, from the beginning, it has ended, long ago
)
def test_a_leak_is_one_change_with_its_size(before, rising, after, seed):
    [leak] = found(leaking(before, rising, after, size=0.08, seed=seed))
    assert leak.is_leak
    assert leak.level is Level.NOTIFY, "a leak is a question and no alarm"
    assert leak.low * 0.99 < np.exp(0.08) < leak.high * 1.01
    assert leak.before < leak.ordinal <= leak.course[-1].ordinal
    assert abs(leak.ordinal / 10 - (before + rising / 2)) <= 12
    assert leak.course[-1].ratio == leak.ratio


def test_the_steps_of_a_leak_are_its_course():
    """Eight commits, each 1.5 % slower."""
    random = np.random.default_rng(4)
    steps = [30, 38, 47, 53, 62, 70, 79, 86]
    logs = sum((0.015 * (np.arange(100) >= at) for at in steps), random.normal(0, 0.006, 100))
    [leak] = found(logs)
    assert leak.ratio == pytest.approx(np.exp(0.12), abs=0.01)
    ratios = [part.ratio for part in leak.course]
    assert len(ratios) >= 3
    assert ratios == sorted(ratios)


@pytest.mark.parametrize(
    "levels",
    [
        [(120, 0.0)],
        [(60, 0.0), (60, 0.05)],  # a step
        [(40, 0.0), (40, 0.05), (40, 0.10)],  # two
        [(30, 0.0), (30, 0.12), (30, 0.24), (30, 0.36)],  # each certain by itself
        [(60, 0.0), (6, 0.05), (54, 0.0)],
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_steps_are_no_leaks(levels, seed):
    logs = np.concatenate([np.full(count, level) for count, level in levels])
    logs += np.random.default_rng(seed).normal(0, 0.006, len(logs))
    assert not any(change.is_leak for change in found(logs))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(0.03, 0.2))
def test_who_becomes_faster_leaks_nothing(seed, size):
    assert not any(change.is_leak for change in found(-leaking(30, 60, 10, size, seed=seed)))


@pytest.mark.parametrize(("r", "allowed"), [(0.0, 0), (0.9, 1), (0.97, 4)])
def test_p_of_a_leak_allows_for_correlated_noise(r, allowed):
    """8,000 revisions of a machine that drifts by 1 %, with nothing that measures the machine."""
    random = np.random.default_rng(8)
    leaks = [change for _ in range(40) for change in found(0.01 * correlated(random, 200, r)) if change.is_leak]
    assert len(leaks) <= allowed
