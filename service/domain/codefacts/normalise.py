"""Texts of compiled kernels made comparable, and what differs between two of them, bounded.  Pure."""

import difflib
import re
from collections import Counter
from dataclasses import dataclass

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
    said = [f"{name} {old[name]} → {new[name]}" for name in moved[:most]]
    return ", ".join([*said, *([f"{len(moved) - most} others"] if len(moved) > most else [])])


def _opcodes(text: str) -> Counter[str]:
    found = (_OPCODE.match(line) for line in normalised("sass", text))
    return Counter(match[1] for match in found if match)
