"""Fewer trials, every pair of values."""

from itertools import combinations, product

from tests.pairwise import pairwise


def pairs(trials):
    return {pair for trial in trials for pair in combinations(enumerate(trial), 2)}


def test_every_pair_of_values_that_is_possible_is_in_a_trial():
    everything = [one for one in product("ab", range(6), "xyz", (False, True)) if one[:2] != ("a", 3)]
    chosen = pairwise(everything)
    assert pairs(chosen) == pairs(everything)
    assert len(chosen) == len(set(chosen)) < 24 < len(everything)


def test_the_same_trials_are_chosen_each_time_and_none_of_none():
    assert pairwise(product("ab", "cd", "ef")) == pairwise(product("ab", "cd", "ef"))
    assert pairwise([]) == []
