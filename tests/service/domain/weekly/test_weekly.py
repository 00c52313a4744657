"""Weeks of the calendar, and the time at stake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.weekly.weeks import ConfirmedChange, MovedSeries, Week, movers, time_at_stake, totals
from service.errors import BadInput

CASE = "rmsnorm.fwd.4096x1024.bf16"


@pytest.mark.parametrize(
    ("name", "monday", "sunday", "after"),
    [
        ("2026-W47", "2026-11-16", "2026-11-22", "2026-W48"),
        ("2026-W53", "2026-12-28", "2027-01-03", "2027-W01"),
        ("2025-W01", "2024-12-30", "2025-01-05", "2025-W02"),
        ("2024-W09", "2024-02-26", "2024-03-03", "2024-W10"),
    ],
)
def test_a_week_is_from_monday_to_sunday(name: str, monday: str, sunday: str, after: str) -> None:
    week = Week.parse(name)
    assert (str(week.monday), str(week.sunday), str(week.next)) == (monday, sunday, after)
    assert week.next.previous == week


@given(st.floats(min_value=5e7, max_value=4e9))
def test_every_moment_is_in_one_week(seconds: float) -> None:
    week = Week.at(seconds)
    assert week.start <= seconds < week.end
    assert Week.parse(str(week)) == week
    assert week.end - week.start == 604_800


@pytest.mark.parametrize("name", ["", "2026", "2026-W0", "2026-W00", "2025-W53", "2026-w47", "2026-W٤٧", "1970-W01"])
def test_what_is_no_week_is_refused_with_an_example_or_a_range(name: str) -> None:
    with pytest.raises(BadInput, match=r"as in 2026-W47|it has the weeks 1 to 5[23]"):
        Week.parse(name)


@pytest.mark.parametrize(
    ("median", "ratio", "stake"),
    [(120.0, 1.2, 20.0), (80.0, 0.8, -20.0), (100.0, 1.0, 0.0), (None, 1.2, None), (100.0, None, None)],
)
def test_time_at_stake_is_the_median_less_what_it_would_be(
    median: float | None, ratio: float | None, stake: float | None
) -> None:
    assert time_at_stake(median, ratio) == (None if stake is None else pytest.approx(stake))


def change(
    ratio: float, median: float | None, case: str = CASE, run_id: int = 1, device: str = "h200"
) -> ConfirmedChange:
    return ConfirmedChange(MovedSeries("norms", device, "norms", case), run_id, f"c{run_id}", "work", ratio, median)


def test_movers_have_the_most_time_at_stake_first_whatever_its_sign() -> None:
    small, large = "rmsnorm.fwd.8x8.bf16", "rmsnorm.bwd.32768x4096.bf16"
    found = movers([change(2.0, 4.0, small), change(0.9, 90.0, large), change(1.05, 105.0)])
    assert [(one.series.case, round(one.stake_us, 3)) for one in found] == [(large, -10.0), (CASE, 5.0), (small, 2.0)]


def test_a_case_that_two_revisions_moved_has_a_step_of_each() -> None:
    found = movers([change(1.1, 110.0, run_id=1), change(1.2, 132.0, run_id=2), change(0.5, 66.0, run_id=3)])
    steps = [(one.run_id, one.ratio, round(one.stake_us, 3)) for one in found]
    assert steps == [(3, 0.5, -66.0), (2, 1.2, 22.0), (1, 1.1, 10.0)]
    [total] = totals(found)
    assert (total.slower_cases, total.faster_cases, round(total.net_us)) == (2, 1, -34)


def test_memory_has_no_time_at_stake_and_metrics_are_summed_apart() -> None:
    found = movers(
        [
            change(1.5, 3e9, f"{CASE}.memory"),
            change(1.2, 120.0),
            change(0.5, 10.0, "rmsnorm.bwd.8x8.bf16"),
            change(1.1, 1.1e6, f"{CASE}.compile"),
            change(1.1, None, "rmsnorm.fwd.9x9.bf16"),
            change(1.1, 11.0, device="cpu"),
        ]
    )
    sums = [(one.device, one.metric, one.slower_cases, one.faster_cases, round(one.net_us)) for one in totals(found)]
    assert sums == [("cpu", "kernel", 1, 0, 1), ("h200", "kernel", 1, 1, 10), ("h200", "compile", 1, 0, 100_000)]
