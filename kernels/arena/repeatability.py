"""Estimate from counts of calls whether a kernel gives the same bits for the same inputs.  Pure.

A kernel whose outputs differ rarely may agree in any number of calls.  FULL_REPEATS calls miss a kernel of which one
call in ten differs with a probability of 1 %.  If fewer calls agree, nothing is known.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

DIFFERING_RATE = 0.1  # of calls
MISS_PROBABILITY = 0.01
FULL_REPEATS = 1 + math.ceil(math.log(MISS_PROBABILITY) / math.log(1 - DIFFERING_RATE))  # 45
MIN_REPEATS = 5


@dataclass(frozen=True)
class Repeats:
    """`calls` on the same inputs gave `distinct` different outputs."""

    calls: int
    distinct: int

    @property
    def repeatable(self) -> bool | None:
        """None if there are too few calls to know."""
        if self.distinct > 1:
            return False
        return True if self.calls >= FULL_REPEATS else None

    @property
    def facts(self) -> dict[str, Any]:
        return {"repeats": self.calls, "distinct": self.distinct, "repeatable": self.repeatable}


def of_facts(facts: Mapping[str, Any]) -> Repeats | None:
    """The estimate in a contender's facts; None if there is none, or an invalid one."""
    calls = _count(facts.get("repeats"))
    distinct = _count(facts.get("distinct"))
    return Repeats(calls, distinct) if 0 < distinct <= calls else None


def combine(estimates: Iterable[Repeats]) -> Repeats | None:
    """One estimate from those of several processes with the same code; each compares with its own first call."""
    known = list(estimates)
    if not known:
        return None
    return Repeats(sum(one.calls for one in known) - len(known) + 1, max(one.distinct for one in known))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31 else 0
