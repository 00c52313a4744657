"""Scales, ticks and paths of the figures that the server draws."""

import math
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.drawing import Figure, Scale, apart, area, bars, dots, line, log_ticks, ticks, time_ticks
from tests.dashboards.inspection import Drawn


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0.0, 1.0, 6, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.98, 1.25, 6, [1.0, 1.05, 1.1, 1.15, 1.2, 1.25]),
        (362.0, 396.0, 4, [370.0, 380.0, 390.0]),
        (7.3, 7.3, 6, [7.3]),
        (0.0, 1e-6, 3, [0.0, 5e-7, 1e-6]),
    ],
)
def test_ticks_are_at_round_numbers(low: float, high: float, most: int, expected: list[float]) -> None:
    assert ticks(low, high, most) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (1.0, 100.0, 8, [1, 2, 5, 10, 20, 50, 100]),
        (3.0, 2000.0, 6, [3, 10, 30, 100, 300, 1000]),
        (1.0, 1e9, 4, [1, 1e3, 1e6, 1e9]),
        (0.98, 1.25, 6, [1.0, 1.05, 1.1, 1.15, 1.2, 1.25]),
    ],
)
def test_ticks_of_a_logarithmic_axis(low: float, high: float, most: int, expected: list[float]) -> None:
    assert log_ticks(low, high, most) == pytest.approx(expected)


@given(st.floats(1e-9, 1e9), st.floats(1.0001, 1e6), st.integers(2, 20))
def test_ticks_are_within_the_axis_in_order_and_few(low: float, factor: float, most: int) -> None:
    high = low * factor
    for found in (ticks(low, high, most), log_ticks(low, high, most)):
        assert len(found) <= most
        assert found == sorted(set(found))
        assert all(low * (1 - 1e-6) <= one <= high * (1 + 1e-6) for one in found)


@pytest.mark.parametrize(
    ("begin", "days", "expected"),
    [
        ("2026-11-21T00:00", 0.25, ["21 Nov", "01:00", "02:00", "03:00", "04:00", "05:00", "06:00"]),
        ("2026-11-19T12:00", 5, ["20 Nov", "21 Nov", "22 Nov", "23 Nov", "24 Nov"]),
        ("2026-09-10T00:00", 130, ["Oct 2026", "Nov 2026", "Dec 2026", "Jan 2027"]),
        ("2020-03-01T00:00", 365 * 6, ["2021", "2022", "2023", "2024", "2025", "2026"]),
    ],
)
def test_dates_are_at_the_begin_of_hours_days_months_and_years(begin: str, days: float, expected: list[str]) -> None:
    low = datetime.fromisoformat(begin).replace(tzinfo=UTC).timestamp()
    assert [label for _, label in time_ticks(low, low + days * 86400)] == expected


@given(st.floats(0, 4e9), st.floats(1, 4e8))
def test_dates_are_within_the_axis_and_few(low: float, length: float) -> None:
    found = [at for at, _ in time_ticks(low, low + length)]
    assert len(found) <= 9
    assert all(low - 1e-6 <= at <= low + length + 1e-6 for at in found)


@pytest.mark.parametrize("log", [False, True])
def test_a_scale_maps_its_ends_and_clips_on_request(log: bool) -> None:
    scale = Scale(1.0, 100.0, 200.0, 0.0, log=log)
    assert (scale(1.0), scale(100.0)) == (200.0, 0.0)
    assert scale(10.0) == pytest.approx(100.0 if log else 200 - 200 * 9 / 99)
    assert scale(1000.0) < 0.0 == scale.within(1000.0)


def test_a_scale_without_a_length_has_its_middle() -> None:
    assert Scale(5.0, 5.0, 0.0, 10.0)(5.0) == 5.0


def test_paths_are_short_and_have_no_spare_digits() -> None:
    assert line([(0, 0), (1.25, math.pi)]) == "M0 0L1.2 3.1"
    assert dots([(1, 2), (3, 4)]) == "M1 2h0M3 4h0"
    assert bars([(1, 2, 9)]) == "M1 2V9"
    assert area([(0, 1, 2), (5, 1, 3)]) == "M0 1L5 1L5 3L0 2Z"
    assert area([]) == ""


HOSTILE = "</text><script>alert('\"')</script>"


def test_what_strangers_wrote_is_text_in_a_figure() -> None:
    figure = Figure(10, 10, HOSTILE, kind="some")
    figure.text(1, 2, HOSTILE, title=HOSTILE)
    with figure.within("a", HOSTILE, href=HOSTILE):
        figure.add("rect", kind=HOSTILE, x=1.25)
    assert "<script" not in figure.__html__()
    [drawn] = Drawn(figure).root
    assert (drawn.get("aria-label"), drawn.get("role"), drawn.get("class")) == (HOSTILE, "img", "some")
    assert Drawn(figure).texts() == [(1.0, 2.0, HOSTILE)]
    assert [one.text for one in drawn.iterfind(".//title")] == [HOSTILE, HOSTILE]
    assert [one.attrib for one in drawn.iterfind("a/rect")] == [{"class": HOSTILE, "x": "1.2"}]


def test_a_figure_without_a_name_is_decoration() -> None:
    assert Figure(10, 2.5).__html__() == '<svg viewBox="0 0 10 2.5" aria-hidden="true"></svg>'


@given(st.lists(st.floats(0, 100), max_size=8))
def test_names_in_a_column_keep_their_order_and_their_distance(places: list[float]) -> None:
    moved = apart(places, 10, 0, 100)
    ordered = [moved[n] for n in sorted(range(len(places)), key=places.__getitem__)]
    assert all(after - before >= 9.999 for before, after in pairwise(ordered))
    assert all(0 <= one <= 100 for one in moved)
