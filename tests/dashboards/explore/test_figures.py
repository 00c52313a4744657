"""Figures to explore as values: their numbers, what a hover says, and their colours."""

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from kernels.cases import Metric
from service.db.models import Revision
from service.domain.states import ComparisonMethod, Direction
from service.domain.verdicts.samples import PairedRatio
from service.ledger.intake import samples
from service.reports.charts.trends import Unit, changes, trend
from service.reports.figures import frame
from service.reports.figures.comparison import comparison_figure
from service.reports.figures.trend import trend_figure
from service.reports.rows import ComparedCase, ComparedSide, RevisionsCompared
from service.reports.views import Point
from tests.dashboards.asking import Get, asking
from tests.dashboards.seed import CASES, Seeded

SERIES = {"device": "h200", "provider": "norms", "case": CASES[1]}
FIGURE = "/api/v1/targets/norms/series/figure"
# Machado, Oliveira and Fernandes, 2009: how linear RGB looks without one of the cones.
SIGHTS = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
}


def traces(figure: Any, *, second: bool = False) -> dict[str, Any]:
    """The traces of a figure, or those of its second part, by name."""
    return {one["name"]: one for one in figure["data"] if ("xaxis" in one) is second}


def measured_points(get: Get, **asked: str) -> list[dict[str, Any]]:
    points = get("/api/v1/targets/norms/series", params=SERIES | asked).json()["points"]
    return [one for one in points if one["median"] is not None]


def test_the_trend_has_the_numbers_of_its_series(get: Get, seeded: Seeded) -> None:
    measured = measured_points(get)
    figure = get(FIGURE, params=SERIES).json()
    own = traces(figure)["median, µs"]
    assert own["y"] == [one["median"] for one in measured]
    assert [at for at, _ in own["customdata"]] == [f"/runs/{one['run_id']}" for one in measured]
    assert [at.replace(" ", "T") for at in own["x"]] == [one["committed_at"][:19] for one in measured]
    assert traces(figure)["quack"]["y"] == [one["sota_median"] for one in measured if one["sota_median"]]
    for one, text in zip(measured, own["text"], strict=True):
        assert one["revision"][:10] in text
        assert one["subject"] in text
        assert "Ada Example, " in text
        assert f"{one['median'] / one['sota_median']:.3f} × quack: {one['sota_median']:.1f} µs" in text
        if one["ratio"] is not None:
            assert f"{one['ratio']:.3f} to its parent, {one['low']:.3f} to {one['high']:.3f}" in text


@pytest.mark.parametrize(
    ("unit", "title", "value"),
    [
        ("amount", "µs", lambda one: one["median"]),
        ("gb_s", "GB/s", lambda one: one["gb_s"]),
        ("ratio", "× SOTA", lambda one: one["median"] / one["sota_median"]),
    ],
)
def test_a_unit_changes_the_axis(get: Get, seeded: Seeded, unit: str, title: str, value: Any) -> None:
    series = measured_points(get)
    figure = get(FIGURE, params=SERIES | {"unit": unit}).json()
    assert figure["layout"]["yaxis"]["title"]["text"] == title
    assert traces(figure)[f"median, {title}"]["y"] == pytest.approx([value(one) for one in series])


def test_dates_days_and_other_series(get: Get, seeded: Seeded) -> None:
    series = measured_points(get)
    middle = series[len(series) // 2]["committed_at"]
    before, after = (
        traces(get(FIGURE, params=SERIES | {name: middle}).json())["median, µs"]["y"] for name in ("until", "since")
    )
    assert before + after == [one["median"] for one in series]
    assert before
    assert after
    shown = get(FIGURE, params=SERIES | {"days": 1}).json()["layout"]["xaxis"]["range"]
    assert shown[0] < series[-1]["committed_at"].replace("T", " ") < shown[1]
    other = f"h200 norms {CASES[2]}"
    drawn = traces(get(FIGURE, params=SERIES | {"with": other}).json())[other]
    [*_, newest] = measured_points(get, case=CASES[2])
    assert drawn["y"][-1] == newest["median"]


@pytest.mark.parametrize(
    ("asked", "status", "why"),
    [
        ({"case": "rmsnorm.fwd.8x8.bf16"}, 404, "Search for the case"),
        ({"with": "h200 norms rmsnorm.fwd.8x8.bf16"}, 404, "Take it out of `with`"),
        ({"with": f"h200 norms {CASES[1]}.memory"}, 422, "different units"),
        ({"with": [f"h200 norms {CASES[n]}" for n in (0, 2, 3, 4)]}, 422, "at most 3 more series"),
        ({"unit": "furlongs"}, 422, "unit"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(
    get: Get, seeded: Seeded, asked: dict[str, Any], status: int, why: str
) -> None:
    answer = get(FIGURE, params=SERIES | asked)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert why in answer.json()["detail"]


def test_a_figure_that_did_not_change_is_not_sent_again(get: Get, seeded: Seeded) -> None:
    tag = get(FIGURE, params=SERIES).headers["etag"]
    assert get(FIGURE, params=SERIES, headers={"If-None-Match": tag}).status_code == 304


def test_a_comparison_has_the_ratios_of_its_document(get: Get, seeded: Seeded) -> None:
    run = get(f"/api/v1/runs/{seeded.runs['wrong']}").json()
    sides = {"device": "h200", "base": run["baseline"], "head": run["revision"]}
    document = get("/api/v1/targets/norms/compare", params=sides).json()
    figure = get("/api/v1/targets/norms/compare/figure", params=sides).json()
    expected = {one["case"]: one for one in document["cases"] if one["ratio"] is not None}
    assert expected
    drawn = [
        (trace["name"].partition(":")[0], case, ratio, text, link)
        for trace in figure["data"]
        for case, ratio, text, (link, _) in zip(*(trace[key] for key in ("y", "x", "text", "customdata")), strict=True)
    ]
    assert len(drawn) == len(expected)
    for direction, case, ratio, text, link in drawn:
        one = expected[case]
        assert (direction, ratio) == (one["direction"], one["ratio"])
        assert f"{one['low']:.3f} to {one['high']:.3f}" in text
        assert link == f"/targets/norms/trend?device=h200&provider={one['provider']}&case={case}"
    by_change = sorted(expected.values(), key=lambda one: abs(math.log(one["ratio"])))
    assert figure["layout"]["yaxis"]["categoryarray"][-1] == by_change[-1]["case"], "the largest is at the top"


def test_directions_of_a_comparison_differ_by_more_than_colour() -> None:
    def case(name: str, ratio: float | None, direction: Direction) -> ComparedCase:
        found = PairedRatio(ratio, ratio * 0.99, ratio * 1.01) if ratio else None
        method = ComparisonMethod.PAIRED if found else ComparisonMethod.UNPAIRED
        return ComparedCase("norms", name, method, direction, 100.0, 120.0, found, (1,))

    sides = [ComparedSide(Revision(sha=sha * 40, subject=""), None, 1, "box", 1) for sha in "ab"]
    cases = [case("a", 1.2, "slower"), case("b", 0.7, "faster"), case("c", 1.0, "same"), case("d", None, "unknown")]
    figure = comparison_figure(
        RevisionsCompared("h200", *sides, (), cases), "norms", lambda sha: f"https://forge/{sha}"
    )
    looks = {one["name"]: one["marker"]["symbol"] for one in figure["data"]}
    assert looks == {"slower: 1": "triangle-up", "faster: 1": "triangle-down", "same: 1": "circle"}
    assert figure["layout"]["yaxis"]["categoryarray"] == ["c", "a", "b"]
    assert figure["layout"]["title"]["text"].endswith("on h200, 1 case without a ratio")
    assert figure["data"][0]["customdata"][0][1] == f"https://forge/{'b' * 40}"
    assert figure["data"][0]["error_x"]["array"] == [pytest.approx(0.012)]


def test_a_board_has_the_ratios_of_its_cases(get: Get, seeded: Seeded) -> None:
    board = get("/targets/norms/board.json", params={"device": "h200"}).json()["cases"]
    figure = get("/api/v1/targets/norms/board/figure", params={"device": "h200"}).json()
    ratios = {one["case"]: one["ratio"] for one in board if one["ratio"] is not None}
    drawn = {
        text.split("</b>")[0].removeprefix("<b>"): (ratio, symbol)
        for trace in figure["data"]
        for ratio, text, symbol in zip(trace["y"], trace["text"], trace["marker"]["symbol"], strict=True)
    }
    assert {case: ratio for case, (ratio, _) in drawn.items()} == ratios
    behind = {one["case"] for one in board if one["behind"]}
    assert behind
    assert {case for case, (_, symbol) in drawn.items() if symbol == "triangle-up"} == behind


def test_a_roofline_has_the_speeds_of_its_cases_and_its_ceilings(state: Path) -> None:
    samples.load()
    asked, ask = {"device": "h200"}, asking()
    board = ask("/targets/sample-liger/board.json", params=asked).json()
    figure = ask("/api/v1/targets/sample-liger/roofline/figure", params=asked).json()
    above, below = traces(figure), traces(figure, second=True)
    own = [name for name in above if name.startswith("sample-liger")]
    gb_s = sorted(value for name in own for value in above[name]["y"])
    assert gb_s == pytest.approx(sorted(one["gb_s"] for one in board["cases"]), rel=1e-3)
    tflop_s = sorted(value for name in own for value in below[name]["y"])
    assert tflop_s == pytest.approx(sorted(one["tflop_s"] for one in board["cases"]))
    copy, product = board["copy_gb_s"], board["matmul_tflop_s"]
    assert set(above[f"copy, {copy:,.0f} GB/s"]["y"]) == {copy}
    roof = below[f"roof, {product:,.0f} TFLOP/s"]
    assert roof["y"] == pytest.approx([min(product, at * copy / 1e3) for at in roof["x"]])


@pytest.mark.parametrize(
    ("path", "asked", "why"),
    [
        ("compare", {"base": "0000000", "head": "0000001"}, "No revision"),
        ("board", {"device": "b200"}, "Choose another device"),
        ("roofline", {"at": "0000000"}, "No revision"),
    ],
)
def test_what_was_not_measured_has_no_figure(
    get: Get, seeded: Seeded, path: str, asked: dict[str, str], why: str
) -> None:
    answer = get(f"/api/v1/targets/norms/{path}/figure", params={"device": "h200"} | asked)
    assert answer.status_code == 404
    assert why in answer.json()["detail"]


def point(**known: Any) -> Point:
    plain = {"run_id": 1, "revision": "a" * 40, "subject": "", "ordinal": 1, "committed_at": 1.79e9, "state": "ok"}
    none = dict.fromkeys(("median", "gb_s", "sota_median", "outcome", "ratio", "low", "high", "stack_id"))
    return Point(**plain | none | {"median": 100.0} | known)


def test_texts_of_others_are_no_mark_up() -> None:
    hostile = point(subject="<a href='javascript:alert(1)'>%{y}</a>" + "x" * 200, author="<b>A&B</b>")
    figure = trend_figure(trend([hostile], (), Metric.KERNEL, Unit.AMOUNT), Metric.KERNEL, "<i>case</i>", sota="<u>")
    [text] = traces(figure)["median, µs"]["text"]
    assert "<" not in text.replace("<br>", "")
    assert "&lt;a href='javascript:alert(1)'&gt;%{y}&lt;/a&gt;" in text, "shown as it is written"
    assert "&lt;b&gt;A&amp;B&lt;/b&gt;" in text
    assert len(text) < 250
    assert figure["layout"]["title"]["text"] == "&lt;i&gt;case&lt;/i&gt;"


def test_a_change_is_marked_and_said_with_its_interval() -> None:
    judged = {"ratio": 1.2, "low": 1.19, "high": 1.21, "outcome": "regression"}
    points = [
        point(run_id=n, ordinal=n, committed_at=1.79e9 + n * 86_400, **(judged if n == 9 else {})) for n in range(18)
    ]
    figure = trend_figure(trend(points, changes(points, (), ()), Metric.KERNEL, Unit.AMOUNT), Metric.KERNEL, "case")
    own = traces(figure)["median, µs"]
    assert "▲ +20.0 %, 1.190 to 1.210: cause not known" in own["text"][9]
    assert [own["marker"]["symbol"][n] for n in (8, 9)] == ["circle", "triangle-up"], "not by colour alone"
    changed = traces(figure)["changes"]
    assert (changed["x"], changed["y"], changed["text"]) == ([own["x"][9]], [100.0], ["+20.0 %"])
    assert traces(figure)["level between changes"]["x"].count(None) == 2
    whiskers = traces(figure)["interval of the ratio to the parent"]
    assert whiskers["error_y"]["array"] == [pytest.approx(100 * (1.21 / 1.2 - 1))]
    assert whiskers["visible"] == "legendonly"


def linear(colour: str) -> list[float]:
    """The parts of `#rrggbb` as amounts of light."""
    parts = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def lab(light: list[float]) -> tuple[float, float, float]:
    """CIE L*a*b* at D65."""
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = (sum(a * b for a, b in zip(row, light, strict=True)) for row in rows)
    x, y, z = (
        share ** (1 / 3) if (share := max(0.0, part) / white) > 0.008856 else 7.787 * share + 16 / 116
        for part, white in zip(xyz, (0.9505, 1.0, 1.089), strict=True)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(colour: str, sight: str) -> tuple[float, float, float]:
    rows = SIGHTS[sight]
    return lab([min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear(colour), strict=True)))) for row in rows])


@pytest.mark.parametrize("sight", SIGHTS)
def test_no_two_colours_look_alike_with_red_green_blindness(sight: str) -> None:
    colours = (frame.OWN, frame.SOTA, frame.SLOWER, frame.FASTER, *frame.OTHERS)
    apart = {(a, b): math.dist(seen(a, sight), seen(b, sight)) for a, b in combinations(colours, 2)}
    assert min(apart.values()) > 15, min(apart, key=apart.__getitem__)
    assert math.dist(seen("#c0262d", sight), seen("#187038", sight)) < 30, "the red and green of outcomes are closer"
