"""How one contender fared at one case, and what its facts say beside those of another.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from service.domain.codefacts.tuned import choices, interchangeable
from service.domain.roofline import Speed, number
from service.domain.states import CellState
from service.domain.text import apart, listed, plain

_COUNTED = (("graphs", "graph"), ("graph_breaks", "graph break"), ("recompiles", "recompile"))
_FACTS = {
    "kernels": "kernels",
    "registers": "registers",
    "spills": "spilled registers",
    "shared": "bytes of shared memory",
    "config": "configuration",
    "graphs": "graphs",
    "graph_breaks": "graph breaks",
    "recompiles": "recompiles",
}


class Repeatability(StrEnum):
    """What became of the head's repeatability: whether a kernel gives the same bits for the same inputs."""

    LOST = "lost"
    GAINED = "gained"


_OF_CONFIGURATION = ("registers", "spills", "shared", "config")  # of the first trial alone


@dataclass(frozen=True)
class Measured:
    """How one contender fared at one case."""

    contender: str
    provider: str
    state: CellState
    reason: str | None
    median: float | None
    unit: str  # of the median: us, or bytes
    gb_s: float | None
    trials: int
    rounds: int
    facts: Mapping[str, Any]
    speed: Speed = field(default_factory=Speed)

    @property
    def repeatable(self) -> bool:
        """Unless it was seen to compute other bits from the same inputs."""
        return self.facts.get("repeatable") is not False

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of these figures has to know beside them."""
        said = []
        if not self.repeatable:
            calls, distinct = self.facts.get("repeats"), number(self.facts.get("distinct")) or 0
            outputs = f"{distinct:g} different outputs of {plain(calls, 20)} calls"
            seen = outputs if distinct > 1 else f"compared over {plain(calls, 20)} calls"
            said.append(f"not bitwise repeatable{f' ({seen})' if calls else ''}")
        if wavering := choices(self.facts).words:
            said.append(wavering)
        if self.speed.l2_resident:
            said.append("its inputs stay in L2, so its GB/s are not those of the memory")
        counts = [(self.facts[key], noun) for key, noun in _COUNTED if isinstance(self.facts.get(key), int)]
        if counts:
            said.append(listed(f"{n} {noun}{'s' * (n != 1)}" for n, noun in counts))
        return tuple(said)


def repeatability(head: Mapping[str, Any], parent: Mapping[str, Any]) -> Repeatability | None:
    """None where it stayed, or where the calls of a side were too few to know."""
    match parent.get("repeatable"), head.get("repeatable"):
        case True, False:
            return Repeatability.LOST
        case False, True:
            return Repeatability.GAINED
    return None


def differences(head: Mapping[str, Any], parent: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs between two sets of compile-time facts, in words; whether the code is the same comes first."""
    said = []
    if head.get("code") and parent.get("code"):
        # Of what was not compiled only the operators that ran are known, and not the Python between them.
        what = "operators" if head.get("kind") == "operators" else "code"
        said.append(f"same {what}" if head["code"] == parent["code"] else f"{what} changed")
    if moved := repeatability(head, parent):
        said.append("no longer bitwise repeatable" if moved is Repeatability.LOST else "now bitwise repeatable")
    if noise := interchangeable(head, parent):
        said.append("configurations that both sides ran in some trial, and so no difference")
    in_full = [configurations(facts) for facts in (parent, head)]
    for fact, name in _FACTS.items():
        if noise and fact in _OF_CONFIGURATION:
            continue
        before, now = in_full if fact == "config" and all(in_full) else (parent.get(fact), head.get(fact))
        if before != now and before is not None and now is not None:
            said.append(f"{name} {' → '.join(apart(before, now))}")
    return tuple(said)


def configurations(facts: Mapping[str, Any]) -> str:
    """The settings of every kernel, where they are known: the fact `config` is cut to 400 characters."""
    kernels = facts.get("triton")
    known = isinstance(kernels, list) and all(isinstance(one, Mapping) for one in kernels)
    return " ".join(_configuration(one) for one in kernels or ()) if known else ""


def _configuration(kernel: Mapping[str, Any]) -> str:
    settings = kernel.get("settings")
    known = {"num_warps": kernel.get("warps"), "num_stages": kernel.get("stages")}
    known |= settings if isinstance(settings, Mapping) else {}
    return " ".join([str(kernel.get("name")), *(f"{key}={value}" for key, value in known.items() if value is not None)])
