"""Changes of many cases at about one revision are one incident."""

import pytest

from service.domain.changepoints import Change, Level, Marked, incidents


def marked(case: str, ordinal: int, provider: str = "quack") -> Marked:
    return Marked(provider, case, Change(ordinal, ordinal - 1, 1.05, 1.04, 1.06, Level.BLOCK, 1e-9))


@pytest.mark.parametrize(
    ("ordinals", "groups"),
    [
        ([], []),
        ([5], [[5]]),
        ([9, 5, 6], [[5, 6], [9]]),
        ([5, 7, 9, 12], [[5, 7, 9], [12]]),
        ([5, 5, 5], [[5, 5, 5]]),
    ],
)
def test_changes_of_many_cases_at_one_time_are_one_incident(ordinals, groups):
    found = incidents([marked(f"case{place}", ordinal) for place, ordinal in enumerate(ordinals)])
    assert [[one.change.ordinal for one in incident] for incident in found] == groups


def test_incidents_do_not_depend_on_the_order_in_which_cases_are_looked_at():
    every = [marked("a", 5), marked("b", 6), marked("a", 20), marked("b", 5, provider="triton")]
    assert incidents(every) == incidents(every[::-1])
    assert len(incidents(every)) == 2
    assert len(incidents(every, within=0)) == 3


def test_a_negative_distance_is_refused():
    with pytest.raises(ValueError, match="0 or more, not -1"):
        incidents([], within=-1)
