"""The measurements of a contender, its autotuner's choices, and its compiled texts made comparable.  Pure.

An autotuner chooses again in each process, unless a stable choice is reused.  Where it wavers, what the first trial ran
says nothing of the others: a configuration that both sides ran in some trial is no difference between them.

Facts come from strangers' processes: a value of the wrong type counts as missing.
"""

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from service.domain import roofline
from service.domain.roofline import Speed, number
from service.domain.states import CellState
from service.domain.text import listed, one_line, plain

COMPILERS = ("torch", "triton", "cutlass_dsl")  # they make the machine code, so that equal text proves nothing
EQUAL = 0.01  # medians of two configurations that differ by less are of equal speed
NAMED = 3


def releases(head: Mapping[str, Any], base: Mapping[str, Any]) -> list[list[str]]:
    """`["triton", "3.6.0", "3.7.1"]`: what both sides replace in different versions, with those of base and head."""
    now, before = _replaced(head), _replaced(base)
    return [[name, before[name], now[name]] for name in now if name in before and now[name] != before[name]]


def same_compilers(head: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    """Whether both sides ran with the same torch, Triton and CUTLASS DSL, as far as the revisions choose them."""
    now, before = _replaced(head), _replaced(base)
    return all(now.get(name) == before.get(name) for name in COMPILERS)


def _replaced(facts: Mapping[str, Any]) -> dict[str, str]:
    replaced = facts.get("replaced")
    return {str(name): str(version) for name, version in replaced.items()} if isinstance(replaced, Mapping) else {}


ARCH_OF = {"a100": "sm_80", "l40s": "sm_89", "h100": "sm_90", "h200": "sm_90", "b200": "sm_100", "gb200": "sm_100"}


@dataclass(frozen=True)
class Choice:
    """One configuration, how many trials chose it, and the medians of all that ran it in the unit of the case."""

    configuration: str
    trials: int
    medians: tuple[float, ...]


@dataclass(frozen=True)
class Choices:
    """The configurations that trials of one contender at one case chose, most frequent first; empty without tuning."""

    found: tuple[Choice, ...] = ()

    @property
    def waver(self) -> bool:
        """Did trials run different configurations?"""
        return len(self.found) > 1

    @property
    def equally_fast(self) -> bool:
        """Whether all chosen configurations are equally fast."""
        typical = [median(choice.medians) for choice in self.found if choice.medians]
        return bool(typical) and max(typical) <= min(typical) * (1 + EQUAL)

    @property
    def words(self) -> str:
        """`its autotuner chose 2 configurations of equal speed in 5 trials (BLOCK=64 in 3, BLOCK=128 in 2)`."""
        if not self.waver:
            return ""
        trials = sum(choice.trials for choice in self.found)
        speed = " of equal speed" if self.equally_fast else " of different speeds"
        each = [f"{one_line(choice.configuration, 80)} in {choice.trials}" for choice in self.found[:NAMED]]
        if more := len(self.found) - NAMED:
            each += [f"{more} more"] if more > 0 else []
        return f"its autotuner chose {len(self.found)} configurations{speed} in {trials} trials ({listed(each)})"


def chosen_by_order(facts: Mapping[str, Any]) -> str:
    """Where the key of an autotuner does not tell the case from another at which it chose otherwise; else empty."""
    stored = facts.get("tuned_by_order")
    for kernel, found in stored.items() if isinstance(stored, Mapping) else ():
        if isinstance(found, Mapping):
            case, here, there = (one_line(str(found.get(name, "")), 80) for name in ("case", "here", "there"))
            return (
                f"the key of its autotuner does not tell this case from {case}: in a program, the first of them "
                f"chooses for both ({one_line(str(kernel), 80)}: {here} here, {there} there)"
            )
    return ""


def choices(facts: Mapping[str, Any]) -> Choices:
    """The choices that a contender's facts hold; what makes no sense in them counts as not said."""
    stored = facts.get("tuned")
    if not stored:
        return Choices()
    found: dict[str, list[float | None]] = {}
    chose = Counter[str]()
    for choice in stored if isinstance(stored, Sequence) and not isinstance(stored, str) else ():
        if isinstance(choice, Mapping) and isinstance(choice.get("configuration"), str):
            found.setdefault(choice["configuration"], []).append(number(choice.get("median")))
            chose[choice["configuration"]] += choice.get("reused") is not True
    return Choices(
        tuple(Choice(one, trials, tuple(each for each in found[one] if each)) for one, trials in chose.most_common())
    )


def interchangeable(head: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Did a side waver, and ran both sides the same configuration in some trial?  Then none explains a difference."""
    mine, theirs = choices(head), choices(other)
    shared = {choice.configuration for choice in mine.found} & {choice.configuration for choice in theirs.found}
    return bool(shared) and (mine.waver or theirs.waver)


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
        parts = []
        if not self.repeatable:
            calls, distinct = self.facts.get("repeats"), number(self.facts.get("distinct")) or 0
            outputs = f"{distinct:g} different outputs of {plain(calls, 20)} calls"
            seen = outputs if distinct > 1 else f"compared over {plain(calls, 20)} calls"
            parts.append(f"not bitwise repeatable{f' ({seen})' if calls else ''}")
        if wavering := choices(self.facts).words:
            parts.append(wavering)
        if by_order := chosen_by_order(self.facts):
            parts.append(by_order)
        if self.speed.l2_resident:
            parts.append("its inputs stay in L2, so its GB/s are not those of the memory")
        counts = [(self.facts[key], noun) for key, noun in _COUNTED if isinstance(self.facts.get(key), int)]
        if counts:
            parts.append(listed(f"{n} {noun}{'s' * (n != 1)}" for n, noun in counts))
        return tuple(parts)


SHOWN_LINES = 120  # of one kernel's difference; whole texts are for files
MAX_LINE = 200
MAX_READ = 1000  # characters of a line that are compared; the expressions below take their square
MAX_LINES = 4000  # of a text that are compared: difflib takes more than their number for each
KINDS = ("sass", "ttgir", "ptx", "generated")

_ADDRESS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s*")
_ENCODING = re.compile(r"\s{0,64}/\*\s{0,8}0x[0-9a-f]{16}\s{0,8}\*/\s*$")
_REGISTER = re.compile(r"\b(U?[RP])[0-9]+\b(?:\.reuse)?")
_OPCODE = re.compile(r"^\s*(?:@!?U?P[T0-9]+\s+)?([A-Z][A-Z0-9_.]*)\b")
_LOCATION = re.compile(r"\s{0,64}loc\([^()]*(?:\([^()]*\)[^()]*)*\)$")
_UNCOMPARABLE = {
    "sass": re.compile(r"^\s*(//#*\s*(File|Inlined)|\.section|\.headerflags|\.elftype|//-+)"),
    "ttgir": re.compile(r"^\s*#loc"),
    "ptx": re.compile(r"^\s*(\.loc|\.file|//)"),
    "generated": re.compile(r"^\s*(# Topologically Sorted|# Source node|# Graph fragment|#\s+%)"),
}


@dataclass(frozen=True)
class Difference:
    """The difference of one kernel's text.  `lines` are those of a unified diff; `cut` more of them are not shown."""

    provider: str
    case: str
    arch: str
    kernel: str
    kind: str
    lines: tuple[str, ...]
    cut: int = 0
    summary: str = ""  # instructions of which there are more or fewer
    places: int = 1  # at which exactly this kernel became exactly that one


def normalised(kind: str, text: str) -> list[str]:
    """The lines of a text without what differs from build to build: addresses, encodings, places in sources."""
    leave_out = _UNCOMPARABLE.get(kind)
    lines = []
    for whole in text.splitlines():
        line = whole[:MAX_READ].rstrip()
        if leave_out and leave_out.match(line):
            continue
        if kind == "sass":
            line = _ENCODING.sub("", _ADDRESS.sub("    ", line))
        elif kind == "ttgir":
            line = _LOCATION.sub("", line)
        if line.strip():
            lines.append(line.rstrip())
    return lines


def comparable(kind: str, lines: list[str]) -> list[str]:
    """The lines by which two texts are compared: those of machine code without the numbers of registers."""
    return [_REGISTER.sub(r"\1", line) for line in lines] if kind == "sass" else lines


def difference(kind: str, before: str, after: str, most: int = SHOWN_LINES) -> tuple[tuple[str, ...], int]:
    """The first `most` lines of the unified diff of two texts, and how many lines more there are.

    Machine code is compared without the numbers of its registers, which all move when one of them does.
    """
    old, new = (comparable(kind, normalised(kind, text)) for text in (before, after))
    bounded = [f"only the first {MAX_LINES} lines were compared"] * (max(len(old), len(new)) > MAX_LINES)
    old, new = old[:MAX_LINES], new[:MAX_LINES]
    lines = difflib.unified_diff(old, new, "before", "after", lineterm="", n=2)
    every = [line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…" for line in lines]
    return (*every[:most], *bounded), max(0, len(every) - most)


def mix(before: str, after: str, most: int = 12) -> str:
    """`LDG.E.128 12 → 0, LDG.E 0 → 48`: the instructions whose number changed, first those that reach memory."""
    old, new = _opcodes(before), _opcodes(after)

    def weight(name: str) -> tuple[bool, int]:
        return not name.startswith(("LD", "ST")), -abs(new[name] - old[name])

    moved = sorted((name for name in old | new if old[name] != new[name]), key=weight)
    words = [f"{name} {old[name]} → {new[name]}" for name in moved[:most]]
    return ", ".join([*words, *([f"{len(moved) - most} others"] if len(moved) > most else [])])


def _opcodes(text: str) -> Counter[str]:
    matches = (_OPCODE.match(line) for line in normalised("sass", text))
    return Counter(match[1] for match in matches if match)
