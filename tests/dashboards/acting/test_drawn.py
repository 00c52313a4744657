"""Two texts next to each other, and the strip of a bisection."""

import math

import pytest

from dashboards.revision_strips import MAX_PLACES, Known, search_strip
from service.domain.bisection.classify import Answer, BisectionStep
from service.domain.bisection.search import Aim, Answered, Ending, Progress, Question
from service.domain.codefacts.side_by_side import MAX_SHOWN, hunks

BEFORE = "\n".join(f"line {n}" for n in range(40))


def pairs(before: str, after: str) -> list[list[tuple[str | None, str | None]]]:
    """What differs of each hunk."""
    return [[(one.before, one.after) for one in hunk.pairs if not one.same] for hunk in hunks(before, after)]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (BEFORE, []),
        (BEFORE.replace("line 7\n", "seven\n"), [[("line 7", "seven")]]),
        (BEFORE.replace("line 7\n", ""), [[("line 7", None)]]),
        (BEFORE.replace("line 7\n", "line 7\nmore\n"), [[(None, "more")]]),
        (BEFORE.replace("line 3\n", "three\n").replace("line 30\n", ""), [[("line 3", "three")], [("line 30", None)]]),
    ],
)
def test_only_what_differs_is_shown(after: str, expected: list[list[tuple[str | None, str | None]]]) -> None:
    assert pairs(BEFORE, after) == expected


def test_numbers_are_those_of_each_side() -> None:
    [hunk] = hunks(BEFORE, "new\n" + BEFORE)
    assert (hunk.pairs[0].before_number, hunk.pairs[0].after_number) == (None, 1)
    assert (hunk.pairs[1].before_number, hunk.pairs[1].after_number) == (1, 2)


def test_endless_texts_have_bounds() -> None:
    long = "\n".join("x" * 10_000 for _ in range(9000))
    found = hunks(long, long.replace("x", "y"))
    assert sum(len(one.pairs) for one in found) <= MAX_SHOWN
    assert max(len(pair.before or "") for one in found for pair in one.pairs) <= 240


def answered(revision: str, answer: Answer) -> Answered:
    return Answered(Question(Aim.SEARCH, revision, "c0"), BisectionStep(revision, "c0"), answer)


def test_a_strip_says_what_is_known_of_each_revision() -> None:
    line = [f"c{n}" for n in range(7)]
    steps = (answered("c3", Answer.GOOD), answered("c4", Answer.SKIP))
    going = Progress(line, steps, {("norms", "case"): math.log(1.2)}, ("c4", "c5", "c6"), None)
    strip = search_strip(line, going, {"c3": 11}, ("c5", 12))
    kinds = [Known.GOOD, Known.CLEARED, Known.CLEARED, Known.GOOD, Known.SKIPPED, Known.PENDING, Known.BAD]
    assert [one.known for one in strip.places] == kinds
    assert [one.run_id for one in strip.places] == [None, None, None, 11, None, 12, None]

    ended = Progress(line, (*steps, answered("c5", Answer.BAD)), {}, ("c5",), None, Ending.PROVED)
    assert search_strip(line, ended, {}, None).places[5].known is Known.CULPRIT


def test_a_long_line_fits_on_a_page() -> None:
    line = [f"c{n}" for n in range(5000)]
    strip = search_strip(line, Progress(line, (answered("c2500", Answer.GOOD),), {}, tuple(line[2501:])), {}, None)
    assert len(strip.places) < MAX_PLACES
    assert sum(one.count for one in strip.places) == len(line)
