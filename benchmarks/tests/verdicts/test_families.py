"""Simulated runs through `judge` and `wanted`: few enough to be quick, with seeds, so that they say the same each time.

`make bench-families` has the rates; docs/measurements/2026-11-24-cpu-power/errors.md says what they are.
"""

from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest

from benchmarks.verdicts.families import NOISE, TRUTHS, Row, planted, reported_alone, score, scored
from benchmarks.verdicts.left_out import UNITS, family_of, known_without
from benchmarks.verdicts.simulated import CASES, NOISES, PAST, SESSIONS, Family, Session
from benchmarks.verdicts.tables import at_most, tables
from service.domain.policy.policy import Policy
from service.domain.verdicts.analysis import NONE_KNOWN
from service.domain.verdicts.judge import CHANGES, judge, wanted

H200, QUIET = Row("h200", CASES), Row("h200", CASES, PAST, 0.25)


def many(row: Row, truth: str, families: int) -> Counter[str]:
    return sum((score(row, truth, seed) for seed in range(families)), Counter[str]())


def share(seen: Counter[str], kind: str, what: str) -> float:
    return seen[f"{kind} {what}"] / seen[f"{kind} cases"]


def test_harmless_families_alarm_nobody_and_are_cleared_at_once():
    seen = many(H200, "harmless", 6)
    assert seen["alarmed"] == 0
    assert share(seen, "0% long", "steady") > 0.999
    assert share(seen, "0% long", "trials") < 3.2


@pytest.mark.parametrize("row", [H200, Row("h200", 6)], ids=["200 cases", "6 cases"])
def test_with_the_noise_of_an_h200_two_percent_is_found_in_8_trials_and_one_in_16(row):
    seen = many(row, "planted", 10 if row.size == CASES else 100)
    assert seen["false"] == 0
    assert share(seen, "2% long", "within 8") > 0.95
    assert share(seen, "2% short", "within 8") > 0.9
    assert share(seen, "1% long", "within 16") > 0.9
    assert share(seen, "1% short", "steady") > 0.9, "2 % is what matters there"


@pytest.mark.parametrize(("size", "families"), [(6, 100), (CASES, 3)])
def test_a_calibration_from_a_quieter_time_decides_as_one_from_today(size, families):
    quiet, usual = (many(replace(row, size=size), "harmless", families) for row in (QUIET, H200))
    assert quiet["alarmed"] == usual["alarmed"] == 0
    for what in ("steady", "suspected", "inconclusive", "trials"):
        assert share(quiet, "0% long", what) == pytest.approx(share(usual, "0% long", what), abs=0.01)
    assert quiet["inside steady"] / quiet["interval steady"] > 0.94


def test_nor_do_offsets_of_a_quieter_time_raise_an_alarm():
    seen = many(Row("offsets", 6, PAST, 0.25), "harmless", 300)
    assert seen["alarmed"] == 0
    assert seen["inside steady"] / seen["interval steady"] > 0.92


@pytest.mark.parametrize("noise", ["outliers", "clocks", "loud"])
def test_where_trials_vary_much_it_says_so_and_does_not_guess(noise):
    seen = many(Row(noise, CASES), "harmless", 2)
    assert seen["alarmed"] == 0
    assert seen["0% long inconclusive"] > 0, "never silently green"
    assert share(seen, "0% long", "trials") > 4


@pytest.mark.parametrize("noise", SESSIONS)
def test_what_a_session_adds_to_all_its_trials_alarms_nobody_where_a_control_shares_it(noise):
    seen = many(Row(noise, CASES), "harmless", 3)
    assert seen["alarmed"] == 0
    assert share(seen, "0% long", "trials") < 10, "more trials do not average it out, so none are asked for"


def test_without_a_control_the_same_sessions_alarm():
    """What the controls are for: the offsets cannot be seen in the trials of the head and its baseline."""
    alone = replace(NOISE["offsets"], offset=0.005, controlled=False)
    row = Row("offsets", CASES, 0)
    assert sum((score(row, "harmless", seed, alone) for seed in range(3)), Counter[str]())["alarmed"] == 3


def test_a_session_ends_when_nothing_is_wanted_any_more():
    policy, family = Policy(), Family(NOISE["h200"], [0.0] * CASES, 7)
    family.effects = np.array(planted([0.01] * CASES, 7))
    cells = Session(family).until_decided(policy)
    assert wanted(cells, policy) == {}
    judged = judge(cells, policy)
    assert all(bool(cell.confirmed.candidate) is judged[cell.name].suspected for cell in cells)
    assert any(one.outcome in CHANGES for one in judged.values())


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_a_family_is_what_it_says_it_is(noise):
    family = Family(noise, [0.0] * CASES, 3)
    assert len(set(family.names)) == CASES
    assert (family.took_us < 100).mean() == pytest.approx(0.5, abs=0.1)
    row = Row(noise.name, 6)
    assert score(row, "planted", 5) == score(row, "planted", 5), "a seed says all"


def test_what_is_reported_is_right_where_all_else_is_just_no_change_yet():
    seen = many(Row("unlike", CASES), "mixed", 4)
    assert seen["edge long suspected"] > 10, "they look like changes at first,"
    assert seen["false"] == 0
    assert seen["fdp"] == 0


def test_a_case_without_a_family_is_reported_when_it_moved_and_not_when_it_did_not():
    seeds = range(20)
    assert [reported_alone(0.0025, effect, seeds) for effect in (0.0, 0.004, 0.05)] == [0, 0, 20]


@pytest.mark.parametrize("unit", UNITS)
def test_each_stored_session_is_judged_by_what_the_others_know(unit):
    """The rule was not made for this session: nothing of it is known, and no alarm is raised."""
    family, known = family_of(unit, 1), known_without(unit)
    [learned] = known.values()
    assert len({name for _, name in learned.usual} & set(family.names)) >= 0.5 * len(family.names)
    assert scored(family, TRUTHS["harmless"], known, 1)["alarmed"] == 0


def test_something_known_helps_a_run_of_six_cases():
    knowing, not_knowing = (many(Row("h200", 6, past), "planted", 100) for past in (PAST, 0))
    assert share(knowing, "1% long", "within 8") > share(not_knowing, "1% long", "within 8")
    assert share(knowing, "0% long", "trials") < share(not_knowing, "0% long", "trials")


def test_the_tables_say_how_many_families_they_rest_on():
    row = Row("h200", 20, 0)
    counts = score(row, "harmless", 1)
    said = tables([{**asdict(row), "truth": "harmless", "counts": counts}])
    assert "| as measured on the H200; nothing known, harmless | 20 | 1 | 0 |" in said
    assert at_most(0, 300) == pytest.approx(0.00994, abs=1e-5)
    assert row.past == 0
    assert Family(NOISE["h200"], [0.0], 1).past(0) is NONE_KNOWN
