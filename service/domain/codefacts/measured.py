"""The measurements of one contender at one case.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from service.domain import roofline
from service.domain.codefacts.tuned import choices, chosen_by_order
from service.domain.roofline import Speed, number
from service.domain.states import CellState
from service.domain.text import listed, plain

_COUNTED = (("graphs", "graph"), ("graph_breaks", "graph break"), ("recompiles", "recompile"))


@dataclass(frozen=True)
class Measured:
    """The result of one contender at one case."""

    contender: str
    provider: str
    state: CellState
    reason: str | None
    median: float | None
    unit: str  # of the median: us, bytes or count
    gb_s: float | None
    trials: int
    rounds: int
    facts: Mapping[str, Any]
    case: str = ""
    ceilings: Mapping[str, float] = field(default_factory=dict)  # of its session

    @cached_property
    def speed(self) -> Speed:
        """Its median as a share of the ceilings."""
        return roofline.speed(self.case, self.median, self.gb_s, self.facts, self.ceilings)

    @property
    def timed(self) -> float | None:
        """Its median, or that of the rounds apart where its numbers are not exact enough: nobody's baseline."""
        return self.median if self.median is not None else number(self.facts.get("inexact_median"))

    @property
    def repeatable(self) -> bool:
        """Unless it was seen to compute other bits from the same inputs."""
        return self.facts.get("repeatable") is not False

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that a reader of these figures needs."""
        said = []
        if not self.repeatable:
            calls, distinct = self.facts.get("repeats"), number(self.facts.get("distinct")) or 0
            outputs = f"{distinct:g} different outputs of {plain(calls, 20)} calls"
            seen = outputs if distinct > 1 else f"compared over {plain(calls, 20)} calls"
            said.append(f"not bitwise repeatable{f' ({seen})' if calls else ''}")
        if wavering := choices(self.facts).words:
            said.append(wavering)
        if by_order := chosen_by_order(self.facts):
            said.append(by_order)
        if self.speed.l2_resident:
            said.append("its inputs stay in L2, so its GB/s are not those of the memory")
        counts = [(self.facts[key], noun) for key, noun in _COUNTED if isinstance(self.facts.get(key), int)]
        if counts:
            said.append(listed(f"{n} {noun}{'s' * (n != 1)}" for n, noun in counts))
        return tuple(said)
