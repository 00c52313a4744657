"""Why did it move?  Pure: what is stored of a comparison in, one sentence and how far to trust it out.

Both sides of a comparison ran in turn on one machine and one stack.  What remains is the code, unless something stored
says otherwise: equal hashes of the compiled code, a control that leaned, clocks that differed, cases that moved alike
although their code is the same.  Of the code, that is named which explains most of the change by its size
(`service.domain.attribution.explanations`).  The sentences end without a full stop, so that a report can go on.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import exp, inf, log
from typing import Any

from service.domain.attribution.explanations import By, Explained, Explanation, Timing, explained
from service.domain.codefacts.comparison import same_facts
from service.domain.codefacts.tuned import choices, interchangeable
from service.domain.metrics import words
from service.domain.text import listed, share_in_words
from service.domain.verdicts.machine import MachineReadings, clock_in_words, clock_ratio

EXPLAINS = 0.5  # a clock that differs by this share of the move, or more, may be what moved it
LARGEST_ESTIMATE = 2.0  # an estimate of up to more than 200 % tells a reader nothing
EXPLAINS_ALL = 0.8  # of the effect: what explains less leaves room for another cause
EXPLAINS_MUCH = 0.3  # a score below it is no match for what speaks against the code
EXPLAINS_LITTLE = 0.08  # what explains less is not named as the cause
NAMED_AS_WELL = 2  # explanations after the first


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
    words: str  # a sentence: "slower because each call now also runs aten::clone, which moves 537 MB"
    certain: bool = True
    by: By | None = None  # what explains it, where something of the code does


@dataclass(frozen=True)
class Move:
    """One case of one provider, head over a revision that ran in the same session; `ratio` 1.08 is 8 % slower."""

    case: str
    ratio: float
    confirmed: bool  # by fresh trials
    head: Mapping[str, Any] = field(default_factory=dict)  # facts
    baseline: Mapping[str, Any] = field(default_factory=dict)
    same_code: bool = False  # the facts prove that both ran the same machine code, launched alike
    refuted: bool = False  # fresh trials did not repeat it
    machine: MachineReadings = field(default_factory=MachineReadings)
    us: float | None = None  # what the other side took, in the unit of the case's metric
    copy_gb_s: float | None = None  # ceiling of the session

    @property
    def slower(self) -> bool:
        return self.ratio > 1

    @property
    def effect(self) -> float:
        return log(self.ratio)

    @property
    def explained(self) -> Explained:
        """Without what follows from the configuration of the first trial, where both sides ran that in some trial."""
        found = explained(self.head, self.baseline, Timing(self.case, self.us, self.copy_gb_s), self.effect)
        if not interchangeable(self.head, self.baseline):
            return found
        left, changed = (tuple(one for one in kind if _of_code(one)) for kind in (found.explanations, found.changed))
        return replace(found, explanations=left, changed=changed, switches=())


def cause(move: Move) -> Cause:
    """Why a case moved against a revision of its own session."""
    if move.machine.equal_code_moved:
        both = "most cases of this run moved the same way, and equal code moved with them"
        return Cause(Kind.MACHINE, f"the machine: {both}")
    doubts = list(move.machine.against_the_code(_clock(move), confirmed=move.confirmed))
    if move.refuted:
        return Cause(Kind.NOISE, "probably noise: fresh trials did not repeat it", certain=False)
    if (wavering := _tuned(move)) is not None and not _explains_much(move):
        return Cause(Kind.UNKNOWN, f"not certain: {wavering}", certain=False)
    if (equal := _equal(move)) is not None:
        return _not_the_code(move, equal, doubts)
    return _code(move, doubts)


def _of_code(explanation: Explanation) -> bool:
    return not explanation.of_kernel and explanation.by is not By.CONFIGURATION


def _explains_much(move: Move) -> bool:
    return any(one.score(move.effect) >= EXPLAINS_MUCH for one in move.explained.explanations)


def _tuned(move: Move) -> str | None:
    """What an autotuner chose, where trials of a side ran configurations of different speeds."""
    for side, facts in (("the head", move.head), ("the other side", move.baseline)):
        found = choices(facts)
        if found.waver and not found.equally_fast:
            return f"of {side}, {found.words}"
    return None


def _clock(move: Move) -> str | None:
    """Where the SM clock was lower for the slower side, by enough to have made it slower."""
    ratio = clock_ratio(move.head, move.baseline, slower=move.slower)
    if ratio is None or abs(log(ratio)) < EXPLAINS * abs(log(move.ratio)):
        return None
    return f"{clock_in_words(ratio)} while the head ran"


def _equal(move: Move) -> str | None:
    """What is known to be the same on both sides, where the hashes of the code are equal."""
    if move.same_code:
        return "both ran the same compiled kernels, launched alike"
    mine, theirs = move.head, move.baseline
    if choices(mine).waver or choices(theirs).waver:
        return None  # the hash is that of the first trial
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
    configuration = next((one for one in move.explained.explanations if one.by is By.CONFIGURATION), None)
    if configuration is not None:
        # An autotuner chose by its clock: the same code in another configuration is no change of the commit's.
        return Cause(Kind.UNKNOWN, f"not certain: {equal}, but {configuration.words}", certain=False)
    if move.head.get("kind") == "generated":
        return Cause(Kind.MACHINE, f"probably the machine: {equal}", certain=False)
    return Cause(Kind.CODE, f"probably because of the Python around it: {equal}", certain=False)


def _code(move: Move, doubts: list[str]) -> Cause:
    found = move.explained
    first = next((one for one in found.explanations if one.score(move.effect) >= EXPLAINS_LITTLE), None)
    if doubts and (first is None or first.score(move.effect) < EXPLAINS_MUCH):
        also = "; the code changed as well" if _other_code(move) else ""
        return Cause(Kind.MACHINE, f"probably the machine: {doubts[0]}{also}", certain=False)
    doubt = f"; but {doubts[0]}" if doubts else ""
    if first is not None:
        return _explained_by(first, found, move, doubt)
    if not _other_code(move):
        said = "probably the code: both ran in turn on one machine and stack, and what was compiled is not known"
        return Cause(Kind.CODE, said, certain=False)
    same = same_facts(move.head, move.baseline)
    with_same = f", with the same {listed(same)}" if same else ""
    switches = f" ({listed(found.switches[:3])})" if found.switches else ""
    what = "other operators ran" if move.head.get("kind") == "operators" else "the code changed"
    said = f"{_direction(move)}, {_hedge(move)} because {what}{switches}{with_same}; nothing recorded explains its size"
    return Cause(Kind.CODE, f"{said}{doubt}", certain=False)


def _explained_by(first: Explanation, found: Explained, move: Move, doubt: str) -> Cause:
    """The explanation that accounts for most, after the configuration that it follows from, and what else can be."""
    by, said = first.by, _at(first, move.case)
    others = [one for one in found.explanations if one is not first and one.score(move.effect) >= EXPLAINS_MUCH]
    configuration = next((one for one in found.changed if one.by is By.CONFIGURATION), None)
    if first.of_kernel and configuration is not None and first is not configuration:
        by, said = By.CONFIGURATION, f"{configuration.words}, and {said}"
        others = [one for one in others if one is not configuration]
    certain = move.confirmed and not doubt and _no_alternative(first, found, move)
    also = f"; also {listed(one.words for one in others[:NAMED_AS_WELL])}" if others else ""
    hedge = "" if certain else f", {_hedge(move)}"
    sentence = f"{_direction(move)}{hedge} because {said}{_by_how_much(first, move)}{also}{doubt}"
    return Cause(Kind.CODE, sentence, certain, by)


def _no_alternative(first: Explanation, found: Explained, move: Move) -> bool:
    """Is it the only thing that changed, and of the size that was measured?"""
    seen = {move.head.get("kind"), move.baseline.get("kind")} <= {"triton", "operators"}
    alone = found.only_traffic and len(found.changed) == 1 and first.by is By.TRAFFIC
    return first.exact and seen and alone and first.explains(move.effect) >= EXPLAINS_ALL


def _by_how_much(first: Explanation, move: Move) -> str:
    """What an estimate says, beside what was measured."""
    if first.slower is None or first.most == inf:
        return ""
    measured = share_in_words(abs(move.ratio - 1))
    if first.exact:
        part = share_in_words(first.expected) if first.expected < abs(move.ratio - 1) else "all"
        return f" (explains {part} of {measured})"
    least, most = (exp(end) - 1 if first.slower else 1 - exp(-end) for end in (first.least, first.most))
    if most > LARGEST_ESTIMATE:
        return ""
    between = f"{share_in_words(least)} to " if least >= 0.005 else "up to "
    return f" (estimate: {between}{share_in_words(most)}, of {measured})"


def _other_code(move: Move) -> bool:
    return bool(move.head.get("code") and move.baseline.get("code"))


def _direction(move: Move) -> str:
    said = words(move.case)
    return said.more if move.slower else said.less


def _hedge(move: Move) -> str:
    return "probably" if move.confirmed else "perhaps"


def _at(explanation: Explanation, case: str) -> str:
    """With the width of the rows, which is what decides how much of a row a kernel holds at a time."""
    columns = _COLUMNS.search(case)
    return f"{explanation.words} at N={columns[1]}" if explanation.of_kernel and columns else explanation.words


_COLUMNS = re.compile(r"\.\d+x(\d+)")
