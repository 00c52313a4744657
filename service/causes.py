"""Why did it move?  Pure: what is stored of a comparison in, one sentence and how far to trust it out.

A few exact rules in the order of how certain they are, and no scores.  Whoever compares two revisions ran both in turn
on one machine and one stack, so that what is left is the code, unless something stored says otherwise: equal hashes of
the compiled code, a control that leaned, clocks that differed, cases that moved alike although their code is the same.
The sentences end without a full stop, so that a report can go on.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import log
from typing import Any

from kernels.words import Lane
from service.facts_words import Change, alike, changed
from service.lanes import lane_of, words
from service.light import number
from service.texts import listed

CLOCK_DIFFERS = 0.02  # of an SM clock between two sides; an H200 steps by 15 MHz, which is 0.8 %
EXPLAINS = 0.5  # a clock that differs by this share of the move, or more, may be what moved it
SAME_CODE_ALIKE = 2  # cases with the same code that moved alike: one may be chance


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


@dataclass(frozen=True)
class Move:
    """One case of one provider, head over a revision that ran in the same session; `ratio` 1.08 is 8 % slower."""

    case: str
    ratio: float
    confirmed: bool  # by fresh launches
    head: Mapping[str, Any] = field(default_factory=dict)  # facts
    beside: Mapping[str, Any] = field(default_factory=dict)
    same_code: bool = False  # the facts prove that both ran the same machine code, launched alike
    refuted: bool = False  # fresh launches did not repeat it
    lean: float | None = None  # of the A/A control, where that is further off than the policy allows
    lost: float = 0.0  # share of the rounds that throttling spoiled
    throttled: tuple[str, ...] = ()  # for which reasons
    machine: bool = False  # most cases of the run moved this way, and equal code with them
    alike: int = 0  # other cases of the session that moved the same way although their code is the same
    elsewhere: tuple[str, ...] = ()  # other targets of which most moved the same way on this machine at that time

    @property
    def slower(self) -> bool:
        return self.ratio > 1


def cause(move: Move) -> Cause:
    """Why a case moved against a revision of its own session."""
    if move.machine:
        both = "most cases of this run moved the same way, and equal code moved with them"
        return Cause(Kind.MACHINE, f"the machine: {both}")
    doubts = list(_doubts(move))
    if move.refuted:
        return Cause(Kind.NOISE, "probably noise: fresh launches did not repeat it", certain=False)
    if (equal := _equal(move)) is not None:
        return _not_the_code(move, equal, doubts)
    return _code(move, doubts)


def _doubts(move: Move) -> Iterator[str]:
    """What stored readings say against the code, the most certain first."""
    if move.lean is not None:
        yield f"the A/A control leaned by {share_in_words(abs(move.lean))} in this session"
    if (clock := _clock(move)) is not None:
        yield clock
    if not move.confirmed and move.lost > 0:
        why = f" ({listed(move.throttled)})" if move.throttled else ""
        yield f"throttling{why} spoiled {share_in_words(move.lost)} of the rounds"
    if move.alike >= SAME_CODE_ALIKE:
        yield f"{move.alike} other cases moved the same way although their code is the same"
    if move.elsewhere:
        yield f"{listed(move.elsewhere)} moved the same way on this machine at that time"


def _clock(move: Move) -> str | None:
    """Where the SM clock was lower for the slower side, by enough to have made it slower."""
    mine, theirs = number(move.head.get("sm_mhz")), number(move.beside.get("sm_mhz"))
    if mine is None or theirs is None or abs(mine / theirs - 1) < CLOCK_DIFFERS:
        return None
    if (mine < theirs) is not move.slower or abs(log(mine / theirs)) < EXPLAINS * abs(log(move.ratio)):
        return None
    differs = f"{share_in_words(abs(mine / theirs - 1))} {'lower' if mine < theirs else 'higher'}"
    return f"the SM clock was {differs} while the head ran"


def _equal(move: Move) -> str | None:
    """What is known to be the same on both sides, where the hashes of the code are equal."""
    if move.same_code:
        return "both ran the same compiled kernels, launched alike"
    mine, theirs = move.head, move.beside
    if not mine.get("code") or (mine.get("code"), mine.get("kind")) != (theirs.get("code"), theirs.get("kind")):
        return None
    return _EQUAL.get(str(mine.get("kind")), "the hash of the code is the same")


_EQUAL = {
    "triton": "the compiled kernels are the same",
    "generated": "torch.compile generated the same code",
    "operators": "the same operators ran",
    "pinned": "the same versions of what it calls ran",
}


def _not_the_code(move: Move, equal: str, doubts: list[str]) -> Cause:
    """Equal hashes: what remains is the machine, or what no hash sees."""
    if doubts:
        certain = move.same_code
        return Cause(Kind.MACHINE, f"{'' if certain else 'probably '}the machine: {equal}, and {doubts[0]}", certain)
    if move.same_code:
        return Cause(Kind.MACHINE, f"probably the machine: {equal}", certain=False)
    if explained := _explaining(move, changed(move.head, move.beside)):
        # An autotuner chose by its clock: the same code in another configuration is no change of the commit's.
        return Cause(Kind.UNKNOWN, f"not certain: {equal}, but {explained[0].because}", certain=False)
    if move.head.get("kind") == "generated":
        return Cause(Kind.MACHINE, f"probably the machine: {equal}", certain=False)
    return Cause(Kind.CODE, f"probably the Python around it: {equal}", certain=False)


def _code(move: Move, doubts: list[str]) -> Cause:
    changes = changed(move.head, move.beside)
    explained = _explaining(move, changes)
    strong = next((one for one in explained if one.strong), None)
    if doubts and strong is None:
        also = "; the code changed as well" if _other_code(move) else ""
        return Cause(Kind.MACHINE, f"probably the machine: {doubts[0]}{also}", certain=False)
    doubt = f"; not certain, because {doubts[0]}" if doubts else ""
    if explained:
        first = strong or explained[0]
        others = [one.short for one in changes if one is not first]
        also = f"; also {listed(others)}" if others else ""
        certain = strong is not None and move.confirmed and not doubts
        return Cause(Kind.CODE, f"{_hedged(move, strong)} because {_at(first, move.case)}{also}{doubt}", certain)
    if changes:
        other_way = listed(one.short for one in changes)
        said = f"not certain: the code changed, but what is known of it points the other way ({other_way})"
        return Cause(Kind.CODE, said, certain=False)
    if not _other_code(move):
        said = "probably the code: both ran in turn on one machine and stack, and what was compiled is not known"
        return Cause(Kind.CODE, said, certain=False)
    same = alike(move.head, move.beside)
    with_same = f", with the same {listed(same)}" if same else ""
    what = "other operators ran" if move.head.get("kind") == "operators" else "the code changed"
    return Cause(Kind.CODE, f"{_direction(move, hedge=not move.confirmed)} because {what}{with_same}", move.confirmed)


def _explaining(move: Move, changes: list[Change]) -> list[Change]:
    """What of it can have moved this lane this way: what a kernel is made of costs no compilation and no memory."""
    beyond_kernels = lane_of(move.case) in (Lane.COMPILE, Lane.MEMORY)
    return [one for one in changes if one.explains(move.slower) and not (beyond_kernels and one.of_kernel)]


def _other_code(move: Move) -> bool:
    return bool(move.head.get("code") and move.beside.get("code"))


def _hedged(move: Move, strong: Change | None) -> str:
    if strong is None and move.confirmed:
        return f"probably {_direction(move)}"
    return _direction(move, hedge=not move.confirmed)


def _direction(move: Move, *, hedge: bool = False) -> str:
    said = words(move.case)
    return f"{'perhaps ' * hedge}{said.more if move.slower else said.less}"


def _at(change: Change, case: str) -> str:
    """With the width of the rows, which is what decides how much of a row a kernel holds at a time."""
    columns = _COLUMNS.search(case)
    return f"{change.because} at N={columns[1]}" if change.of_kernel and columns else change.because


_COLUMNS = re.compile(r"\.\d+x(\d+)")


def share_in_words(share: float) -> str:
    """`6 %`, `0.5 %`: as it stands in a sentence."""
    return f"{share * 100:.2g} %" if abs(share) < 0.995 else f"{share * 100:.0f} %"
