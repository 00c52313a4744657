"""Fewer trials than a full product, with every pair of values in at least one of them."""

from collections.abc import Hashable, Iterable
from itertools import combinations
from typing import TypeVar

Values = TypeVar("Values", bound=tuple[Hashable, ...])


def pairwise(candidates: Iterable[Values]) -> list[Values]:
    """Choose candidates until each pair of values that any of them has, at two positions, is in a chosen one.

    Greedy and without chance: the candidate with the most new pairs is next, the first of several.
    """
    pairs = {one: set(combinations(enumerate(one), 2)) for one in candidates}
    missing, chosen = set[object]().union(*pairs.values()), []
    while missing:
        best = max(pairs, key=lambda one: len(pairs[one] & missing))
        missing -= pairs.pop(best)
        chosen.append(best)
    return chosen
