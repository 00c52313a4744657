"""How surely does a kernel give the same bits for the same inputs?  Pure: counts of calls in, an estimate out.

Whether a kernel repeats can only be estimated: one whose outputs differ now and then may agree in any number of calls.
`ENOUGH` calls miss a kernel of which one call in ten differs with a chance of 1 %.  Fewer that agree prove nothing.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

RATE, MISSED = 0.1, 0.01
ENOUGH = 1 + math.ceil(math.log(MISSED) / math.log(1 - RATE))  # 45
FEWEST = 5


@dataclass(frozen=True)
class Repeats:
    """`calls` on the same inputs gave `distinct` different outputs."""

    calls: int
    distinct: int

    @property
    def repeatable(self) -> bool | None:
        """None where the calls are too few to know."""
        if self.distinct > 1:
            return False
        return True if self.calls >= ENOUGH else None

    @property
    def facts(self) -> dict[str, Any]:
        return {"repeats": self.calls, "distinct": self.distinct, "repeatable": self.repeatable}


def of_facts(facts: Mapping[str, Any]) -> Repeats | None:
    """The estimate that a contender's facts hold; None where there is none, or what a stranger wrote is none."""
    calls, distinct = _count(facts.get("repeats")), _count(facts.get("distinct"))
    return Repeats(calls, distinct) if 0 < distinct <= calls else None


def together(estimates: Iterable[Repeats]) -> Repeats | None:
    """The estimate of all: of the same code, called in several processes, of which each compares with its own first."""
    known = list(estimates)
    if not known:
        return None
    return Repeats(sum(one.calls for one in known) - len(known) + 1, max(one.distinct for one in known))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31 else 0
