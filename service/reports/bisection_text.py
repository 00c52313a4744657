"""The text of a bisection: its progress and its result.  Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.domain.bisection.search import Aim, Answer, Answered, Progress, Series, StepVerdict
from service.domain.metrics import metric_of, percent
from service.domain.states import Ending, Outcome
from service.domain.text import interval, listed, short

MAX_REASONS = 3  # of what could not be tested, in one sentence
_SMALLEST_SHARE = 0.75  # of the slow-down: below this, other revisions caused the rest


@dataclass(frozen=True)
class Merge:
    """The culprit is a merge: the line that it brought in, from where it had parted."""

    base: str | None  # None where that line has no first parents down to it
    tip: str
    revisions: int


@dataclass(frozen=True)
class Names:
    """The names with which the bisection can be started again."""

    target: str
    device: str

    def command(self, good: str, bad: str) -> str:
        return f"`kernelwatch bisection start {self.target} {short(good)}..{short(bad)} --device {self.device}`"


def said(progress: Progress, names: Names, merge: Merge | None = None) -> str:
    """One or a few sentences: how far the search is, or what it found and how that is known."""
    if progress.ending is None:
        return _so_far(progress)
    good, bad = (short(one) for one in (progress.line[0], progress.line[-1]))
    suspects = progress.suspects
    left = f"{_revisions(len(suspects))} ({_ends(suspects)})" if suspects else "none"
    match progress.ending:
        case Ending.PROVED:
            return _found(progress, names, merge)
        case Ending.UNTESTED:
            return f"An end of the search cannot be measured: {progress.answered[-1].step.trouble}. Choose another end."
        case Ending.STEADY:
            return f"{bad} is not slower than {good}: {_steadily(progress)}. There is nothing to search for."
        case Ending.UNDECIDED:
            times, why = len(progress.answered), progress.answered[-1].step.trouble
            return (
                f"Whether {bad} is slower than {good} stayed undecided in {times} sessions, "
                f"so no revision is blamed: {why}."
            )
        case Ending.ONCE:
            return f"{bad} was slower than {good} once, but not when it was measured again."
        case Ending.UNPROVED:
            culprit, parent = _pair(progress)
            why = progress.answered[-1].step.words or "the final comparison was inconclusive"
            return f"The search ends at {culprit}, but it was not shown to be slower than its parent {parent}: {why}."
        case Ending.SKIPPED:
            return f"One of {left}: some could not be tested{_skipped(progress)}."
        case Ending.CONTRADICTED:
            return f"One of {left}: repeated steps contradicted each other, so no single revision is blamed."
        case Ending.SMALL_STEPS:
            culprit, parent = _pair(progress)
            return (
                f"No single revision: {bad} {_slower(progress)} than {good}, half of that is reached at "
                f"{culprit}, but {culprit} is not slower than its parent {parent}. The slow-down came in small steps."
            )
        case Ending.SPENT:
            return f"The budget of {len(progress.answered)} runs is spent; remaining suspects: {left}."


def answer_in_words(answered: Answered) -> str:
    """One step of a table: `bad: 30.1 % slower at rmsnorm.fwd.64x4096.fp32`."""
    largest = _largest(answered.step.verdicts)
    shown = _shown(*largest) if largest else ""
    decided = answered.answer in (Answer.BAD, Answer.GOOD)
    return f"{answered.answer}: {shown if decided else answered.step.trouble or shown}"


def _so_far(progress: Progress) -> str:
    question = progress.question
    if question is None or question.aim is Aim.VERIFY:
        return f"verifying that {short(progress.line[-1])} is slower than {short(progress.line[0])}"
    if question.aim is Aim.PROVE:
        return f"proving that {short(question.revision)} is slower than its parent {short(question.against)}"
    return f"{len(progress.suspects)} of {_revisions(len(progress.line) - 1)} left: {_ends(progress.suspects)}"


def _found(progress: Progress, names: Names, merge: Merge | None) -> str:
    proof = progress.of(Aim.PROVE)[-1].step
    culprit, parent = short(proof.revision), short(proof.against)
    slow = {name: sight for name, sight in proof.verdicts.items() if sight.outcome is Outcome.REGRESSION}
    name, sight = max(slow.items(), key=lambda one: one[1].ratio or 0.0)
    others, trials = len(slow) - 1, f"{sight.trials} fresh trials"
    sentences = [
        f"{culprit} is {_shown(name, sight)}"
        + (f" and at {others} more {'case' if others == 1 else 'cases'}" if others else "")
        + f" against its parent {parent}"
        + (f" ({', '.join(filter(None, (interval(sight.low, sight.high), trials)))})" if sight.low else "")
        + (f": {sight.why}" if sight.why else "")
        + "."
    ]
    sentences += _rest(progress, slow)
    if merge:
        inside = f"; bisect inside it with {names.command(merge.base, merge.tip)}" if merge.base else ""
        sentences.append(f"It is a merge of {_revisions(merge.revisions)}{inside}.")
    return " ".join(sentences)


def _rest(progress: Progress, slow: Mapping[Series, StepVerdict]) -> list[str]:
    """Slow-downs that the culprit does not explain, or only in part."""
    elsewhere = [case for name, case in progress.sizes if (name, case) not in slow]
    said = []
    if elsewhere:
        cases = listed(elsewhere[:2]) + (f" and {len(elsewhere) - 2} more" if len(elsewhere) > 2 else "")
        said.append(f"It does not explain {cases}: search for those with --case.")
    explained = math.fsum(math.log(sight.ratio) for sight in slow.values() if sight.ratio)
    whole = math.fsum(progress.sizes[name] for name in slow if name in progress.sizes)
    if whole and explained < _SMALLEST_SHARE * whole:
        said.append(f"It makes {explained / whole:.0%} of the slow-down; other revisions of the line made the rest.")
    return said


def _steadily(progress: Progress) -> str:
    largest = _largest(progress.of(Aim.VERIFY)[-1].step.verdicts)
    return _shown(*largest) if largest else "no case moved"


def _slower(progress: Progress) -> str:
    """`is 10.2 % slower`, or where all series are of one metric that counts `has 1 more kernel`."""
    ratio = math.exp(math.fsum(progress.sizes.values()) / len(progress.sizes))
    metric, *others = {metric_of(case) for _, case in progress.sizes}
    return f"has {percent(ratio, metric)}" if metric.counts and not others else f"is {(ratio - 1) * 100:.1f} % slower"


def _skipped(progress: Progress) -> str:
    """Why, of the first few that were skipped among those that are left."""
    left = set(progress.suspects)
    why = {
        one.question.revision: one.step.trouble or one.answer.value
        for one in progress.answered
        if one.question.revision in left and one.answer in (Answer.SKIP, Answer.UNDECIDED)
    }
    named = [f"{short(sha)}: {words}" for sha, words in list(why.items())[:MAX_REASONS]]
    more = len(why) - len(named)
    return f" ({'; '.join(named)}{f'; and {more} more' if more > 0 else ''})" if named else ""


def _ends(suspects: Sequence[str]) -> str:
    return " … ".join(short(one) for one in dict.fromkeys((suspects[0], suspects[-1])))


def _pair(progress: Progress) -> tuple[str, str]:
    proof = progress.of(Aim.PROVE)[-1].step
    return short(proof.revision), short(proof.against)


def _largest(verdicts: Mapping[Series, StepVerdict]) -> tuple[Series, StepVerdict] | None:
    compared = [(name, sight) for name, sight in verdicts.items() if sight.ratio]
    return max(compared, key=lambda one: one[1].ratio or 0.0, default=None)


def _shown(name: Series, sight: StepVerdict) -> str:
    return f"{percent(sight.ratio, metric_of(name[1]))} at {name[1]} ({name[0]})"


def _revisions(count: int) -> str:
    return f"{count} revision{'' if count == 1 else 's'}"
