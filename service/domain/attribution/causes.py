"""Why did a case move?  Pure: stored facts and stacks of a comparison in, a cause out, with its certainty.

Both sides of a comparison ran in turn on one machine and one stack, so the code is the cause unless stored facts say
otherwise: equal hashes of the compiled code, an A/A control that is off, different clocks, other cases with the same
code that moved too.  A release of a compiler or of a library is code in this sense.  The cause names the change of the
code whose size explains most of the effect (`service.domain.attribution.explanations`).  `service.reports.words` makes
the sentences.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import exp, inf, log
from typing import Any, Self

from service.domain.attribution.explanations import By, Explained, Explanation, Timing, explained, other_count
from service.domain.codefacts.comparison import same_facts
from service.domain.codefacts.measured import choices, interchangeable, releases, same_compilers
from service.domain.metrics import metric_of
from service.domain.verdicts.session_result import MachineReadings, clock_ratio

EXPLAINS = 0.5  # a clock that differs by this share of the move, or more, may be what moved it
LARGEST_ESTIMATE = 2.0  # an estimate of more than 200 % does not help a reader
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


class CauseCode(StrEnum):
    """Each with its arguments.  A ratio is now over then, or head over baseline; a doubt is a `Sign`, or nothing.

    Of the first group all have `releases` as well, where the revisions are releases: package, before and after of each.
    """

    # Of a change against a revision of the same session.
    EQUAL_CODE_MOVED = "equal_code_moved"
    NOT_REPEATED = "not_repeated"
    WAVERING = "wavering"  # head: the head's autotuner, else the other side's; chose: what it chose
    MACHINE = "machine"  # equal: an EqualCode, or nothing; doubt; code_changed
    SAME_CODE = "same_code"  # equal
    CONFIGURATION = "configuration"  # equal, chose
    PYTHON = "python"  # equal
    EXPLAINED = "explained"  # slower, confirmed, what, size: see `_size`, also: further explanations, doubt
    CODE_CHANGED = "code_changed"  # slower, confirmed, operators, differences, same, doubt
    CODE_UNKNOWN = "code_unknown"
    RELEASE = "release"  # slower, confirmed, equal, releases: another compiler was given the same code
    COUNTED = "counted"  # of a count: slower, what: how the code differs, or nothing
    # Of a distance that changed between two sessions.  `who` is a baseline's name; nothing for the target itself.
    HEAD_MOVED = "head_moved"  # ratio, cause: of that, as `Cause.as_json`, or nothing
    OTHER_BEST = "other_best"  # now, then, since
    NEW_VERSION = "new_version"  # package, before, after, ratio
    STACK = "stack"  # who, ratio, events: package, before and after of each
    CLOCK = "clock"  # who, ratio, clock
    BASELINE_SAME_CODE = "baseline_same_code"  # who, ratio
    BASELINE_UNEXPLAINED = "baseline_unexplained"  # who, ratio
    SMALL_STEPS = "small_steps"  # ratio, since
    NEITHER = "neither"
    # Of rows from before there were codes.
    TEXT = "text"  # slower, after: the rest of the sentence after the direction


class EqualCode(StrEnum):
    """What is known to be the same on both sides if the hashes of the code are equal."""

    LAUNCHED_ALIKE = "launched_alike"  # the compiled kernels and their launches
    TRITON = "triton"
    GENERATED = "generated"
    OPERATORS = "operators"
    PINNED = "pinned"
    HASH = "hash"


@dataclass(frozen=True)
class Cause:
    """`args` are plain values: they are stored as JSON."""

    kind: Kind
    code: CauseCode
    args: Mapping[str, Any] = field(default_factory=dict)
    certain: bool = True
    by: By | None = None  # what explains it, where something of the code does

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind.value, "code": self.code.value, "args": dict(self.args), "certain": self.certain}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        return cls(Kind(stored["kind"]), CauseCode(stored["code"]), stored["args"], stored["certain"])


@dataclass(frozen=True)
class CaseMove:
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
        sides = found.explanations, found.changed
        left, changed = (tuple(explanation for explanation in kind if not explanation.of_kernel) for kind in sides)
        return replace(found, explanations=left, changed=changed, differences=())


def cause(move: CaseMove) -> Cause:
    """Why a case moved against a revision of its own session."""
    cause = _cause(move)
    other = releases(move.head, move.baseline)
    return replace(cause, args={**cause.args, "releases": other}) if other else cause


def _cause(move: CaseMove) -> Cause:
    if metric_of(move.case).counts:  # the machine and chance have no part in it
        what = other_count(move.head, move.baseline)
        return Cause(Kind.CODE, CauseCode.COUNTED, {"slower": move.slower, "what": what})
    if move.machine.equal_code_moved:
        return Cause(Kind.MACHINE, CauseCode.EQUAL_CODE_MOVED)
    clock = clock_ratio(move.head, move.baseline, slower=move.slower)
    if clock is not None and abs(log(clock)) < EXPLAINS * abs(log(move.ratio)):
        clock = None  # too small to explain the difference
    doubts = list(move.machine.against_the_code(clock, confirmed=move.confirmed))
    if move.refuted:
        return Cause(Kind.NOISE, CauseCode.NOT_REPEATED, certain=False)
    wavering = _wavering(move)
    if wavering is not None and not any(
        explanation.score(move.effect) >= EXPLAINS_MUCH for explanation in move.explained.explanations
    ):
        return Cause(Kind.UNKNOWN, CauseCode.WAVERING, wavering, certain=False)
    if (equal := _equal(move)) is not None:
        proven = move.same_code or same_compilers(move.head, move.baseline)
        return _not_the_code(move, equal, doubts) if proven or doubts else _release(move, equal)
    return _code(move, doubts)


def _wavering(move: CaseMove) -> dict[str, Any] | None:
    """The choices of an autotuner, if trials of one side ran configurations of different speeds."""
    for is_head, facts in ((True, move.head), (False, move.baseline)):
        chosen = choices(facts)
        if chosen.waver and not chosen.equally_fast:
            return {"head": is_head, "chose": chosen.words}
    return None


def _equal(move: CaseMove) -> EqualCode | None:
    if move.same_code:
        return EqualCode.LAUNCHED_ALIKE
    mine, theirs = move.head, move.baseline
    if choices(mine).waver or choices(theirs).waver:
        return None  # the hash is that of the first trial
    if not mine.get("code") or (mine.get("code"), mine.get("kind")) != (theirs.get("code"), theirs.get("kind")):
        return None
    kind = str(mine.get("kind"))
    return EqualCode(kind) if kind in _HASHED else EqualCode.HASH


_HASHED = (EqualCode.TRITON, EqualCode.GENERATED, EqualCode.OPERATORS, EqualCode.PINNED)  # kinds of facts


def _not_the_code(move: CaseMove, equal: EqualCode, doubts: list[dict[str, Any]]) -> Cause:
    """Equal hashes: what remains is the machine, or what no hash sees."""
    same: dict[str, Any] = {"equal": equal.value}
    if doubts:
        same |= {"doubt": doubts[0], "code_changed": False}
        return Cause(Kind.MACHINE, CauseCode.MACHINE, same, certain=move.same_code)
    if move.same_code:
        return Cause(Kind.MACHINE, CauseCode.SAME_CODE, same, certain=False)
    configuration = next(
        (explanation for explanation in move.explained.explanations if explanation.by is By.CONFIGURATION), None
    )
    if configuration is not None:
        # An autotuner chose by its clock: the same code in another configuration is no change of the commit's.
        same["chose"] = configuration.words
        return Cause(Kind.UNKNOWN, CauseCode.CONFIGURATION, same, certain=False)
    if move.head.get("kind") == "generated":
        return Cause(Kind.MACHINE, CauseCode.SAME_CODE, same, certain=False)
    return Cause(Kind.CODE, CauseCode.PYTHON, same, certain=False)


def _release(move: CaseMove, equal: EqualCode) -> Cause:
    """Equal hashes of what two releases of a compiler were given: the machine code may differ nevertheless."""
    explained = move.explained
    first = _first(explained, move)
    if first is not None:
        return _explained_by(first, explained, move, None)
    args = {"slower": move.slower, "confirmed": move.confirmed, "equal": equal.value}
    return Cause(Kind.CODE, CauseCode.RELEASE, args, certain=False)


def _first(explained: Explained, move: CaseMove) -> Explanation | None:
    """The explanation that accounts for most, if that is enough to be named."""
    return next(
        (explanation for explanation in explained.explanations if explanation.score(move.effect) >= EXPLAINS_LITTLE),
        None,
    )


def _code(move: CaseMove, doubts: list[dict[str, Any]]) -> Cause:
    explained, doubt = move.explained, next(iter(doubts), None)
    first = _first(explained, move)
    if doubt and (first is None or first.score(move.effect) < EXPLAINS_MUCH):
        suspected = {"equal": None, "doubt": doubt, "code_changed": _other_code(move)}
        return Cause(Kind.MACHINE, CauseCode.MACHINE, suspected, certain=False)
    if first is not None:
        return _explained_by(first, explained, move, doubt)
    if not _other_code(move):
        return Cause(Kind.CODE, CauseCode.CODE_UNKNOWN, certain=False)
    args: dict[str, Any] = {
        "slower": move.slower,
        "confirmed": move.confirmed,
        "operators": move.head.get("kind") == "operators",
        "differences": list(explained.differences[:3]),
        "same": list(same_facts(move.head, move.baseline)),
        "doubt": doubt,
    }
    return Cause(Kind.CODE, CauseCode.CODE_CHANGED, args, certain=False)


def _explained_by(first: Explanation, explained: Explained, move: CaseMove, doubt: dict[str, Any] | None) -> Cause:
    """The explanation that accounts for most, after the configuration that it follows from, and what else can be."""
    by, what = first.by, first.words
    if first.of_kernel and (columns := _COLUMNS.search(move.case)):  # they decide how much of a row a kernel holds
        what += f" at N={columns[1]}"
    others = [
        explanation
        for explanation in explained.explanations
        if explanation is not first and explanation.score(move.effect) >= EXPLAINS_MUCH
    ]
    configuration = next((explanation for explanation in explained.changed if explanation.by is By.CONFIGURATION), None)
    if first.of_kernel and configuration is not None and first is not configuration:
        by, what = By.CONFIGURATION, f"{configuration.words}, and {what}"
        others = [explanation for explanation in others if explanation is not configuration]
    args = {
        "slower": move.slower,
        "confirmed": move.confirmed,
        "what": what,
        "size": _size(first, move),
        "also": [explanation.words for explanation in others[:NAMED_AS_WELL]],
        "doubt": doubt,
    }
    certain = move.confirmed and not doubt and _no_alternative(first, explained, move)
    return Cause(Kind.CODE, CauseCode.EXPLAINED, args, certain, by)


def _no_alternative(first: Explanation, explained: Explained, move: CaseMove) -> bool:
    """Whether it is the only change, and explains the measured size."""
    seen = {move.head.get("kind"), move.baseline.get("kind")} <= {"triton", "operators"}
    alone = explained.only_traffic and len(explained.changed) == 1 and first.by is By.TRAFFIC
    return first.exact and seen and alone and first.explains(move.effect) >= EXPLAINS_ALL


def _size(first: Explanation, move: CaseMove) -> dict[str, float] | None:
    """Of an exact explanation the expected change; of an estimate its range; both with what was measured."""
    if first.slower is None or first.most == inf:
        return None
    measured = abs(move.ratio - 1)
    if first.exact:
        return {"measured": measured, "expected": first.expected}
    least, most = (exp(end) - 1 if first.slower else 1 - exp(-end) for end in (first.least, first.most))
    return {"measured": measured, "least": least, "most": most} if most <= LARGEST_ESTIMATE else None


def _other_code(move: CaseMove) -> bool:
    return bool(move.head.get("code") and move.baseline.get("code"))


_COLUMNS = re.compile(r"\.(?:\d+x)+(\d+)")


Versions = Mapping[str, Any]


def moved(before: Versions, now: Versions) -> tuple[str, ...]:
    """`torch 2.11.0 → 2.13.0`, `liger 0.8.5 is new`, `quack 0.6.5 is gone`, in the order of the stack."""
    parts = []
    for name in dict.fromkeys((*now, *before)):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if old is None:
            parts.append(f"{name} {new} is new")
        elif new is None:
            parts.append(f"{name} {old} is gone")
        else:
            parts.append(f"{name} {old} → {new}")
    return tuple(parts)


def replaced(before: Versions, now: Versions) -> dict[str, tuple[str, str]]:
    """Packages in both stacks with different versions: before and now."""
    return {name: (str(before[name]), str(new)) for name, new in now.items() if name in before and before[name] != new}
