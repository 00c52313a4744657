"""A series as its revisions arrive: what is told, what stays, and what a calm one costs."""

import math

import numpy as np
import pytest

from service.history import Change, Level, Marked, Seen, changes, changes_since, incidents


def noisy(*levels: tuple[int, float], sigma: float = 0.005, seed: int = 1, stack: int = 1) -> list[Seen]:
    steps = np.concatenate([np.full(count, math.log(level)) for count, level in levels])
    values = np.exp(steps + np.random.default_rng(seed).normal(0, sigma, len(steps)))
    return [Seen(place, float(value), stack=stack) for place, value in enumerate(values)]


def told(revisions: list[Seen]) -> list[list[Change]]:
    """What is known after each revision."""
    known: list[list[Change]] = [[]]
    for count in range(1, len(revisions) + 1):
        known.append(changes_since(revisions[:count], known[-1]))
    return known[1:]


def test_a_step_is_told_within_a_few_revisions_and_stays():
    known = told(noisy((100, 100), (200, 103)))
    first = next(place for place, found in enumerate(known) if found)
    assert 100 < first <= 106
    assert all(abs(found[0].ordinal - 100) <= 1 for found in known[first:])
    assert known[-1] == known[-100]


def test_it_ends_where_a_search_of_everything_ends():
    revisions = noisy((80, 100), (80, 104), (80, 101), (80, 110))
    assert [change.ordinal for change in told(revisions)[-1]] == [change.ordinal for change in changes(revisions)]


@pytest.mark.parametrize("seed", range(5))
def test_a_calm_series_is_left_alone(seed):
    assert told(noisy((300, 100), seed=seed))[-1] == []


def test_a_settled_change_stays_whatever_comes():
    revisions = noisy((60, 100), (70, 110))
    [settled] = changes(revisions)
    wild = np.random.default_rng(1).lognormal(4.6, 0.5, 100)

    later = [*revisions, *(Seen(130 + place, float(value), stack=1) for place, value in enumerate(wild))]

    assert settled in changes_since(later, [settled])


def test_a_burst_never_blocks_and_is_withdrawn_when_it_is_over():
    known = told(noisy((60, 100), (4, 110), (60, 100), seed=2))
    assert any(known)
    assert all(change.level is Level.NOTIFY for found in known for change in found)
    assert known[-1] == []


def test_a_step_blocks_once_ten_revisions_have_it():
    known = told(noisy((100, 100), (20, 110)))
    levels = [found[0].level for found in known if found]
    assert levels.count(Level.BLOCK) == 11
    assert levels == sorted(levels, reverse=True)  # notify first, and block from then on


def test_changes_of_earlier_stacks_are_settled():
    old = noisy((60, 100), (20, 110))
    known = changes(old)
    new = [Seen(80 + one.ordinal, one.value * 2, stack=2) for one in noisy((100, 100), seed=2)]
    for count in range(1, len(new) + 1):
        assert changes_since([*old, *new[:count]], known) == known


def test_nothing_seen_is_nothing_new():
    assert changes_since([], []) == []


def test_revisions_out_of_order_are_refused():
    revisions = noisy((50, 100))
    with pytest.raises(ValueError, match="Revision 3 comes after 49: give each revision once, oldest first"):
        changes_since([*revisions, Seen(3, 100.0)], [])


def marked(case: str, ordinal: int, provider: str = "quack") -> Marked:
    return Marked(provider, case, Change(ordinal, ordinal - 1, 1.05, 1.04, 1.06, Level.BLOCK, 1e-9))


@pytest.mark.parametrize(
    ("ordinals", "groups"),
    [
        ([], []),
        ([5], [[5]]),
        ([9, 5, 6], [[5, 6], [9]]),
        ([5, 7, 9, 12], [[5, 7, 9], [12]]),
        ([5, 5, 5], [[5, 5, 5]]),
    ],
)
def test_changes_of_many_cases_at_one_time_are_one_incident(ordinals, groups):
    found = incidents([marked(f"case{place}", ordinal) for place, ordinal in enumerate(ordinals)])
    assert [[one.change.ordinal for one in incident] for incident in found] == groups


def test_incidents_do_not_depend_on_the_order_in_which_cases_are_looked_at():
    every = [marked("a", 5), marked("b", 6), marked("a", 20), marked("b", 5, provider="triton")]
    assert incidents(every) == incidents(every[::-1])
    assert len(incidents(every)) == 2
    assert len(incidents(every, within=0)) == 3


def test_a_negative_distance_is_refused():
    with pytest.raises(ValueError, match="0 or more, not -1"):
        incidents([], within=-1)
