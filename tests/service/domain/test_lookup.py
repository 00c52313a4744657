"""What a text in the search field may mean."""

import pytest

from service.ledger.lookup import NUMBERED, HitKind, Lookup, parse


@pytest.mark.parametrize(
    ("query", "number", "kinds", "repository", "sha"),
    [
        ("7", 7, NUMBERED, None, None),
        ("#7", 7, NUMBERED, None, None),
        ("!7", 7, NUMBERED, None, None),
        ("run 7", 7, (HitKind.RUN,), None, None),
        ("Pull request #7", 7, (HitKind.PULL,), None, None),
        ("octo/norms#7", 7, (HitKind.PULL,), "octo/norms", None),
        ("norms !7", 7, (HitKind.PULL,), "norms", None),
        ("1234", 1234, NUMBERED, None, "1234"),
        ("3F2A", None, NUMBERED, None, "3f2a"),
        ("3f2", None, NUMBERED, None, None),
        ("0", None, NUMBERED, None, None),
        ("9" * 19, None, NUMBERED, None, "9" * 19),
        ("rmsnorm 4096", None, NUMBERED, None, None),
        ("' OR 1=1 --", None, NUMBERED, None, None),
    ],
)
def test_meanings(
    query: str, number: int | None, kinds: tuple[HitKind, ...], repository: str | None, sha: str | None
) -> None:
    found = parse(query)
    assert (found.number, found.kinds, found.repository, found.sha) == (number, kinds, repository, sha)


def test_a_query_is_one_line_of_bounded_length() -> None:
    assert parse("  a\0b\n\tc ") == Lookup("ab c", ("ab", "c"))
    assert len(parse("x " * 1000).text) <= 200
    assert len(parse("x " * 1000).words) == 8
    assert parse(" \n ") == Lookup()
