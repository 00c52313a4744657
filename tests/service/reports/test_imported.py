"""Series that were measured elsewhere: levels in their history, in the direction of their unit."""

import pytest

from service.domain.states import Better, Missing
from service.reports.imported import ImportedPoint, imported_amount, imported_series, pairs_of


def point(n: int, value: float | None, *, revision: str = "", unit: str = "us", better: Better = Better.SMALLER):
    missing = Missing.NULL if value is None else None
    return ImportedPoint(revision or f"c{n}", 60.0 * n, value, unit, better, missing, 1, "asv", "ci-7")


def history(values: list[float | None], **fields: object):
    return imported_series([point(n, value, **fields) for n, value in enumerate(values)])  # type: ignore[arg-type]


NOISE = [0.0, 0.02, -0.01, 0.01, -0.02, 0.015, 0.0, -0.015, 0.01, 0.0]


@pytest.mark.parametrize(("better", "worse"), [(Better.SMALLER, True), (Better.LARGER, False)])
def test_a_step_is_worse_or_better_by_the_direction(better: Better, worse: bool) -> None:
    series = history([7.0 + d for d in NOISE] + [7.7 + d for d in NOISE], better=better)
    [change] = series.changes
    assert (change.ordinal, series.worse(change)) == (10, worse)
    assert change.ratio == pytest.approx(1.1, abs=0.01)
    assert [(level.first, level.last) for level in series.levels] == [(0, 9), (10, 19)]
    assert [level.value for level in series.levels] == pytest.approx([7.0, 7.7], abs=0.01)


def test_noise_and_short_histories_have_no_change() -> None:
    assert not history([7.0 + d for d in NOISE * 2]).changes
    assert not history([7.0, 7.0, 9.0, 9.0]).changes
    assert not history([0.0, 0.0, 1.0], unit="count").changes


def test_what_has_no_number_or_another_unit_is_in_no_level() -> None:
    points = [point(0, 5.0, unit="GB/s"), point(1, 7.0), point(2, None), point(3, 9.0, revision="c1")]
    series = imported_series(points)
    assert [(one.revision, one.value) for one in series.revisions] == [("c1", 8.0)]
    assert not imported_series([point(0, None)]).levels


def test_pairs_are_in_order_of_how_much_worse_they_became() -> None:
    larger = {"unit": "GB/s", "better": Better.LARGER}
    sent = {
        "slower": (point(0, 7.0, revision="a"), point(1, 7.7, revision="b")),
        "less": (point(0, 900.0, revision="a", **larger), point(1, 450.0, revision="b", **larger)),
        "faster": (point(0, 7.0, revision="a"), point(1, 3.5, revision="b")),
        "gone": (point(0, 7.0, revision="a"), point(1, None, revision="b")),
        "other unit": (point(0, 7.0, revision="a"), point(1, 7.0, revision="b", unit="count")),
    }
    points = [(("cpu", "norms", case), one) for case, both in sent.items() for one in both]
    points.append((("cpu", "norms", "alone"), point(0, 7.0, revision="a")))
    pairs = pairs_of(points, "a", "b")
    assert [pair.case for pair in pairs] == ["less", "slower", "gone", "other unit", "faster"]
    assert [pair.ratio for pair in pairs] == [0.5, pytest.approx(1.1), None, None, 0.5]


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (7.31, "us", "7.31 µs"),
        (0.0021, "us", "0.0021 µs"),
        (73_100.0, "us", "73.1 ms"),
        (16_777_216.0, "bytes", "16.8 MB"),
        (3.0, "count", "3"),
        (812.3, "GB/s", "812 GB/s"),
        (3.85, "ratio", "3.85 ratio"),
        (2.5e9, "items/s", "2.5e+09 items/s"),
    ],
)
def test_a_value_is_written_with_its_unit(value: float, unit: str, shown: str) -> None:
    assert imported_amount(value, unit) == shown
