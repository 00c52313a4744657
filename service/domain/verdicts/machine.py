"""Did the machine move?  What a session, its telemetry and the other targets say against the code.  Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from service.domain.roofline import number

MIN_CASES = 4  # of which most moving one way is no accident
MOST = 0.5  # of what was compared: a commit slows down a few cases, a machine nearly all
SAME_CODE_MOVED = 2  # cases with the same code that moved alike: one may be chance
CLOCK_DIFFERS = 0.02  # of an SM clock between two sides; an H200 steps by 15 MHz, which is 0.8 %


class Sign(StrEnum):
    """Evidence against the code as the cause, each with its arguments."""

    CONTROL = "control"  # size: by how much the A/A control was off
    CLOCK = "clock"  # ratio: of the SM clocks
    THROTTLED = "throttled"  # share: of the rounds that were lost, reasons
    SAME_CODE = "same_code"  # cases: how many others moved this way although their code is the same
    ELSEWHERE = "elsewhere"  # targets: those that moved this way at that time


@dataclass(frozen=True)
class MachineReadings:
    """Readings of the machine while a case moved."""

    control: float | None = None  # by how much the A/A control was off, where that is more than the policy allows
    lost: float = 0.0  # share of the rounds that throttling spoiled
    throttled: tuple[str, ...] = ()  # for which reasons
    equal_code_moved: bool = False  # most cases of the run moved this way, and equal code with them
    same_code_moved: int = 0  # other cases of the session that moved this way although their code is the same
    elsewhere: tuple[str, ...] = ()  # other targets of which most cases moved this way on this machine at that time

    def against_the_code(self, clock: float | None, *, confirmed: bool) -> Iterator[dict[str, Any]]:
        """Each reading that speaks against the code, the most certain first: a `Sign` with its arguments, plain values.

        `clock`: the SM clock of the head over that of the other side, where it may explain the move.
        """
        if self.control is not None:
            yield {"sign": Sign.CONTROL.value, "size": abs(self.control)}
        if clock is not None:
            yield {"sign": Sign.CLOCK.value, "ratio": clock}
        if not confirmed and self.lost > 0:
            yield {"sign": Sign.THROTTLED.value, "share": self.lost, "reasons": list(self.throttled)}
        if self.same_code_moved >= SAME_CODE_MOVED:
            yield {"sign": Sign.SAME_CODE.value, "cases": self.same_code_moved}
        if self.elsewhere:
            yield {"sign": Sign.ELSEWHERE.value, "targets": list(self.elsewhere)}


def most_moved(moved: int, compared: int) -> bool:
    """Did most of enough cases move one way?"""
    return compared >= MIN_CASES and moved >= MOST * compared


def clock_ratio(facts: Mapping[str, Any], other: Mapping[str, Any], *, slower: bool) -> float | None:
    """The SM clock of a side over that of the other, where it differs by enough, and the slower side had the lower."""
    mine, theirs = number(facts.get("sm_mhz")), number(other.get("sm_mhz"))
    if mine is None or theirs is None or abs(mine / theirs - 1) < CLOCK_DIFFERS or (mine < theirs) is not slower:
        return None
    return mine / theirs
