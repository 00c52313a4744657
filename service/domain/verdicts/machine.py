"""Did the machine move?  What a session, its telemetry and the other targets say against the code.  Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from service.domain.roofline import number
from service.domain.text import listed, share_in_words

MIN_CASES = 4  # of which most moving one way is no accident
MOST = 0.5  # of what was compared: a commit slows down a few cases, a machine nearly all
SAME_CODE_MOVED = 2  # cases with the same code that moved alike: one may be chance
CLOCK_DIFFERS = 0.02  # of an SM clock between two sides; an H200 steps by 15 MHz, which is 0.8 %


@dataclass(frozen=True)
class MachineReadings:
    """What was read of the machine while a case moved."""

    control: float | None = None  # by how much the A/A control was off, where that is more than the policy allows
    lost: float = 0.0  # share of the rounds that throttling spoiled
    throttled: tuple[str, ...] = ()  # for which reasons
    equal_code_moved: bool = False  # most cases of the run moved this way, and equal code with them
    same_code_moved: int = 0  # other cases of the session that moved this way although their code is the same
    elsewhere: tuple[str, ...] = ()  # other targets of which most cases moved this way on this machine at that time

    def against_the_code(self, clock: str | None, *, confirmed: bool) -> Iterator[str]:
        """Each reading that speaks against the code, the most certain first; `clock` is that of the SM clock."""
        if self.control is not None:
            yield f"the A/A control differed by {share_in_words(abs(self.control))} in this session"
        if clock is not None:
            yield clock
        if not confirmed and self.lost > 0:
            reasons = f" ({listed(self.throttled)})" if self.throttled else ""
            yield f"throttling{reasons} spoiled {share_in_words(self.lost)} of the rounds"
        if self.same_code_moved >= SAME_CODE_MOVED:
            yield f"{self.same_code_moved} other cases moved the same way although their code is the same"
        if self.elsewhere:
            yield f"{listed(self.elsewhere)} moved the same way on this machine at that time"


def most_moved(moved: int, compared: int) -> bool:
    """Did most of enough cases move one way?"""
    return compared >= MIN_CASES and moved >= MOST * compared


def clock_ratio(facts: Mapping[str, Any], other: Mapping[str, Any], *, slower: bool) -> float | None:
    """The SM clock of a side over that of the other, where it differs by enough, and the slower side had the lower."""
    mine, theirs = number(facts.get("sm_mhz")), number(other.get("sm_mhz"))
    if mine is None or theirs is None or abs(mine / theirs - 1) < CLOCK_DIFFERS or (mine < theirs) is not slower:
        return None
    return mine / theirs


def clock_in_words(ratio: float) -> str:
    """`the SM clock was 6 % lower`."""
    return f"the SM clock was {share_in_words(abs(ratio - 1))} {'lower' if ratio < 1 else 'higher'}"
