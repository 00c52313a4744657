"""Simulated runs through `judge` and `wanted`: few enough to be quick, with seeds, so that they say the same each time.

`make bench-families` has the rates; docs/statistics.md says what they are.
"""

from collections import Counter
from dataclasses import replace

import pytest

from service.domain.policy.policy import Policy
from service.domain.verdicts.judge import CHANGES, judge, wanted
from tests.studies.families import EDGE, harmless, planted, score, table, told_alone
from tests.studies.simulated import CASES, NOISES, SESSIONS, Family, Session, names

NOISE = {noise.name: noise for noise in NOISES}


def scored(noise: str, truth: str, families: int) -> Counter[str]:
    return sum((score(NOISE[noise], truth, seed) for seed in range(families)), Counter[str]())


def share(seen: Counter[str], kind: str, what: str) -> float:
    return seen[f"{kind} {what}"] / seen[f"{kind} cases"]


def test_harmless_families_alarm_nobody_and_are_cleared_at_once():
    seen = scored("facts", "harmless", 12)
    assert seen["found"] == 0
    assert share(seen, "0.0% long", "steady") > 0.999
    assert share(seen, "0.0% long", "trials") < 3.2


def test_two_percent_is_found_in_five_launches_and_one_percent_in_eight():
    seen = scored("facts", "planted", 12)
    assert seen["false"] == 0
    assert share(seen, "2.0% long", "told by 5") > 0.9
    assert share(seen, "1.0% long", "told by 8") > 0.75
    assert share(seen, "1.0% short", "steady") > 0.9, "2 % is what matters there"


@pytest.mark.parametrize("noise", ["outliers", "clocks", "loud"])
def test_where_launches_vary_much_it_says_so_and_does_not_guess(noise):
    seen = scored(noise, "harmless", 3)
    assert seen["found"] == 0
    assert seen["0.0% long inconclusive"] > 0, "never silently green"
    assert share(seen, "0.0% long", "trials") > 4


@pytest.mark.parametrize("noise", SESSIONS)
def test_what_a_session_adds_to_all_its_launches_alarms_nobody_where_a_control_shares_it(noise):
    seen = scored(noise, "harmless", 3)
    assert seen["found"] == 0
    assert share(seen, "0.0% long", "trials") < 10, "more trials do not average it out, so none are asked for"


def test_without_a_control_the_same_sessions_alarm():
    """What the controls are for: the offsets cannot be seen in the trials of the head and its baseline."""
    alone = replace(NOISE["large offsets"], controlled=False)
    assert sum((score(alone, "harmless", seed) for seed in range(3)), Counter[str]())["alarmed"] == 3


def test_a_session_ends_when_nothing_is_wanted_any_more():
    policy = Policy()
    cells = Session(Family(NOISE["facts"], planted(7), 7), names()).until_decided(policy)
    assert wanted(cells, policy) == {}
    told = judge(cells, policy)
    assert all(bool(cell.confirmed.candidate) is told[cell.name].suspected for cell in cells)
    assert any(one.outcome in CHANGES for one in told.values())


def test_a_family_is_what_it_says_it_is():
    family = Family(NOISE["facts"], harmless(0), 3)
    assert len(set(names())) == CASES
    assert (family.took_us < 100).mean() == pytest.approx(0.5, abs=0.1)
    assert score(NOISE["drift"], "planted", 5) == score(NOISE["drift"], "planted", 5), "a seed says all"


def test_what_is_told_is_right_where_all_else_is_just_no_change_yet():
    seen = scored("unlike", "mixed", 4)
    assert seen["0.4% long suspected"] > 10, "they look like changes at first,"
    assert (seen["found"] > 40, seen["false"]) == (True, 0)


def test_a_case_without_a_family_is_told_when_it_moved_and_not_when_it_did_not():
    seeds = range(20)
    assert [told_alone(0.0025, effect, seeds) for effect in (0.0, EDGE, 0.05)] == [0, 0, 20]


def test_the_tables_say_how_many_families_they_rest_on():
    said = table({"facts": {"harmless": scored("facts", "harmless", 1), "planted": scored("facts", "planted", 1)}})
    assert "| trial sd .25 %, the same for all | 1 | 0.0000 |" in said
