"""The changes of a series: what is found, what is left alone, and what must not matter."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.changepoints import Change, HistoryLimits, Level, Seen, changes
from service.domain.changepoints.step_test import step_between
from tests.service.domain.changepoints.test_noise import correlated


def seen(values: Sequence[float], stack: int | None = None, first: int = 0) -> list[Seen]:
    return [Seen(first + place, float(value), stack=stack) for place, value in enumerate(values)]


def noisy(*levels: tuple[int, float], sigma: float = 0.005, seed: int = 1) -> list[float]:
    """Values of so many revisions at each level, with log-normal noise."""
    steps = np.concatenate([np.full(count, math.log(level)) for count, level in levels])
    return np.exp(steps + np.random.default_rng(seed).normal(0, sigma, len(steps))).tolist()


def summary(found: Sequence[Change]) -> list[tuple[int, str]]:
    return [(change.ordinal, change.level.value) for change in found]


@pytest.mark.parametrize(
    ("levels", "sigma", "expected"),
    [
        ([(60, 100), (60, 105)], 0.005, [(60, "block")]),  # slower
        ([(60, 100), (60, 95)], 0.005, [(60, "block")]),  # faster
        ([(60, 100), (60, 101)], 0.002, [(60, "notify")]),  # certain, but small
        ([(60, 100), (60, 100.3)], 0.0005, []),  # certain, and nobody's concern
        ([(60, 100), (60, 102)], 0.05, []),  # lost in the noise
        ([(60, 100), (60, 105), (60, 110)], 0.005, [(60, "block"), (120, "block")]),
        ([(60, 100), (30, 105), (60, 100)], 0.005, [(60, "notify"), (90, "notify")]),  # a commit and its revert
        ([(60, 100), (30, 105), (60, 110)], 0.005, [(60, "block"), (90, "block")]),
        ([(60, 100), (3, 120), (60, 100)], 0.005, []),  # three bad days
        ([(120, 100)], 0.005, []),
        ([(9, 100)], 0.005, []),
    ],
)
def test_what_is_found(levels, sigma, expected):
    found = summary(changes(seen(noisy(*levels, sigma=sigma))))
    assert [level for _, level in found] == [level for _, level in expected]
    assert all(abs(place - true) <= 1 for (place, _), (true, _) in zip(found, expected, strict=True))


def test_a_change_says_between_which_revisions_how_much_and_how_sure():
    revisions = [Seen(10 * place, value) for place, value in enumerate(noisy((60, 100), (60, 105)))]

    [change] = changes(revisions)

    assert (change.before, change.ordinal) == (590, 600)
    assert change.low < 1.05 < change.high
    assert change.ratio == pytest.approx(1.05, abs=0.003)
    assert change.p < 1e-10


def test_the_example_of_the_documentation():
    """docs/measurements/2026-11-24-cpu-history-rules/rules.md, An example."""
    before = [100.2, 99.9, 100.1, 99.8, 100.0, 100.3, 99.7, 100.1, 99.9, 100.0]
    after = [103.1, 102.8, 103.0, 103.3, 102.7, 103.1]
    step = step_between(np.log(before), np.log(after))
    assert (step.error, step.freedom) == (pytest.approx(0.00116, abs=5e-6), pytest.approx(9.3, abs=0.05))
    assert (step.p, step.searched_p) == (pytest.approx(2.4e-9, rel=0.1), pytest.approx(8e-9, rel=0.1))
    [change] = changes(seen([*before, *after]), HistoryLimits(notify=0.01, block=0.02))
    assert (change.ordinal, change.revisions, change.level) == (10, 16, Level.BLOCK)
    rounded = [round(ratio, 3) for ratio in (change.low, change.ratio, change.high)]
    assert rounded == [1.027, 1.03, 1.033]


@pytest.mark.parametrize("place", [60, 200, 300, 301, 1499, 1940])
def test_a_step_is_found_anywhere_in_a_long_series(place):
    [change] = changes(seen(noisy((place, 100), (2000 - place, 103))))
    assert abs(change.ordinal - place) <= 1


def test_bytes_do_not_vary_and_their_steps_are_found():
    [change] = changes(seen([4096.0] * 30 + [5120.0] * 30))
    assert (change.ordinal, change.ratio, change.level) == (30, pytest.approx(1.25), Level.BLOCK)


def test_a_mode_that_comes_back_is_no_change():
    flips = noisy(*[(20, level) for level in (100, 110, 100, 110, 100, 110, 100, 110)])
    assert changes(seen(flips)) == []


def test_a_step_beside_a_flipping_stretch_is_still_found():
    flips = [(15, level) for level in (100, 110, 100, 110, 100, 110, 100)]
    assert [place for place, _ in summary(changes(seen(noisy(*flips, (80, 100), (80, 130)))))] == [185]


def test_a_new_stack_is_no_change_and_no_bridge():
    old, new = noisy((50, 100)), noisy((50, 110), seed=2)
    revisions = [*seen(old, stack=1), *seen(new, stack=2, first=50)]
    assert changes(revisions) == []
    assert len(changes(seen(old + new))) == 1


DAY_S = 86_400.0


def dated(days: Sequence[float], references: Sequence[float | None], size: float = 1.05) -> list[Seen]:
    """A step of `size` after 40 revisions."""
    values = noisy((40, 100), (len(days) - 40, 100 * size))
    told = zip(values, references, days, strict=True)
    return [Seen(n, value, reference, at=day * DAY_S) for n, (value, reference, day) in enumerate(told)]


DAILY = [*range(40), *range(60, 100)]  # three weeks pass between the fortieth and the next


@pytest.mark.parametrize(
    ("days", "references", "found"),
    [
        (DAILY, [None] * 80, 0),
        (DAILY, [50.0] * 80, 1),  # SOTA shows that the machine did not move
        (DAILY, [50.0] * 40 + [None] * 40, 0),
        (range(80), [None] * 80, 1),
        ([*range(40), *range(50, 90)], [None] * 80, 1),  # ten days
        ([7 * day for day in range(40)] + [7 * day for day in range(43, 83)], [None] * 80, 1),  # once a week
    ],
)
def test_a_step_after_a_pause_may_be_drift_unless_sota_was_measured(days, references, found):
    assert len(changes(dated(days, references))) == found


def test_irregular_dates_with_drift_have_few_changes():
    """12,000 revisions, five a day, of a machine that forgets in a month; three weeks pass after one in 40."""
    random, false = np.random.default_rng(5), 0
    for _ in range(30):
        gaps = np.where(random.random(400) < 1 / 40, 21.0, 0.2)
        drift = [random.normal()]
        for memory in np.exp(-gaps[1:] / 30):
            drift.append(memory * drift[-1] + math.sqrt(1 - memory**2) * random.normal())
        values = np.exp(0.01 * np.array(drift) + random.normal(0, 0.002, 400))
        pairs = zip(values.tolist(), np.cumsum(gaps).tolist(), strict=True)
        false += len(changes([Seen(place, value, at=day * DAY_S) for place, (value, day) in enumerate(pairs)]))
    assert false <= 60


def test_each_epoch_answers_as_if_it_were_alone():
    old, new = noisy((40, 100), (40, 105)), noisy((40, 120), (40, 110), seed=2)
    alone = [*changes(seen(old, stack=1)), *changes(seen(new, stack=2, first=80))]
    assert changes([*seen(old, stack=1), *seen(new, stack=2, first=80)]) == alone
    assert len(alone) == 2


def test_white_noise_has_hardly_any_changes():
    """20,000 revisions of 100 steady series."""
    found = [change for seed in range(100) for change in changes(seen(noisy((200, 100), sigma=0.01, seed=seed)))]
    assert len(found) <= 2
    assert all(change.level is Level.NOTIFY for change in found)


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_values_in_two_modes_have_hardly_any_changes(share):
    """40,000 revisions, each of which is by chance in one mode or in the other."""
    random = np.random.default_rng(6)
    logs = 0.03 * (random.random((100, 400)) < share) + random.normal(0, 0.0025, (100, 400))
    found = [change for row in logs for change in changes(seen(np.exp(row)))]
    assert len(found) <= 40
    assert sum(change.level is Level.BLOCK for change in found) <= 8


@pytest.mark.parametrize("memory", [0.6, 0.9, 0.97])
def test_autocorrelated_noise_has_hardly_any_changes(memory):
    """16,000 revisions of a machine that drifts, without SOTA."""
    random = np.random.default_rng(4)
    found = [change for _ in range(40) for change in changes(seen(np.exp(0.01 * correlated(random, 400, memory))))]
    assert len(found) <= 8
    assert [change for change in found if change.level is Level.BLOCK] == []


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"notify": 0.5}, "0 <= notify <= block < 1"),
        ({"fdr": 1e-7}, "must satisfy 0 < block_alpha <= fdr < 1"),
        ({"block_alpha": 0}, "must satisfy 0 < block_alpha <= fdr < 1"),
    ],
)
def test_impossible_limits_say_so(limits, told):
    with pytest.raises(ValueError, match=told):
        HistoryLimits(**limits)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_value_without_a_logarithm_is_refused(value):
    with pytest.raises(ValueError, match=r"Revision 7 has the value .* leave out"):
        Seen(7, value)


def test_revisions_out_of_order_are_refused():
    with pytest.raises(ValueError, match="Revision 3 comes after 3"):
        changes([Seen(3, 1.0), Seen(3, 1.0)])


series = st.builds(
    noisy,
    st.tuples(st.integers(10, 40), st.floats(50, 200)),
    st.tuples(st.integers(10, 40), st.floats(50, 200)),
    st.tuples(st.integers(10, 40), st.floats(50, 200)),
    sigma=st.floats(0.001, 0.02),
    seed=st.integers(0, 1000),
)


@settings(max_examples=60)
@given(series, st.integers(-20, 20))
def test_the_unit_does_not_matter(values, exponent):
    other = changes(seen([value * 2.0**exponent for value in values]))
    assert summary(other) == summary(changes(seen(values)))


@settings(max_examples=60)
@given(series, st.floats(0.2, 3))
def test_the_scale_does_not_matter(values, scale):
    """Steps and noise that are both so many times as large, in logs, are the same question."""
    logs = np.log(values)
    scaled = np.exp(logs[0] + scale * (logs - logs[0]))
    limits = HistoryLimits(notify=0.0, block=0.0)
    assert summary(changes(seen(scaled), limits)) == summary(changes(seen(values), limits))


@settings(max_examples=40)
@given(st.integers(0, 1000), st.floats(0.03, 0.1))
def test_the_order_within_a_level_does_not_matter(seed, size):
    random = np.random.default_rng(seed)
    first, second = noisy((50, 100), seed=seed), noisy((50, 100 * math.exp(size)), seed=seed + 1)
    there = summary(changes(seen(first + second)))
    shuffled = summary(changes(seen([*random.permutation(first), *random.permutation(second)])))
    for found in (there, shuffled):
        assert any(abs(place - 50) <= 1 and level == "block" for place, level in found)


@settings(max_examples=40)
@given(st.integers(0, 1000), st.floats(0.03, 0.1), st.sampled_from([-1, 1]), st.integers(12, 60))
def test_a_step_near_a_larger_one_is_still_found(seed, small, direction, apart):
    """The larger one is twenty times as large."""
    first = 60 + apart
    levels = [
        (60, 100),
        (apart, 100 * math.exp(direction * 20 * small)),
        (40, 100 * math.exp((direction * 20 + 1) * small)),
    ]
    found = [place for place, _ in summary(changes(seen(noisy(*levels, sigma=small / 6, seed=seed))))]
    assert any(abs(place - 60) <= 1 for place in found)
    assert any(abs(place - first) <= 2 for place in found)


@settings(max_examples=40)
@given(st.integers(0, 1000), st.floats(0.03, 0.1), st.integers(10, 25), st.integers(10, 25))
def test_a_commit_that_is_reverted_twice_is_not_erased(seed, size, landed, reverted):
    """Slower, fixed, slower again and fixed again is what people do; three times is what machines do."""
    slow = 100 * math.exp(size)
    levels = [(40, 100), (landed, slow), (reverted, 100), (landed, slow), (40, 100)]
    places = np.cumsum([count for count, _ in levels])[:-1]
    found = [place for place, _ in summary(changes(seen(noisy(*levels, sigma=size / 6, seed=seed))))]
    assert all(any(abs(place - other) <= 2 for other in found) for place in places)


@pytest.mark.parametrize("seed", range(5))
def test_weak_neighbours_do_not_spoil_a_certain_step(seed):
    """A short dip before it, of the size of the noise, makes the level before it uneven when it is merged."""
    levels = [(60, 100), (6, 99), (5, 101), (6, 99), (60, 104)]
    found = [place for place, _ in summary(changes(seen(noisy(*levels, sigma=0.008, seed=seed))))]
    assert any(abs(place - 77) <= 2 for place in found)


@settings(max_examples=60)
@given(series)
def test_time_could_run_backwards(values):
    """A clear step stays where it is, and its ratio turns over."""
    forwards, backwards = changes(seen(values)), changes(seen(values[::-1]))
    clear = {change.ordinal: change.ratio for change in forwards if change.p < 1e-12}
    mirrored = {len(values) - change.ordinal: 1 / change.ratio for change in backwards}
    assert all(
        any(abs(place - other) <= 2 and ratio == pytest.approx(turned, rel=0.02) for other, turned in mirrored.items())
        for place, ratio in clear.items()
    )


@settings(max_examples=60)
@given(series, st.integers(5, 20), st.floats(0, 0.1), st.floats(0, 0.1))
def test_a_larger_step_is_never_less_certain(values, place, shift, more):
    logs = np.log(values)
    before, after = logs[:place] - np.mean(logs[:place]), logs[place:] - np.mean(logs[place:])
    none = abs(step_between(before, after).shift)  # what the winsorised means are apart by themselves
    smaller, larger = (step_between(before, after + none + by) for by in (shift, shift + more))
    assert larger.p <= smaller.p * (1 + 1e-6)
    assert larger.shift >= smaller.shift
    assert step_between(-before, -after).p == pytest.approx(step_between(before, after).p)


@settings(max_examples=40)
@given(st.integers(0, 1000), st.floats(0.02, 0.1), st.floats(1.2, 3))
def test_a_larger_step_is_never_told_with_less_weight(seed, effect, more):
    small = noisy((50, 1), (50, math.exp(effect)), seed=seed)
    large = [value * (1 if place < 50 else math.exp(effect * (more - 1))) for place, value in enumerate(small)]
    weight = {level: place for place, level in enumerate(Level)}

    def told(values: list[float]) -> int:
        return max(
            (weight[change.level] for change in changes(seen(values)) if abs(change.ordinal - 50) <= 3), default=-1
        )

    assert told(large) >= told(small)


@settings(max_examples=40)
@given(st.floats(1e-6, 1e12), st.integers(1, 300))
def test_what_never_varies_never_changes(value, count):
    revisions = seen([value] * count)
    assert changes(revisions) == []


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([1.0, 1.0 + 1e-15, 2.0, 1e-300, 1e300]) | st.floats(1e-300, 1e300), max_size=60),
    st.lists(st.none() | st.floats(1e-3, 1e3), min_size=60, max_size=60),
)
def test_whatever_was_measured_the_answer_is_in_order(values, references):
    revisions = [Seen(place, *pair) for place, pair in enumerate(zip(values, references, strict=False))]
    found = changes(revisions, HistoryLimits(notify=0.0))
    assert [change.ordinal for change in found] == sorted({change.ordinal for change in found})
    assert all(change.low <= change.ratio <= change.high < math.inf and 0 <= change.p <= 1 for change in found)
