"""Which changes of many series are one event."""

import math

import pytest

from service.domain.changepoints.matching import Sighting, by_event, is_exact


def places(groups: list[list[Sighting]]) -> list[list[int]]:
    return [[one.last for one in group] for group in groups]


def vague(place: int) -> Sighting:
    return Sighting(place - 1, place)


def exact(place: int, before: int | None = None) -> Sighting:
    return Sighting(place - 1 if before is None else before, place, exact=True)


def leak(before: int, last: int) -> Sighting:
    return Sighting(before, last, leak=True)


@pytest.mark.parametrize(
    ("sightings", "groups"),
    [
        ([], []),
        ([vague(5)], [[5]]),
        ([vague(9), vague(5), vague(6)], [[5, 6], [9]]),
        ([vague(5), vague(7), vague(9), vague(12)], [[5, 7, 9], [12]]),
        ([exact(5), exact(5)], [[5, 5]]),
        ([exact(5), exact(6)], [[5], [6]]),  # two commits
        ([exact(5), exact(6, before=4)], [[5, 6]]),  # one was not measured at 5
        ([exact(5), vague(6), exact(6)], [[5], [6, 6]]),
        ([exact(5), vague(7), vague(9)], [[5, 7], [9]]),
        ([leak(10, 60), leak(15, 70), exact(40)], [[40], [60, 70]]),
        ([leak(10, 30), leak(40, 70)], [[30], [70]]),
    ],
)
def test_what_is_one_event(sightings, groups):
    assert places(by_event(sightings, lambda one: one)) == groups


@pytest.mark.parametrize(
    ("shift", "sigma", "exactly"), [(0.03, 0.005, True), (0.03, 0.01, False), (-0.03, 0.005, True)]
)
def test_a_step_far_above_the_noise_has_one_place(shift, sigma, exactly):
    error = sigma * math.sqrt(1 / 40 + 1 / 40)
    low, high = (math.exp(shift + side * 1.96 * error) for side in (-1, 1))
    assert is_exact(low, high, 80) == exactly
    assert not is_exact(0.0, math.inf, 80)
