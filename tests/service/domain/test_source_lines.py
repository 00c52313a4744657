"""Places in the source: what counts as one, and which of its lines a change touches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.codefacts.diff import moved_definition
from service.domain.codefacts.texts import SourceLines, first_changed

SAID = {"file": "norms/rms.py", "line": 12, "first": 10, "last": 40}
KERNEL = SourceLines("norms/rms.py", 12, 10, 40)


def test_a_place_is_read_as_it_was_written() -> None:
    assert SourceLines.read(SAID) == KERNEL
    changed = SourceLines("norms/rms.py", 12, 10, 40, (30, 31))
    assert SourceLines.read(changed.as_json()) == changed
    assert (KERNEL.at, KERNEL.shown) == ("norms/rms.py:12", (12, 12))
    assert (changed.at, changed.short, changed.shown) == ("norms/rms.py:30", "rms.py:30", (30, 31))


@pytest.mark.parametrize(
    "said",
    [
        None,
        "norms/rms.py:12",
        {},
        {**SAID, "file": "/work/state/environments/1/tree/norms/rms.py"},
        {**SAID, "file": "../rms.py"},
        {**SAID, "file": "norms/../../rms.py"},
        {**SAID, "file": "norms//rms.py"},
        {**SAID, "file": ""},
        {**SAID, "file": "norms/rms.py\n"},
        {**SAID, "file": "x" * 301},
        {**SAID, "file": 3},
        {**SAID, "line": 0},
        {**SAID, "line": True},
        {**SAID, "line": "12"},
        {**SAID, "line": 41},
        {**SAID, "line": 9},
        {**SAID, "last": 10**9},
    ],
)
def test_what_is_no_place_in_a_checkout_is_none(said: object) -> None:
    assert SourceLines.read(said) is None


@pytest.mark.parametrize("changed", [[9, 12], [12, 41], [20, 19], [12], "12", [None, None], {"12": 13}])
def test_changed_lines_outside_of_the_definition_do_not_count(changed: object) -> None:
    assert SourceLines.read({**SAID, "changed": changed}) == KERNEL


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(
    st.sampled_from(["file", "line", "first", "last", "changed"]), one)))  # fmt: skip
def test_nothing_that_a_contender_says_raises(said: object) -> None:
    SourceLines.read(said)


@pytest.mark.parametrize(
    ("hunks", "changed"),
    [
        ([], None),
        ([(1, 9)], None),
        ([(41, 60)], None),
        ([(1, 10)], (10, 10)),
        ([(30, 31), (35, 35)], (30, 31)),
        ([(35, 35), (30, 31)], (30, 31)),
        ([(38, 60)], (38, 40)),
        ([(1, 100)], None),  # all of it is new
    ],
)
def test_the_first_change_inside_of_a_definition_is_shown(
    hunks: list[tuple[int, int]], changed: tuple[int, int] | None
) -> None:
    assert first_changed(KERNEL, hunks) == changed


def facts(*kernels: tuple[str, str, int], called: int | None = 50) -> dict[str, object]:
    """Facts of a case: names, machine code and lines of its kernels, and the line of the function it calls."""

    def at(line: int) -> dict[str, object]:
        return {"file": "norms.py", "line": line, "first": line, "last": line + 5}

    listed = [{"name": name, "sass": sass, **({"source": at(line)} if line else {})} for name, sass, line in kernels]
    return {"triton": listed, **({"source": at(called)} if called else {})}


BASE = facts(("stats", "a", 10), ("scale", "b", 20))


@pytest.mark.parametrize(
    ("head", "line"),
    [
        (facts(("stats", "a", 10), ("scale", "B", 22)), 22),
        (facts(("stats", "A", 10), ("scale", "B", 22)), 10),
        (facts(("stats", "a", 10), ("scale", "b", 20)), 50),  # the same kernels: something around them
        (facts(("stats", "a", 10), ("scale", "b", 20), ("copy", "c", 30)), 30),
        (facts(("stats", "A", 0), ("scale", "b", 20)), 50),  # a kernel of a library, which the function calls
        (facts(("stats", "A", 0), called=None), None),
        ({}, None),
    ],
)
def test_the_code_of_a_case_is_where_it_differs(head: dict[str, object], line: int | None) -> None:
    found = moved_definition(head, BASE)
    assert (found.line if found else None) == line
