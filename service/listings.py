"""Texts of compiled kernels made comparable, and what differs between two of them, bounded.  Pure."""

import difflib
import re
from dataclasses import dataclass

SHOWN_LINES = 120  # of one kernel's difference; whole texts are for files
LONGEST_LINE = 200
KINDS = ("sass", "ttgir", "ptx", "generated")

_ADDRESS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s*")
_ENCODING = re.compile(r"\s*/\*\s*0x[0-9a-f]{16}\s*\*/\s*$")
_LOCATION = re.compile(r"\s*loc\([^()]*(?:\([^()]*\)[^()]*)*\)$")
_UNCOMPARABLE = {
    "sass": re.compile(r"^\s*(//#*\s*(File|Inlined)|\.section|\.headerflags|\.elftype|//-+)"),
    "ttgir": re.compile(r"^\s*#loc"),
    "ptx": re.compile(r"^\s*(\.loc|\.file|//)"),
    "generated": re.compile(r"^\s*(# Topologically Sorted|# Source node|# Graph fragment|#\s+%)"),
}


@dataclass(frozen=True)
class Difference:
    """How the text of one kernel changed.  `lines` are those of a unified diff; `cut` more of them are not shown."""

    provider: str
    case: str
    arch: str
    kernel: str
    kind: str
    lines: tuple[str, ...]
    cut: int = 0
    places: int = 1  # at which exactly this kernel became exactly that one


def normalised(kind: str, text: str) -> list[str]:
    """The lines of a text without what differs from build to build: addresses, encodings, places in sources."""
    leave_out = _UNCOMPARABLE.get(kind)
    lines = []
    for line in text.splitlines():
        if leave_out and leave_out.match(line):
            continue
        if kind == "sass":
            line = _ENCODING.sub("", _ADDRESS.sub("    ", line))
        elif kind == "ttgir":
            line = _LOCATION.sub("", line)
        if line.strip():
            lines.append(line.rstrip())
    return lines


def difference(kind: str, before: str, after: str, most: int = SHOWN_LINES) -> tuple[tuple[str, ...], int]:
    """The first `most` lines of the unified diff of two texts, and how many lines more there are."""
    lines = difflib.unified_diff(normalised(kind, before), normalised(kind, after), "before", "after", lineterm="", n=2)
    every = [line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…" for line in lines]
    return tuple(every[:most]), max(0, len(every) - most)
