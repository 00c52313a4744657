"""Why did it move?  The words for causes; pure."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    CODE = "code"
    BASELINE = "baseline"  # the other side moved
    STACK = "stack"
    MACHINE = "machine"
    NOISE = "noise"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Cause:
    kind: Kind
    words: str  # as a person would write it: "slower because the kernel now spills 50 registers at N=16384"
    certain: bool = True
