"""What a look at many series says: which are worth one, what becomes of their points, where a search begins."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.changepoints import Change, HistoryLimits, Level, Seen
from service.domain.changepoints.matching import (
    KnownPoint,
    PointMove,
    match,
    moves_of_same_machine,
    search_range,
    sure_places,
)
from service.domain.changepoints.scan import limits_of, scan_series, select_series
from service.domain.changepoints.series_table import Histories, limits_at, outlier_mask, sampled_mask, shift_mask
from service.domain.changepoints.trend import leak
from service.domain.policy.policy import Policy

CASE = "rmsnorm.fwd.4096x4096.bf16"
ONE_PERCENT = HistoryLimits(notify=0.01, block=0.02)


def change(place: int, ratio: float = 1.03) -> Change:
    return Change(place, place - 1, ratio, ratio - 0.01, ratio + 0.01, Level.BLOCK, 1e-9)


def table(*rows: np.ndarray, sota: np.ndarray | None = None, stacks: np.ndarray | None = None) -> Histories:
    values = np.vstack(rows)
    reference = np.full(values.shape, np.nan) if sota is None else np.vstack([sota] * len(rows))
    stack = np.ones(values.shape, dtype=np.int64) if stacks is None else np.vstack([stacks] * len(rows))
    runs = np.where(np.isnan(values), 0, np.arange(1, values.shape[1] + 1))
    return Histories(tuple((f"p{row}", CASE) for row in range(len(rows))), 0, values, reference, stack, runs)


def noise(count: int, sigma: float, seed: int = 0) -> np.ndarray:
    return 500.0 * np.exp(np.random.default_rng(seed).normal(0, sigma, count))


def step(count: int, at: int, ratio: float) -> np.ndarray:
    return np.where(np.arange(count) >= at, ratio, 1.0)


# -- points


@pytest.mark.parametrize(
    ("known", "found", "new", "again", "missed"),
    [
        ([], [change(40)], [40], [], []),
        ([KnownPoint(1, 40, 1.03)], [change(42)], [], [1], []),  # it moved by two
        ([KnownPoint(1, 40, 1.03)], [change(43)], [43], [], [1]),  # by three it is another
        ([KnownPoint(1, 40, 1.03)], [change(40, 0.97)], [40], [], [1]),  # the other way
        ([KnownPoint(1, 40, 1.03)], [], [], [], [1]),
        ([KnownPoint(1, 3, 1.03)], [], [], [], []),  # too near to the beginning to be found
        ([KnownPoint(1, 98, 1.03)], [], [], [], []),  # too new to be found by levels
        ([KnownPoint(1, 40, 1.03), KnownPoint(2, 43, 1.03)], [change(42)], [], [2], [1]),  # the nearest one
        ([KnownPoint(1, 40, 1.03)], [change(39), change(42)], [42], [1], []),  # one to one
    ],
)
def test_points_are_matched_one_to_one(known, found, new, again, missed):
    what = match(known, found, sure_places(range(100), 5))
    assert [one.ordinal for one in what.new] == new
    assert [point for point, _ in what.again] == again
    assert list(what.missed) == missed


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0.9, 1.1])), unique_by=lambda one: one[0], max_size=8),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0.9, 1.1])), unique_by=lambda one: one[0], max_size=8),
)
def test_every_change_is_new_or_seen_again_and_every_point_once(stored, seen):
    known = [KnownPoint(number, place, ratio) for number, (place, ratio) in enumerate(stored)]
    found = [change(place, ratio) for place, ratio in seen]
    what = match(known, found, range(61))
    assert len(what.new) + len(what.again) == len(found)
    assert len(what.missed) + len(what.again) == len(known)
    assert len({point for point, _ in what.again}) == len(what.again)


def test_where_a_change_would_have_been_found():
    assert sure_places([2, 3, 5, 7, 8, 9, 12, 20], 3) == range(7, 10)
    assert sure_places([1, 2, 3], 2) == range(0), "too short for two levels"


@pytest.mark.parametrize(
    ("before", "last", "newest", "neighbours", "expected"),
    [
        (39, 40, 60, [], (35, 44)),
        (39, 41, 60, [], (35, 45)),  # the steps of an incident lie between two places
        (39, 40, 43, [], (39, 40)),  # the newest revision and its parent
        (2, 3, 60, [], (0, 7)),
        (39, 40, 60, [38], (38, 44)),  # the level before began there
        (39, 40, 60, [42], (35, 41)),
        (39, 40, 60, [20, 55], (35, 44)),
    ],
)
def test_between_which_revisions_is_searched(before, last, newest, neighbours, expected):
    assert search_range(before, last, newest, neighbours) == expected


HOUR = 3600.0
OURS = PointMove("norms", "gpu-1", 0.0, HOUR, 8, 10)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (PointMove("other", "gpu-1", 0.5 * HOUR, 2 * HOUR, 9, 10), True),
        (PointMove("other", None, 0.5 * HOUR, 2 * HOUR, 9, 10), True),
        (PointMove("norms", "gpu-1", 0.5 * HOUR, 2 * HOUR, 9, 10), False),  # the same code
        (PointMove("other", "gpu-2", 0.5 * HOUR, 2 * HOUR, 9, 10), False),  # another machine
        (PointMove("other", "gpu-1", 0.5 * HOUR, 2 * HOUR, 1, 10), False),  # one case of ten
        (PointMove("other", "gpu-1", 2 * HOUR, 3 * HOUR, 9, 10), False),  # later
        (PointMove("other", "gpu-1", 0.5 * HOUR, 20 * HOUR, 9, 10), False),  # who knows when, in that day
    ],
)
def test_what_moved_with_us_is_the_machine(other, same):
    assert moves_of_same_machine(OURS, [other]) == ([other] if same else [])


# -- which series


def test_a_series_that_moved_is_worth_a_look_and_a_calm_one_is_not():
    calm, moved = noise(30, 0.002), noise(30, 0.002, 1) * step(30, 22, 1.02)
    assert shift_mask(table(calm, moved), {}, np.full(2, 0.01)).tolist() == [False, True]


def test_what_lies_before_a_known_point_or_another_stack_is_not_compared_with():
    moved = noise(30, 0.002) * step(30, 12, 1.05)
    assert shift_mask(table(moved), {}, np.full(1, 0.01))[0]
    assert not shift_mask(table(moved), {("p0", CASE): 12}, np.full(1, 0.01))[0]
    assert not shift_mask(table(moved, stacks=np.where(np.arange(30) >= 12, 2, 1)), {}, np.full(1, 0.01))[0]


def test_a_step_that_a_wavering_machine_hides_shows_beside_sota():
    machine_log = np.random.default_rng(2).normal(0, 0.03, 30)
    sota = noise(30, 0.002) * np.exp(machine_log)
    moved = noise(30, 0.002, 1) * np.exp(machine_log) * step(30, 20, 1.02)
    assert not shift_mask(table(moved), {}, np.full(1, 0.01))[0]
    assert shift_mask(table(moved, sota=sota), {}, np.full(1, 0.01))[0]


@pytest.mark.parametrize(("last", "found"), [(1.0, False), (1.005, False), (1.03, True), (0.97, True)])
def test_the_newest_value_alone(last, found):
    values = noise(30, 0.002)
    values[-1] = 500 * last
    assert outlier_mask(table(values), {}, np.full(1, 0.01)).tolist() == [found]


def test_without_a_value_at_the_newest_place_nothing_is_odd():
    values = noise(30, 0.002)
    values[-2:] = 600, np.nan
    assert not outlier_mask(table(values), {}, np.full(1, 0.01))[0]


@given(st.floats(1e-3, 1e6), st.integers(0, 5))
def test_the_unit_makes_no_difference(scale, seed):
    rows = table(noise(30, 0.003, seed), noise(30, 0.003, seed + 1) * step(30, 20, 1.03))
    scaled = table(*(rows.values * scale))
    notify = np.full(2, 0.01)
    assert shift_mask(rows, {}, notify).tolist() == shift_mask(scaled, {}, notify).tolist()
    assert outlier_mask(rows, {}, notify).tolist() == outlier_mask(scaled, {}, notify).tolist()


def test_each_series_has_its_turn():
    names = [("p", f"case{number}") for number in range(200)]
    turns = np.array([sampled_mask(names, look, 10) for look in range(200)])
    assert turns.any(axis=0).all()
    assert 0.08 < turns.mean() < 0.12
    assert sampled_mask(names, 7, 10).tolist() == sampled_mask(names, 7, 10).tolist()


def test_few_of_many_calm_series_are_looked_at():
    rows = table(*(noise(30, 0.005, seed) for seed in range(500)))
    assert len(select_series(rows, {}, limits_of(rows, Policy()), key=1)) <= 25


@pytest.mark.parametrize(
    ("case", "usual_us", "notify"),
    [(CASE, 500.0, 0.01), (CASE, 50.0, 0.02), (CASE, 1.0, 0.05), (CASE, 0.01, 0.49), (f"{CASE}.call", 20.0, 0.05)],
)
def test_a_point_is_worth_a_look_from_what_matters_at_its_case(case, usual_us, notify):
    limits = limits_at(case, usual_us, Policy())
    assert (limits.notify, limits.block) == (pytest.approx(notify), pytest.approx(2 * notify))


# -- what a close look says


def look(*rows: np.ndarray, known: list[KnownPoint] = (), **rest: object):
    whole = table(*rows, **rest)
    return scan_series(whole, whole, {("p0", CASE): list(known)}, limits_of(whole, Policy()))["p0", CASE]


def test_sota_that_moved_alone_is_told_apart():
    machine_log = 0.03 * np.sin(np.arange(120) / 3)
    own, sota = noise(120, 0.002) * np.exp(machine_log), noise(120, 0.002, 1) * np.exp(machine_log)
    moved = look(own, sota=sota * step(120, 60, 0.92))
    assert [one.ordinal for one in moved.matched.new] == list(moved.baseline) == [60]
    assert moved.baseline[60] == pytest.approx(0.92, abs=0.02)
    ours = look(own * step(120, 60, 1.06), sota=sota)
    assert [one.ordinal for one in ours.matched.new] == [60]
    assert ours.baseline == {}


def seen(values: np.ndarray, stack: int = 1) -> list[Seen]:
    return [Seen(place, float(value), stack=stack) for place, value in enumerate(values)]


@pytest.mark.parametrize("a_commit", [0.001, 0.003, 0.01])
@pytest.mark.parametrize("flat", [0, 30])
def test_a_leak_is_found_with_its_size(a_commit, flat):
    level = np.exp(math.log1p(a_commit) * np.maximum(0, np.arange(flat + 80) - flat))
    found = leak(seen(noise(flat + 80, 0.002) * level), ONE_PERCENT)
    assert found is not None
    assert found.low < (1 + a_commit) ** (64 - 64 / 8) < found.high * 1.01
    assert found.before < found.ordinal


@pytest.mark.parametrize(
    "values",
    [
        noise(80, 0.002),
        noise(80, 0.02),
        noise(80, 0.002) * step(80, 50, 1.05),  # a step is none
        noise(80, 0.002) * np.exp(-0.003 * np.arange(80)),  # who becomes faster leaks nothing
        noise(80, 0.0002) * np.exp(0.0001 * np.arange(80)),  # less than matters
        noise(30, 0.002) * np.exp(0.003 * np.arange(30)),  # too short to tell
    ],
)
def test_what_is_no_leak(values):
    assert leak(seen(values), ONE_PERCENT) is None


def test_a_leak_is_the_point_that_is_known_in_it():
    rising = seen(noise(80, 0.002) * np.exp(0.003 * np.arange(80)))
    assert leak(rising, ONE_PERCENT, known=[45]).ordinal == 45
    assert leak(rising, ONE_PERCENT, known=[3]).ordinal == leak(rising, ONE_PERCENT).ordinal


def test_a_thousand_noisy_series_leak_nothing():
    found = [leak(seen(noise(64, 0.01, seed)), ONE_PERCENT) for seed in range(300)]
    assert found.count(None) == len(found)
