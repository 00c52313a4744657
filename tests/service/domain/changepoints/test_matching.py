"""What a look at many series says: which are worth one, what becomes of their points, where a search begins."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.changepoints import Change, HistoryLimits, Level, Part, Seen
from service.domain.changepoints.detector import Epoch, epochs_of
from service.domain.changepoints.matching import (
    KnownPoint,
    PointMove,
    match,
    moves_of_same_machine,
    refutation,
    search_range,
)
from service.domain.changepoints.scan import limits_of, scan_series, select_series
from service.domain.changepoints.series_table import Histories, limits_at, shift_mask
from service.domain.policy.policy import Policy
from service.domain.states import PointState

CASE = "rmsnorm.fwd.4096x4096.bf16"
ONE_PERCENT = HistoryLimits(notify=0.01, block=0.02)


def change(place: int, ratio: float = 1.03) -> Change:
    return Change(place, place - 1, ratio, ratio - 0.01, ratio + 0.01, Level.BLOCK, 1e-9, 60)


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


def seen(values: np.ndarray, stack: int = 1) -> list[Seen]:
    return [Seen(place, float(value), stack=stack) for place, value in enumerate(values)]


# -- points


def epochs(*levels: tuple[int, float], sigma: float = 0.003, seed: int = 0) -> list[Epoch]:
    """Values of so many revisions at each level."""
    values = np.concatenate([np.full(count, level) for count, level in levels])
    return epochs_of(seen(values * noise(len(values), sigma, seed)), ONE_PERCENT)


# Made by the tests that want them, as collecting tests should take no second.
made = partial(partial, epochs)
flat = made((100, 1.0))


@pytest.mark.parametrize(
    ("known", "found", "new", "again"),
    [
        ([], [change(40)], [40], []),
        ([KnownPoint(1, 40, 1.03)], [change(44)], [], [1]),  # no other level fits between the two
        ([KnownPoint(1, 40, 1.03)], [change(45)], [45], []),
        ([KnownPoint(1, 40, 1.03)], [change(40, 0.97)], [40], []),  # the other way
        ([KnownPoint(1, 40, 1.03)], [], [], []),
        ([KnownPoint(1, 40, 1.03), KnownPoint(2, 43, 1.03)], [change(42)], [], [2]),  # the nearest one
        ([KnownPoint(1, 40, 1.03)], [change(39), change(42)], [42], [1]),  # one to one
    ],
)
def test_steps_are_matched_one_to_one(known, found, new, again):
    what = match(known, found, flat())
    assert [one.ordinal for one in what.new] == new
    assert [point for point, _ in what.again] == again


@pytest.mark.parametrize(
    ("values", "place", "ratio", "refuted"),
    [
        (flat, 40, 1.03, True),
        (flat, 3, 1.03, False),  # too near to the beginning to say anything
        (flat, 98, 1.03, False),  # too new
        (flat, 400, 1.03, False),  # not among these revisions
        (made((40, 1.0), (60, 1.03)), 40, 1.03, False),
        (made((42, 1.0), (58, 1.03)), 40, 1.03, False),  # its place was uncertain
        (made((40, 1.0), (60, 1.02)), 40, 1.03, False),  # smaller, but more than half
        (made((40, 1.0), (60, 1.008)), 40, 1.03, True),
        (made((40, 1.0), (60, 0.98)), 40, 1.03, True),  # the other way
        (made((40, 1.0), (60, 1.03)), 40, 0.97, True),
        (made((100, 1.0), sigma=0.1), 40, 1.03, False),  # noise contradicts nothing
        (made((40, 1.0), (12, 1.03), (48, 1.0)), 40, 1.03, False),  # it was reverted, which is another step
    ],
)
def test_a_point_is_refuted_only_by_values_without_half_of_it(values, place, ratio, refuted):
    what = match([KnownPoint(1, place, ratio)], [], values())
    assert [point for point, _ in what.refuted] == ([1] if refuted else [])
    for _, evidence in what.refuted:
        assert evidence.low <= evidence.ratio <= evidence.high
        assert evidence.p <= 0.01


@pytest.mark.parametrize(
    ("point", "kept"),
    [
        (KnownPoint(1, 40, 1.03, refuted=2), True),  # the noise of 10 % contradicts nothing
        (KnownPoint(1, 40, 1.03), False),  # there is no count to begin again
        (KnownPoint(1, 98, 1.03, refuted=2), False),  # too new to be contradicted
    ],
)
def test_a_scan_that_could_contradict_a_point_and_does_not_keeps_it(point, kept):
    assert match([point], [], epochs((100, 1.0), sigma=0.1)).kept == ((1,) if kept else ())


@pytest.mark.parametrize(
    ("values", "point", "lost"),
    [
        (made((60, 1.0), (60, 0.9)), KnownPoint(1, 58, 1.03), True),  # the level only falls, two revisions later
        (made((60, 1.0), (30, 0.9)), KnownPoint(1, 58, 1.03), False),  # too few revisions after it
        (made((60, 1.0), (60, 0.9)), KnownPoint(1, 58, 1.03, until=80), False),  # a leak, which levels can hide
        (made((120, 1.0)), KnownPoint(1, 58, 1.03), False),  # the values there contradict it
        (made((60, 1.0), (60, 0.9)), KnownPoint(1, 60, 0.9), False),
    ],
)
def test_a_point_next_to_another_change_is_lost_when_many_revisions_do_not_show_it(values, point, lost):
    found = [change for epoch in values() for change in epoch.changes(ONE_PERCENT)]
    assert match([point], found, values()).lost == ((1,) if lost else ())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 0.05), st.integers(10, 60))
def test_a_true_step_is_hardly_ever_refuted(seed, size, after):
    """1 in 100 of them at most, if the step is half as large as reported; here it is as large as reported."""
    values = epochs((60, 1.0), (after, 1 + size), sigma=0.01, seed=seed)
    assert refutation(KnownPoint(1, 60, 1 + size), values) is None


LEAK = Change(50, 30, 1.1, 1.08, 1.12, Level.NOTIFY, 1e-9, 80, (Part(45, 1.05), Part(70, 1.1)))


@pytest.mark.parametrize(
    ("known", "again", "parts", "new"),
    [
        ([], [], [], 1),
        ([KnownPoint(7, 45, 1.04)], [7], [], 0),  # the step that was found first becomes the leak
        ([KnownPoint(7, 45, 1.04), KnownPoint(9, 60, 1.04)], [7], [(9, 7)], 0),
        ([KnownPoint(7, 45, 0.97)], [], [], 1),  # faster
        ([KnownPoint(7, 20, 1.04)], [], [], 1),  # before it
        ([KnownPoint(7, 45, 1.04, state=PointState.CLOSED)], [], [], 1),  # a decision about a step is none about a leak
        ([KnownPoint(7, 45, 1.04, state=PointState.CONFIRMED)], [], [], 1),
        ([KnownPoint(7, 45, 1.04, state=PointState.CONFIRMED), KnownPoint(9, 60, 1.04)], [9], [], 0),
        ([KnownPoint(7, 45, 1.04), KnownPoint(9, 60, 1.04, state=PointState.CHECKING)], [7], [], 0),
        ([KnownPoint(7, 40, 1.04, state=PointState.CLOSED, until=50)], [7], [], 0),  # a closed leak is not found anew
        ([KnownPoint(7, 40, 1.04, state=PointState.CONFIRMED, until=50)], [7], [], 0),
        ([KnownPoint(7, 40, 1.04, state=PointState.CLOSED, until=50), KnownPoint(9, 60, 1.04)], [7], [(9, 7)], 0),
        ([KnownPoint(5, 60, 1.04), KnownPoint(7, 40, 1.04, state=PointState.CONFIRMED, until=50)], [7], [(5, 7)], 0),
        ([KnownPoint(7, 35, 1.04, state=PointState.CLOSED, until=40), KnownPoint(9, 60, 1.04, until=65)], [9], [], 0),
        ([KnownPoint(7, 10, 1.04, state=PointState.CLOSED, until=20)], [], [], 1),  # another leak, long before
    ],
)
def test_changes_within_a_slow_leak_are_its_parts(known, again, parts, new):
    rising = epochs_of(seen(noise(100, 0.003) * np.exp(0.1 * np.clip((np.arange(100) - 30) / 40, 0, 1))), ONE_PERCENT)
    what = match(known, [LEAK], rising)
    assert [point for point, _ in what.again] == again
    assert list(what.parts) == parts
    assert len(what.new) == new


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0.9, 1.1])), unique_by=lambda one: one[0], max_size=8),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0.9, 1.1])), unique_by=lambda one: one[0], max_size=8),
)
def test_every_change_is_new_or_seen_again_and_every_point_at_most_once(stored, found):
    known = [KnownPoint(number, place, ratio) for number, (place, ratio) in enumerate(stored)]
    what = match(known, [change(place, ratio) for place, ratio in found], flat())
    assert len(what.new) + len(what.again) == len(found)
    points = [point for point, _ in (*what.again, *what.refuted)]
    assert len(set(points)) == len(points)


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


@given(st.floats(1e-3, 1e6), st.integers(0, 5))
def test_the_unit_makes_no_difference(scale, seed):
    rows = table(noise(30, 0.003, seed), noise(30, 0.003, seed + 1) * step(30, 20, 1.03))
    scaled = table(*(rows.values * scale))
    notify = np.full(2, 0.01)
    assert shift_mask(rows, {}, notify).tolist() == shift_mask(scaled, {}, notify).tolist()


def test_a_series_with_an_open_point_is_looked_at_until_it_is_settled():
    rows = table(*(noise(30, 0.005, seed) for seed in range(2)))
    settled = KnownPoint(2, 20, 1.05, state=PointState.CONFIRMED)
    points = {rows.names[0]: [KnownPoint(1, 20, 1.05)], rows.names[1]: [settled]}
    assert select_series(rows, points, limits_of(rows, Policy())) == [rows.names[0]]


def test_few_of_many_calm_series_are_looked_at():
    rows = table(*(noise(30, 0.005, seed) for seed in range(500)))
    assert len(select_series(rows, {}, limits_of(rows, Policy()))) <= 25


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
