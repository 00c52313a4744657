"""Bisection from steps alone: the result of one step, and whole searches over arbitrary histories."""

import math
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.bisection.search import (
    REPEATS,
    Aim,
    Answer,
    BisectionStep,
    Progress,
    Question,
    StepVerdict,
    classify,
    decide,
    moved,
    slower,
)
from service.domain.states import Ending, Outcome, SearchState
from service.reports.bisection_text import Merge, Names, answer_in_words, said

FAST, WIDE, TALL = (
    ("norms", f"rmsnorm.fwd.{shape}.fp32") for shape in ("512x512", "64x4096", "4096x64")
)  # provider and case
REGRESSION, STEADY, IMPROVEMENT = Outcome.REGRESSION, Outcome.STEADY, Outcome.IMPROVEMENT
INCONCLUSIVE = Outcome.INCONCLUSIVE
BAD, GOOD, SKIP, UNDECIDED = Answer.BAD, Answer.GOOD, Answer.SKIP, Answer.UNDECIDED
NAMES = Names("norms", "h200")


def sight(outcome: Outcome, ratio: float | None = None, width: float = 0.005, **rest: object) -> StepVerdict:
    if ratio is None:
        return StepVerdict(outcome)
    return StepVerdict(outcome, ratio, ratio / (1 + width), ratio * (1 + width), trials=5, **rest)


# -- one step


@pytest.mark.parametrize(
    ("seen", "answer"),
    [
        # The bad end is 1.30 times as slow, so half of it, in logarithms, is 1.14.
        (sight(REGRESSION, 1.30), BAD),
        (sight(REGRESSION, 1.16), BAD),
        (sight(REGRESSION, 1.10), GOOD),  # slower, but another revision did the larger part
        (sight(STEADY, 1.00), GOOD),
        (sight(IMPROVEMENT, 0.90), GOOD),
        (sight(INCONCLUSIVE, 1.01, width=0.04), GOOD),  # too wide to be steady, and far from the bad end all the same
        (sight(INCONCLUSIVE, 1.10, width=0.08), UNDECIDED),
        (sight(INCONCLUSIVE, 1.28, width=0.01), UNDECIDED),  # without confirmation nobody is slow
        (sight(INCONCLUSIVE, 1.01, width=0.04, suspected=True), UNDECIDED),
        (sight(INCONCLUSIVE), UNDECIDED),
        (sight(STEADY, 1.15, width=0.001), UNDECIDED),
        (sight(STEADY, 1.10, width=0.06), UNDECIDED),  # not far enough from either end
        (sight(REGRESSION, 1.12, width=0.04), UNDECIDED),
        (sight(Outcome.INVALID), SKIP),
        (sight(Outcome.FAILED), SKIP),
        (sight(Outcome.NEW), SKIP),
    ],
)
def test_where_a_case_stands_between_the_ends(seen, answer):
    assert classify(BisectionStep("c3", "c0", {WIDE: seen}), {WIDE: math.log(1.30)}) is answer


SLOW, SAME, OPEN, WRONG = sight(REGRESSION, 1.3), sight(STEADY, 1.0), sight(INCONCLUSIVE), sight(Outcome.INVALID)
ALIKE = {FAST: math.log(1.3), WIDE: math.log(1.3), TALL: math.log(1.3)}
ONE_LARGE = {FAST: math.log(1.05), WIDE: math.log(3.0), TALL: math.log(1.05)}


@pytest.mark.parametrize(
    ("fast", "wide", "tall", "sizes", "answer"),
    [
        (SLOW, SLOW, SLOW, ALIKE, BAD),
        (SLOW, SLOW, SAME, ALIKE, BAD),
        (SLOW, SAME, SAME, ALIKE, GOOD),  # one that is wrong by chance sends nobody astray
        (SAME, sight(REGRESSION, 3.0), SAME, ONE_LARGE, BAD),  # they vote with their size
        (SLOW, OPEN, SAME, ALIKE, UNDECIDED),
        (SLOW, SLOW, OPEN, ALIKE, BAD),
        (SAME, SAME, OPEN, ALIKE, GOOD),
        (SAME, SAME, WRONG, ALIKE, GOOD),
        (SAME, WRONG, WRONG, ALIKE, SKIP),  # a third of it says nothing of the whole
        (WRONG, WRONG, WRONG, ALIKE, SKIP),
    ],
)
def test_several_cases_vote_with_their_size(fast, wide, tall, sizes, answer):
    assert classify(BisectionStep("c3", "c0", {FAST: fast, WIDE: wide, TALL: tall}), sizes) is answer


@pytest.mark.parametrize(
    ("verdicts", "answer"),
    [
        ({FAST: SAME, WIDE: SLOW}, BAD),
        ({FAST: SAME, WIDE: SAME}, GOOD),
        ({FAST: SAME, WIDE: OPEN}, UNDECIDED),
        ({FAST: WRONG, WIDE: SLOW}, BAD),
        ({FAST: WRONG, WIDE: WRONG}, SKIP),
        ({}, SKIP),
    ],
)
def test_whether_an_end_is_slower_at_all(verdicts, answer):
    assert slower(BisectionStep("c8", "c0", verdicts)) is answer


def test_only_the_cases_that_moved_prove_anything():
    step = BisectionStep("c8", "c7", {FAST: sight(REGRESSION, 1.1), WIDE: SAME})
    assert slower(step, {WIDE: 0.3}) is GOOD
    assert moved(step) == {FAST: math.log(1.1)}


# -- whole searches


def line_of(length: int) -> list[str]:
    return [f"c{place}" for place in range(length)]


class World:
    """Revisions as they really are: how slow each is, and which of them cannot be built."""

    def __init__(self, slowness: list[float], broken: frozenset[int] = frozenset()) -> None:
        self.slowness, self.broken = slowness, broken
        self.line = line_of(len(slowness))

    def measure(self, question: Question) -> BisectionStep:
        head, base = (int(sha[1:]) for sha in (question.revision, question.against))
        if head in self.broken:
            return BisectionStep(question.revision, question.against, untested=SKIP, words="it does not build")
        ratio = self.slowness[head] / self.slowness[base]
        outcome = REGRESSION if ratio > 1.01 else IMPROVEMENT if ratio < 1 / 1.01 else STEADY
        return BisectionStep(question.revision, question.against, {WIDE: sight(outcome, ratio, width=0.002)})


def searched(
    line: list[str],
    measure: Callable[[Question], BisectionStep],
    *,
    max_runs: int = 1000,
    unbuildable: frozenset[str] = frozenset(),
) -> tuple[Progress, list[BisectionStep]]:
    """A whole search, with a restart after every step."""
    steps: list[BisectionStep] = []
    while (progress := decide(line, tuple(steps), max_runs, unbuildable)).question:
        steps.append(measure(progress.question))
    return progress, steps


def slow_from(culprit: int, length: int, ratio: float = 1.3) -> list[float]:
    return [ratio if place >= culprit else 1.0 for place in range(length)]


lines = st.integers(2, 200).flatmap(lambda length: st.tuples(st.just(length), st.integers(1, length - 1)))


@given(lines)
def test_the_culprit_is_found_and_proved_in_as_many_steps_as_halving_takes(line):
    length, culprit = line
    progress, steps = searched(line_of(length), World(slow_from(culprit, length)).measure)
    assert progress.culprit == f"c{culprit}"
    assert len(steps) <= math.ceil(math.log2(length)) + 2
    assert (steps[0].revision, steps[0].against) == (f"c{length - 1}", "c0"), "both ends are verified first"
    assert (steps[-1].revision, steps[-1].against) == (f"c{culprit}", f"c{culprit - 1}"), "and the culprit proved last"


@given(lines, st.data())
def test_what_cannot_be_built_leaves_the_smallest_range_that_holds_the_culprit(line, data):
    length, culprit = line
    between = st.sets(st.integers(1, length - 2)) if length > 2 else st.just(set())
    broken = frozenset(data.draw(between))
    known = (
        frozenset(f"c{one}" for one in data.draw(st.sets(st.sampled_from(sorted(broken)))) if broken)
        if broken
        else frozenset()
    )
    progress, steps = searched(line_of(length), World(slow_from(culprit, length), broken).measure, unbuildable=known)

    good = max(place for place in range(culprit) if place not in broken)
    bad = min(place for place in range(culprit, length) if place not in broken)
    assert progress.suspects == tuple(line_of(length)[good + 1 : bad + 1])
    assert progress.ending is (Ending.PROVED if bad - good == 1 else Ending.SKIPPED)
    assert len(steps) <= 2 + math.ceil(math.log2(length)) + 2 * len(broken)
    assert not {step.revision for step in steps} & known
    asked = Counter((one.question.aim, one.question.revision) for one in progress.answered)
    assert max(asked.values()) == 1, "nothing is asked twice"


@given(lines, st.data())
def test_what_becomes_known_meanwhile_changes_nothing_of_what_was_asked(line, data):
    """The mainline is watched while the search goes on, and so its broken revisions become known one by one."""
    length, culprit = line
    broken = data.draw(st.sets(st.integers(1, length - 2))) if length > 2 else set()
    order = data.draw(st.permutations(sorted(broken)))
    world, steps = World(slow_from(culprit, length), frozenset(broken)), []
    while (progress := decide(world.line, steps, 1000, {f"c{one}" for one in order[: len(steps)]})).question:
        assert [one.step for one in progress.answered] == steps, "every step still counts"
        steps.append(world.measure(progress.question))
    assert f"c{culprit}" in progress.suspects


@given(lines, st.randoms(use_true_random=False), st.floats(0, 1))
def test_whatever_the_answers_are_it_ends_and_asks_nothing_too_often(line, random, share):
    length, culprit = line
    world = World(slow_from(culprit, length))

    def measure(question: Question) -> BisectionStep:
        if random.random() > share:
            return world.measure(question)
        noise = random.choice([SLOW, SAME, OPEN, WRONG, sight(IMPROVEMENT, 0.8)])
        return BisectionStep(
            question.revision, question.against, {WIDE: noise, FAST: random.choice([SLOW, SAME, OPEN])}
        )

    progress, steps = searched(line_of(length), measure)
    assert progress.ending
    asked = Counter((one.question.aim, one.question.revision) for one in progress.answered)
    assert all(count <= REPEATS * (1 + (aim is Aim.PROVE)) for (aim, _), count in asked.items())
    assert len(progress.answered) == len(steps), "every step counts"
    if progress.ending.state is not SearchState.NOT_REPRODUCED:
        assert progress.suspects
    assert said(progress, NAMES)


@given(lines, st.randoms(use_true_random=False))
def test_one_lie_never_blames_the_innocent(line, random):
    """One step gives the wrong answer: the proof detects it, and the search recovers or blames no revision."""
    length, culprit = line
    world, lie = World(slow_from(culprit, length)), random.randrange(12)
    asked: list[Question] = []

    def measure(question: Question) -> BisectionStep:
        asked.append(question)
        step = world.measure(question)
        if len(asked) - 1 == lie and question.aim is Aim.SEARCH:
            was_slow = step.verdicts[WIDE].outcome is REGRESSION
            return BisectionStep(step.revision, step.against, {WIDE: SAME if was_slow else SLOW})
        return step

    progress, _ = searched(world.line, measure)
    assert progress.culprit == f"c{culprit}"


@given(lines, st.integers(3, 12))
def test_the_budget_is_never_exceeded_and_what_is_left_still_holds_the_culprit(line, most):
    length, culprit = line
    progress, steps = searched(line_of(length), World(slow_from(culprit, length)).measure, max_runs=most)
    assert len(steps) <= most
    assert f"c{culprit}" in progress.suspects
    assert progress.ending in (Ending.PROVED, Ending.SPENT)


@given(st.lists(st.floats(1.0, 1.004), min_size=30, max_size=120))
def test_a_leak_of_small_steps_blames_nobody(factors):
    slowness = [1.0]
    for factor in factors:
        slowness.append(slowness[-1] * factor)
    progress, _ = searched(line_of(len(slowness)), World(slowness).measure)
    assert progress.culprit is None
    if slowness[-1] > 1.02:
        assert progress.ending.state is SearchState.RANGE


def test_a_broken_stretch_is_left_in_ever_longer_strides():
    broken = frozenset(range(30, 90))
    progress, steps = searched(line_of(121), World(slow_from(10, 121), broken).measure)
    assert progress.culprit == "c10"
    assert len(steps) < 20, "and not sixty"


def script(*answers: StepVerdict | str) -> Callable[[Question], BisectionStep]:
    """Answers in the order in which they are given; a text is why it does not build."""
    left = list(answers)

    def measure(question: Question) -> BisectionStep:
        given = left.pop(0)
        if isinstance(given, str):
            return BisectionStep(question.revision, question.against, untested=SKIP, words=given)
        return BisectionStep(question.revision, question.against, {WIDE: given})

    return measure


BROKEN = "error: no such header"
STORIES = {
    "found": (
        5,
        script(SLOW, SLOW, SAME, sight(REGRESSION, 1.3, why="the kernel now spills 50 registers")),
        Ending.PROVED,
        "c2 is 30.0 % slower at rmsnorm.fwd.64x4096.fp32 (norms) against its parent c1 (1.294 to 1.306, 5 fresh "
        "trials): the kernel now spills 50 registers.",
    ),
    "two neighbours: the proof is a second session": (
        2,
        script(SLOW, SLOW),
        Ending.PROVED,
        "c1 is 30.0 % slower at rmsnorm.fwd.64x4096.fp32 (norms) against its parent c0 (1.294 to 1.306, 5 fresh "
        "trials).",
    ),
    "two neighbours that do not repeat it": (
        2,
        script(SLOW, SAME, SAME),
        Ending.ONCE,
        "c1 was slower than c0 once, but not when it was measured again.",
    ),
    "a part of it": (
        3,
        script(SLOW, SAME, sight(REGRESSION, 1.1)),
        Ending.PROVED,
        "c2 is 10.0 % slower at rmsnorm.fwd.64x4096.fp32 (norms) against its parent c1 (1.095 to 1.105, 5 fresh "
        "trials). It makes 36% of the slow-down; other revisions of the line made the rest.",
    ),
    "no regression": (
        9,
        script(SAME),
        Ending.STEADY,
        "c8 is not slower than c0: no change at rmsnorm.fwd.64x4096.fp32 (norms). There is nothing to search for.",
    ),
    "nobody knows": (
        9,
        script(OPEN, OPEN, StepVerdict(INCONCLUSIVE, 1.02, 0.99, 1.05, reason="the interval is still too wide")),
        Ending.UNDECIDED,
        "Whether c8 is slower than c0 stayed undecided in 3 sessions, so no revision is blamed: the interval is "
        "still too wide.",
    ),
    "an end does not build": (
        9,
        script(BROKEN),
        Ending.UNTESTED,
        "An end of the search cannot be measured: error: no such header. Choose another end.",
    ),
    "all between is broken": (
        4,
        script(SLOW, BROKEN, BROKEN),
        Ending.SKIPPED,
        "One of 3 revisions (c1 … c3): some could not be tested (c1: error: no such header; c2: error: "
        "no such header).",
    ),
    "what lies between is wrong": (
        3,
        script(SLOW, StepVerdict(Outcome.INVALID, reason="y is wrong by 3.1e-02")),
        Ending.SKIPPED,
        "One of 2 revisions (c1 … c2): some could not be tested (c1: y is wrong by 3.1e-02).",
    ),
    "an undecided one is asked again": (
        3,
        script(SLOW, OPEN, OPEN, SLOW, SLOW),
        Ending.PROVED,
        "c1 is 30.0 % slower at rmsnorm.fwd.64x4096.fp32 (norms) against its parent c0 (1.294 to 1.306, 5 fresh "
        "trials).",
    ),
    "and then skipped": (
        3,
        script(SLOW, OPEN, OPEN, OPEN),
        Ending.SKIPPED,
        "One of 2 revisions (c1 … c2): some could not be tested (c1: inconclusive).",
    ),
    "the proof stays open": (
        3,
        script(SLOW, SAME, OPEN, OPEN, OPEN),
        Ending.UNPROVED,
        "The search ends at c2, but it was not shown to be slower than its parent c1: "
        "the final comparison was inconclusive.",
    ),
    "small steps": (
        4,
        script(SLOW, SAME, SLOW, SAME, SAME, SLOW, SAME),
        Ending.SMALL_STEPS,
        "No single revision: c3 is 30.0 % slower than c0, half of that is reached at c2, but c2 is not slower than "
        "its parent c1. The slow-down came in small steps.",
    ),
    "the proof missed it once": (
        4,
        script(SLOW, SAME, SLOW, SAME, SAME, SLOW, SLOW),
        Ending.PROVED,
        "c2 is 30.0 % slower at rmsnorm.fwd.64x4096.fp32 (norms) against its parent c1 (1.294 to 1.306, 5 fresh "
        "trials).",
    ),
    "the steps contradict each other": (
        5,
        script(SLOW, SLOW, SAME, SAME, SLOW, SAME),
        Ending.CONTRADICTED,
        "One of 4 revisions (c1 … c4): repeated steps contradicted each other, so no single revision is blamed.",
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_the_end_of_a_search_in_words(story):
    length, measure, ending, words = STORIES[story]
    progress, _ = searched(line_of(length), measure)
    assert progress.ending is ending
    assert said(progress, NAMES) == words


def test_a_search_under_way_in_words():
    world, steps, told = World(slow_from(11, 18)), [], []
    while (progress := decide(world.line, steps, 99)).question:
        told.append(said(progress, NAMES))
        steps.append(world.measure(progress.question))
    assert told == [
        "verifying that c17 is slower than c0",
        "17 of 17 revisions left: c1 … c17",
        "9 of 17 revisions left: c9 … c17",
        "4 of 17 revisions left: c9 … c12",
        "2 of 17 revisions left: c11 … c12",
        "proving that c11 is slower than its parent c10",
    ]


def test_a_merge_is_called_one_and_the_way_into_it_is_offered():
    progress, _ = searched(line_of(2), script(SLOW, SLOW))
    assert said(progress, NAMES, Merge("a" * 40, "b" * 40, 3)).endswith(
        "It is a merge of 3 revisions; bisect inside it with "
        "`kernelwatch bisection start norms aaaaaaaaaa..bbbbbbbbbb --device h200`."
    )
    assert said(progress, NAMES, Merge(None, "b" * 40, 1)).endswith("It is a merge of 1 revision.")


def test_cases_that_the_culprit_does_not_explain_are_named():
    both = {WIDE: sight(REGRESSION, 2.0), FAST: sight(REGRESSION, 1.1)}
    answers = [both, {WIDE: SAME, FAST: SAME}, {WIDE: sight(REGRESSION, 2.0), FAST: SAME}]
    progress, _ = searched(
        line_of(3), lambda question: BisectionStep(question.revision, question.against, answers.pop(0))
    )
    assert progress.culprit == "c2"
    assert "It does not explain rmsnorm.fwd.512x512.fp32: search for those with --case." in said(progress, NAMES)


def test_a_step_in_words():
    progress, _ = searched(line_of(3), script(SLOW, BROKEN))
    assert [answer_in_words(one) for one in progress.answered] == [
        "bad: 30.0 % slower at rmsnorm.fwd.64x4096.fp32 (norms)",
        "skip: error: no such header",
    ]


def test_steps_that_no_question_asks_for_change_nothing_but_the_budget():
    world = World(slow_from(3, 8))
    foreign = BisectionStep("c9", "c0", {WIDE: SLOW})
    assert decide(world.line, [foreign], 9).question == Question(Aim.VERIFY, "c7", "c0")
    assert decide(world.line, [foreign] * 9, 9).ending is Ending.SPENT
