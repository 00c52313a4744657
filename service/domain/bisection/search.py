"""Find the revision between a good and a bad one that made it slower.  Pure: steps so far in, next step or end out.

The method is that of `git bisect`, with paired sessions as tests: halve the rest of the first-parent line, and skip
what cannot be tested.  Three things are added because a benchmark is not a boolean.  Both ends are compared first, so
that no search follows a regression that does not repeat.  An undecided step is repeated, at most `REPEATS` times.  In
the end the culprit is compared with its own parent, in a session that had no part in choosing it; where that proof
fails, both sides are measured once more before the search ends.

A step compares a revision with the good end, paired in one session.  Its verdicts are those of any run: significant,
relevant, confirmed by fresh trials.  Its class also says on which side of the middle each case is.  Only the steps are
stored: the same state is derived from them after a restart.
"""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from service.domain.states import Ending, Outcome, SearchState
from service.domain.verdicts.judge import CHANGES

Series = tuple[str, str]  # provider and case
REPEATS = 3  # how often one question is measured until it is decided


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
        open_ones = (
            verdict
            for verdict in self.verdicts.values()
            if verdict.ratio is None or verdict.outcome is Outcome.INCONCLUSIVE
        )
        return self.words or next((verdict.reason or verdict.outcome.value for verdict in open_ones), "")


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


class Aim(StrEnum):
    """The purpose of a step."""

    VERIFY = "verify"  # is the bad end slower than the good one?
    SEARCH = "search"
    AGAIN = "again"  # the proof contradicted this step
    PROVE = "prove"  # is the culprit slower than its own parent?


@dataclass(frozen=True)
class Question:
    """Measure `revision` against `against`."""

    aim: Aim
    revision: str
    against: str


@dataclass(frozen=True)
class Answered:
    question: Question
    step: BisectionStep
    answer: Answer


@dataclass(frozen=True)
class Progress:
    """The progress of a bisection.  It has either a `question` or an `ending`."""

    line: Sequence[str]
    answered: tuple[Answered, ...]
    sizes: Mapping[Series, float]  # the series that moved, by the logarithm of their ratio; empty until verified
    suspects: tuple[str, ...]  # possible culprits, oldest first: after the last good up to the first bad one
    question: Question | None = None
    ending: Ending | None = None

    @property
    def culprit(self) -> str | None:
        return self.suspects[0] if self.ending is Ending.PROVED else None

    def of(self, aim: Aim) -> list[Answered]:
        """The steps that had this aim, oldest first."""
        return [answer for answer in self.answered if answer.question.aim is aim]


def decide(
    line: Sequence[str], steps: Sequence[BisectionStep], max_runs: int, unbuildable: Collection[str] = frozenset()
) -> Progress:
    """Return what to measure next on `line` (from the good end to the bad one, inclusive), or how the search ended.

    `steps` are all that have ended, oldest first; `unbuildable` revisions are not tried.  After `max_runs` steps the
    search ends.
    """
    # A revision that a step tried stays tried; otherwise later news would change how past steps are read.
    search = _Search(line, frozenset(unbuildable) - {step.revision for step in steps})
    taken: defaultdict[tuple[str, str], deque[BisectionStep]] = defaultdict(deque)
    for step in steps:
        taken[step.revision, step.against].append(step)
    course = search.course()
    question: Question | None = next(course)
    ending = None
    try:
        while question and (waiting := taken[question.revision, question.against]):
            question = course.send(waiting.popleft())
    except StopIteration as ended:
        question, ending = None, ended.value
    if question and len(steps) >= max_runs:
        question, ending = None, Ending.SPENT
    return Progress(line, tuple(search.answered), search.sizes, search.suspects(ending), question, ending)


Course = Generator[Question, BisectionStep, Ending]
Asking = Generator[Question, BisectionStep, Answer]


@dataclass
class _Search:
    """A search that is replayed from its beginning each time; places are indices of the line."""

    line: Sequence[str]
    unbuildable: frozenset[str]
    answers: dict[int, Answer] = field(default_factory=lambda: {0: Answer.GOOD})
    sizes: Mapping[Series, float] = field(default_factory=dict)
    answered: list[Answered] = field(default_factory=list)
    doubts: list[tuple[int, int]] = field(default_factory=list)  # good and bad places between which a proof failed

    @property
    def last(self) -> int:
        return len(self.line) - 1

    def course(self) -> Course:
        """The whole search in order."""
        verified = yield from self._settled(Aim.VERIFY, self.last)
        if verified is not Answer.BAD:
            return {Answer.GOOD: Ending.STEADY, Answer.SKIP: Ending.UNTESTED}.get(verified, Ending.UNDECIDED)
        self.answers[self.last] = Answer.BAD
        while True:
            while (place := self._next()) is not None:
                self.answers[place] = yield from self._settled(Aim.SEARCH, place)
            good, bad = self._sides()
            if good > bad:
                return Ending.CONTRADICTED
            if bad - good > 1:
                return Ending.SKIPPED
            proof = yield from self._settled(Aim.PROVE, bad)
            if proof is not Answer.GOOD:
                return Ending.PROVED if proof is Answer.BAD else Ending.UNPROVED
            self.doubts.append((good, bad))
            if len(self.doubts) > 1:
                return Ending.CONTRADICTED
            for place in filter(None, (good, bad)):  # the good end against itself needs no session
                self.answers[place] = yield from self._settled(Aim.AGAIN, place)
            if self.answers[self.last] is not Answer.BAD:
                return Ending.ONCE
            if self._sides() == (good, bad):
                # Both answers repeated.  Either the slow-down came in small steps, or the proof missed it.
                proof = yield from self._settled(Aim.PROVE, bad)
                return {Answer.BAD: Ending.PROVED, Answer.GOOD: Ending.SMALL_STEPS}.get(proof, Ending.UNPROVED)

    def suspects(self, ending: Ending | None) -> tuple[str, ...]:
        """The possible culprits.  Where answers contradict each other, all that any of them leaves."""
        good, bad = self._sides()
        if ending and ending.state is SearchState.NOT_REPRODUCED:
            return ()
        if ending is Ending.SMALL_STEPS:
            good, bad = 0, self.last
        elif ending is Ending.CONTRADICTED:
            doubted = [place for pair in (*self.doubts, (good, bad)) for place in pair]
            good, bad = self._last(Answer.GOOD, min(doubted) + 1), self._first(Answer.BAD, max(doubted) - 1)
        return tuple(self.line[good + 1 : bad + 1])

    def _settled(self, aim: Aim, place: int) -> Asking:
        """Repeat a question until it is answered.  A revision that stays undecided counts as untestable."""
        against = self.line[place - 1] if aim is Aim.PROVE else self.line[0]
        answer = Answer.UNDECIDED
        for _ in range(REPEATS):
            question = Question(aim, self.line[place], against)
            step = yield question
            answer = self._answer(aim, step)
            self.answered.append(Answered(question, step, answer))
            if answer is not Answer.UNDECIDED:
                break
        return Answer.SKIP if answer is Answer.UNDECIDED and aim in (Aim.SEARCH, Aim.AGAIN) else answer

    def _answer(self, aim: Aim, step: BisectionStep) -> Answer:
        if aim is Aim.VERIFY:
            self.sizes = moved(step)
            return slower(step)
        return slower(step, self.sizes) if aim is Aim.PROVE else classify(step, self.sizes)

    def _next(self) -> int | None:
        """The untested position nearest to the middle; each skipped revision moves it farther away from them."""
        good, bad = self._sides()
        between = range(good + 1, bad)
        untried = [place for place in between if place not in self.answers and self.line[place] not in self.unbuildable]
        skipped = [place for place in between if self.answers.get(place) is Answer.SKIP]
        away = 2 ** len(skipped) // 4  # 0 after the first: most broken commits are fixed by the next one
        while away and not _far(untried, skipped, away):
            away //= 2
        return min(_far(untried, skipped, away), key=lambda place: (abs(2 * place - good - bad), place), default=None)

    def _sides(self) -> tuple[int, int]:
        """The last good place and the first bad one; where answers contradict each other, the first is the larger."""
        return self._last(Answer.GOOD, below=len(self.line)), self._first(Answer.BAD, above=-1)

    def _last(self, answer: Answer, below: int) -> int:
        return max(place for place, given in self.answers.items() if given is answer and place < below)

    def _first(self, answer: Answer, above: int) -> int:
        places = (place for place, given in self.answers.items() if given is answer and place > above)
        return min(places, default=self.last)


def _far(untried: Sequence[int], skipped: Sequence[int], away: int) -> list[int]:
    return [place for place in untried if all(abs(place - other) > away for other in skipped)]
