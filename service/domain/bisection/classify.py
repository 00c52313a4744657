"""Classify one step of a bisection: is this revision as slow as the bad end?  Pure.

A step compares a revision with the good end, paired in one session.  Its verdicts are those of any run: significant,
relevant, confirmed by fresh trials.  The answer also says on which side of the middle each case is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from service.domain.states import Outcome
from service.domain.verdicts.judge import CHANGES

Series = tuple[str, str]  # provider and case


class Answer(StrEnum):
    BAD = "bad"  # as slow as the bad end
    GOOD = "good"  # as fast as the good end
    SKIP = "skip"  # it cannot be built or tested: git's 125
    UNDECIDED = "undecided"  # measured again, up to a limit


@dataclass(frozen=True)
class StepVerdict:
    """One case of one provider in one step."""

    outcome: Outcome
    ratio: float | None = None  # revision over what it was measured against; the next two are its interval
    low: float | None = None
    high: float | None = None
    suspected: bool = False  # the first trials looked like a change
    trials: int = 0
    why: str | None = None  # the cause, in words
    reason: str = ""  # of the verdict, in words


@dataclass(frozen=True)
class BisectionStep:
    """A measurement that has ended: `revision` compared with `against`, in one session."""

    revision: str
    against: str
    verdicts: Mapping[Series, StepVerdict] = field(default_factory=dict)
    untested: Answer | None = None  # SKIP: it does not build; UNDECIDED: the machine gave up
    words: str = ""  # why it is untested

    @property
    def trouble(self) -> str:
        """Why nothing was compared or decided, in words: of the build, the machine, or the first such case."""
        open_ones = (one for one in self.verdicts.values() if one.ratio is None or one.outcome is Outcome.INCONCLUSIVE)
        return self.words or next((one.reason or one.outcome.value for one in open_ones), "")


def moved(step: BisectionStep) -> dict[Series, float]:
    """The series that became slower in this step, and by how much: the logarithm of the ratio."""
    slower = {name: sight for name, sight in step.verdicts.items() if sight.outcome is Outcome.REGRESSION}
    return {name: math.log(sight.ratio) for name, sight in slower.items() if sight.ratio}


def slower(step: BisectionStep, among: Mapping[Series, float] | None = None) -> Answer:
    """Whether the revision is slower than its baseline in any of these series (by default in any)."""
    if step.untested:
        return step.untested
    seen = {sight.outcome for name, sight in step.verdicts.items() if among is None or name in among}
    if Outcome.REGRESSION in seen:
        return Answer.BAD
    if Outcome.INCONCLUSIVE in seen:
        return Answer.UNDECIDED
    return Answer.GOOD if seen & {Outcome.STEADY, Outcome.IMPROVEMENT} else Answer.SKIP


def classify(step: BisectionStep, sizes: Mapping[Series, float]) -> Answer:
    """Classify the revision as like the bad or the good end.  `sizes` is what `moved` returned for the bad end.

    Series vote with their size, and half of what could be tested decides: one series of many that is wrong by chance
    must not mislead the search.  Where two revisions share a slow-down, the larger part is found first, and the report
    names what it does not explain.  If less than half of the whole could be tested, the answer is SKIP.
    """
    if step.untested:
        return step.untested
    weight = dict.fromkeys(Answer, 0.0)
    for name, size in sizes.items():
        sight = step.verdicts.get(name)
        weight[_side(sight, size) if sight else Answer.SKIP] += size
    tested = math.fsum(weight[answer] for answer in Answer if answer is not Answer.SKIP)
    if 2 * tested < math.fsum(sizes.values()) or not tested:
        return Answer.SKIP
    if 2 * weight[Answer.BAD] >= tested:
        return Answer.BAD
    return Answer.GOOD if 2 * weight[Answer.GOOD] > tested else Answer.UNDECIDED


def _side(sight: StepVerdict, size: float) -> Answer:
    """On which side of half the slow-down, in logarithms, the case is.

    BAD requires a confirmed regression nearer to the bad end.  GOOD requires an interval wholly below the half,
    because a steady case of a small slow-down may be near to both ends.
    """
    if sight.outcome not in (Outcome.STEADY, Outcome.INCONCLUSIVE, *CHANGES):
        return Answer.SKIP
    if sight.ratio is None or sight.high is None:
        return Answer.UNDECIDED
    if sight.outcome is Outcome.REGRESSION and math.log(sight.ratio) >= size / 2:
        return Answer.BAD
    in_doubt = sight.outcome is Outcome.INCONCLUSIVE and sight.suspected
    return Answer.GOOD if math.log(sight.high) < size / 2 and not in_doubt else Answer.UNDECIDED
