"""Two texts next to each other, and the strip of a bisection."""

import math
import random
import re

import pytest

from dashboards.revision_strips import MAX_PLACES, Known, search_strip
from service.domain.bisection.search import Aim, Answer, Answered, BisectionStep, Progress, Question
from service.domain.codefacts.comparison import MAX_EDITS, MAX_SHOWN, compared, hunks
from service.domain.codefacts.measured import comparable
from service.domain.states import Ending
from tests.dashboards.inspection import Drawn

BEFORE = "\n".join(f"line {n}" for n in range(40))


def pairs(before: str, after: str) -> list[list[tuple[str | None, str | None]]]:
    """What differs of each hunk."""
    return [[(one.before, one.after) for one in hunk if not one.same] for hunk in hunks(before, after)]


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
    assert (hunk[0].before_number, hunk[0].after_number) == (None, 1)
    assert (hunk[1].before_number, hunk[1].after_number) == (1, 2)


def test_endless_texts_have_bounds() -> None:
    long = "\n".join("x" * 10_000 for _ in range(9000))
    found = hunks(long, long.replace("x", "y"))
    assert sum(len(one) for one in found) <= MAX_SHOWN
    assert max(len(pair.before or "") for one in found for pair in one) <= 240


def test_a_comparison_has_every_line_of_both_sides() -> None:
    draw = random.Random(1)
    for _ in range(500):
        old, new = ([draw.choice("abcd") for _ in range(draw.randrange(14))] for _ in range(2))
        found = compared(old, new, old, new)
        assert found.equal == (old == new)
        assert len(old) - found.removed == len(new) - found.added
        for pair in (pair for hunk in found.hunks for pair in hunk):
            assert pair.before is None or pair.before == old[(pair.before_number or 0) - 1]
            assert pair.after is None or pair.after == new[(pair.after_number or 0) - 1]
            assert not pair.same or pair.before == pair.after


def test_texts_without_a_common_line_are_not_aligned() -> None:
    old, new = ([f"{side} {n}" for n in range(MAX_EDITS)] for side in ("old", "new"))
    found = compared(old, new, old, new, shown=10)
    assert (found.unaligned, found.added, found.removed) == (True, MAX_EDITS, MAX_EDITS)
    assert found.hidden == MAX_EDITS - 10
    assert not compared(old, [*old[:9], "x", *old[10:]], old, [*old[:9], "x", *old[10:]]).unaligned


def test_lines_are_compared_by_what_counts_and_shown_as_they_are() -> None:
    old, new = ["IADD R1, R2 ;", "EXIT ;"], ["IADD R7, R9 ;", "EXIT ;"]
    assert compared(old, new, comparable("sass", old), comparable("sass", new)).equal
    found = compared(old, new, comparable("ptx", old), comparable("ptx", new))
    assert [(one.before, one.after) for one in found.hunks[0] if not one.same] == [(old[0], new[0])]


def answered(revision: str, answer: Answer) -> Answered:
    return Answered(Question(Aim.SEARCH, revision, "c0"), BisectionStep(revision, "c0"), answer)


def test_a_strip_says_what_is_known_of_each_revision() -> None:
    line = [f"c{n}" for n in range(7)]
    steps = (answered("c3", Answer.GOOD), answered("c4", Answer.SKIP))
    going = Progress(line, steps, {("norms", "case"): math.log(1.2)}, ("c4", "c5", "c6"), None)
    strip, said = search_strip(line, going, {"c3": 11}, ("c5", 12))
    kinds = [Known.GOOD, Known.CLEARED, Known.CLEARED, Known.GOOD, Known.SKIPPED, Known.PENDING, Known.BAD]
    places = Drawn(strip).root.findall(".//rect/title")
    assert [one.text for one in places] == [f"{sha}: {kind.value}" for sha, kind in zip(line, kinds, strict=True)]
    assert "2 is not the culprit" in said
    links = [(one.get("href"), one.get("aria-label")) for one in Drawn(strip).root.iterfind(".//a")]
    assert links == [("/runs/11", "c3 as fast as the good end"), ("/runs/12", "c5 measured now")]

    ended = Progress(line, (*steps, answered("c5", Answer.BAD)), {}, ("c5",), None, Ending.PROVED)
    drawn = Drawn(search_strip(line, ended, {}, None)[0]).root.findall(".//rect")
    assert [one.get("class") for one in drawn][5] == "rev culprit"


def test_a_long_line_fits_on_a_page() -> None:
    line = [f"c{n}" for n in range(5000)]
    progress = Progress(line, (answered("c2500", Answer.GOOD),), {}, tuple(line[2501:]))
    titles = [one.text or "" for one in Drawn(search_strip(line, progress, {}, None)[0]).root.iterfind(".//title")]
    assert len(titles) < MAX_PLACES
    assert sum(1 + int((re.findall(r"and (\d+) more", one) or [0])[0]) for one in titles) == len(line)
