"""The trend of a case: its verdict and levels as values, its page as text, and its figure in a real browser."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import select

from dashboards.trends import Mark, draw
from kernels.cases import Metric
from service.db.engine import reading
from service.db.models import Revision
from service.ledger.intake import samples
from service.reports.charts.trends import Trend, Unit, changes, headline, in_order, trend
from service.reports.views import Point
from tests.dashboards import seed_deciding
from tests.dashboards.asking import Get, asking, words
from tests.dashboards.conftest import reachable
from tests.dashboards.inspection import Drawn
from tests.dashboards.seed import CASES, Seeded, watched

DAY = 86_400.0
SERIES = {"device": "h200", "provider": "norms"}
REGRESSED = SERIES | {"case": CASES[1]}


def points(medians: Sequence[float | None], outcomes: dict[int, tuple[str, float]] | None = None) -> list[Point]:
    """A revision a day; `outcomes` are the verdicts of some of them, with their ratios."""
    judged = outcomes or {}
    return [
        Point(
            run_id=100 + n,
            revision=f"{n:040x}",
            subject=f"Change {n}",
            ordinal=n,
            committed_at=1_790_000_000.0 + n * DAY,
            state="ok",
            median=median,
            gb_s=median and 1e5 / median,
            sota_median=100.0,
            outcome=judged[n][0] if n in judged else "steady",
            ratio=judged[n][1] if n in judged else 1.0,
            low=(judged[n][1] if n in judged else 1.0) * 0.99,
            high=(judged[n][1] if n in judged else 1.0) * 1.01,
            stack_id=1,
        )
        for n, median in enumerate(medians)
    ]


def shown(found: Sequence[Point], unit: Unit = Unit.AMOUNT) -> Trend:
    return trend(found, changes(found, (), ()), Metric.KERNEL, unit)


@pytest.mark.parametrize(
    ("dates", "placed"),
    [
        ([], []),
        ([7.0], [7.0]),
        ([1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 2.0, 3.0]),
        ([1.0, 2.0, 900.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]),  # a clock that is far ahead
        ([1.0, 2.0, 3.0, 0.0, 0.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),  # rebased, with their old dates
        ([9.0, 2.0, 3.0, 1.0], [2.0, 2.0, 3.0, 3.0]),
    ],
)
def test_wrong_dates_move_no_other_commit(dates: list[float], placed: list[float]) -> None:
    assert in_order(dates) == placed


@given(st.lists(st.integers(0, 30).map(float), max_size=30))
def test_dates_never_go_back_and_right_ones_stay(dates: list[float]) -> None:
    placed = in_order(dates)
    assert placed == sorted(placed)
    assert len(placed) == len(dates)
    assert in_order(sorted(dates)) == sorted(dates)
    assert set(placed[:1] + placed[-1:]) <= set(dates)


def test_a_change_is_drawn_at_its_revision_whatever_date_that_has() -> None:
    found = points([100.0] * 5 + [120.0] * 5, {5: ("regression", 1.2)})
    found[5] = found[5]._replace(committed_at=4_294_967_295.0)
    [change], dots = (shown(found).changes, shown(found).shown)
    assert dots[4].at < change.at == dots[5].at < dots[6].at


@pytest.mark.parametrize(
    ("medians", "outcomes", "verdict"),
    [
        ([100.0] * 12, {}, "Level over 12 revisions"),
        ([100.0], {}, "100.0 µs, measured once"),
        ([None, None], {}, "Not measured in this unit"),
        ([100.0] * 5 + [120.0] * 5, {5: ("regression", 1.2)}, "20.0 % slower since 26 Sep 2026"),
        ([100.0] * 5 + [80.0] * 5, {5: ("improvement", 0.8)}, "20.0 % faster since 26 Sep 2026"),
    ],
)
def test_the_headline_is_the_verdict_in_figures(
    medians: list[float | None], outcomes: dict[int, tuple[str, float]], verdict: str
) -> None:
    assert headline(shown(points(medians, outcomes)), Metric.KERNEL)[0] == verdict


def test_levels_end_at_changes_and_have_the_spread_of_their_revisions() -> None:
    found = shown(points([100.0 + n % 5 for n in range(20)] + [120.0] * 3, {20: ("regression", 1.18)}))
    first, second = found.levels
    assert (first.value, second.value) == (102.0, 120.0)
    assert first.spread == (100.0, 104.0)
    assert second.spread is None, "three revisions have no percentiles"


@pytest.mark.parametrize(
    ("unit", "value", "said"),
    [
        (Unit.AMOUNT, 110.0, "110.0 µs"),
        (Unit.GB_S, 1e5 / 110, "909 GB/s"),
        (Unit.RATIO, 1.1, "1.100 × SOTA"),
    ],
)
def test_units(unit: Unit, value: float, said: str) -> None:
    found = shown(points([110.0, 110.0]), unit)
    assert found.shown[0].value == pytest.approx(value)
    assert found.said(found.shown[0].value) == said


@pytest.mark.parametrize(
    ("unit", "sota"),
    [(Unit.AMOUNT, 100.0), (Unit.GB_S, 1000.0), (Unit.CEILING, 25.0), (Unit.RATIO, None)],
)
def test_sota_is_in_the_unit_of_the_axis(unit: Unit, sota: float | None) -> None:
    found = trend(points([125.0, 125.0]), (), Metric.KERNEL, unit, {100: 4000.0, 101: 4000.0})
    assert [one.sota for one in found.shown] == [sota, sota]
    drawing = Drawn(draw(found, width=1216))
    assert bool(drawing.paths("sota-line")) is (sota is not None)
    if sota is not None:
        [name] = drawing.texts("sota")
        [own] = drawing.texts("own")
        assert name.text == f"SOTA {sota:{found.digits}}"
        assert (name.y > own.y) is (sota < found.shown[0].value), "a value that is less is lower"


def test_a_share_of_the_ceiling_needs_the_ceiling_of_the_session() -> None:
    found = trend(points([100.0, 100.0]), (), Metric.KERNEL, Unit.CEILING, {101: 4000.0})
    assert [one.value for one in found.shown] == [25.0]


def test_dates_never_go_back() -> None:
    found = points([1.0, 1.0, 1.0])
    found[2] = found[2]._replace(committed_at=found[0].committed_at - DAY)
    at = [one.at for one in shown(found).shown]
    assert at == sorted(at)


def test_ten_thousand_revisions_are_two_dots_a_px_at_most() -> None:
    many = [100.0 + (n * 7919 % 1000) / 1000 for n in range(10_000)]
    drawing = Drawn(draw(shown(points(many)), width=1216))
    assert 0 < drawing.path("dot").count("M") <= 2 * 1216
    assert len(drawing.path("dot")) + len(drawing.path("sota-line")) < 60_000


def test_the_largest_change_keeps_its_label_and_marks_do_not_collide() -> None:
    outcomes = dict.fromkeys((9, 10, 12, 13), ("regression", 1.01)) | {11: ("regression", 1.5)}
    found = shown(points([100.0] * 9 + [150.0] * 90, outcomes))
    marks = [Mark(found.shown[0].at + n * DAY / 4, "torch 2.12 → 2.13", "torch", "stack") for n in range(12)]
    drawing = Drawn(draw(found, width=1216, marks=marks))
    assert drawing.texts("slower")[0].text == "+50.0 %"
    ends: dict[float, float] = {}
    drawn_marks = drawing.root.findall(".//g[@class='mark stack']")
    for mark in (text for one in drawn_marks for text in one.iterfind("text")):
        x, y = (float(mark.get(name, "")) for name in "xy")
        if mark.text:
            assert x >= ends.get(y, 0.0), "labels of one lane do not overlap"
            ends[y] = x + 6 * len(mark.text)
    assert len(drawn_marks) == 12, "one without a label keeps its mark"


def test_a_window_of_the_past_does_not_say_now() -> None:
    whole = shown(points([100.0] * 10 + [180.0] * 10, {10: ("regression", 1.8)}))
    past = shown(points([100.0] * 10))
    assert "last 100.0" in [one.text for one in Drawn(draw(past, width=1216, everything=whole.shown)).texts("own")]
    assert "now 180.0" in [one.text for one in Drawn(draw(whole, width=1216, everything=whole.shown)).texts("own")]


def test_a_window_of_the_past_says_what_came_after_it(state: Path) -> None:
    samples.load()
    case = {"device": "h200", "provider": "liger", "case": "layernorm.bwd.8192x8192.bf16"}
    get = asking()
    with reading() as session:
        times = session.scalars(select(Revision.committed_at).order_by(Revision.committed_at)).all()
    middle = datetime.fromtimestamp(times[len(times) // 2], UTC).date()
    at = {"until": middle.isoformat()}
    said = words(get("/targets/sample-liger/trend", params=case | at))
    assert re.search(r"where the window ends; since then [+−][\d.]+ %, now [\d.]+ µs", said)
    assert re.search(r"of them in the window above", said)
    assert "not shown above" in said
    now = words(get("/targets/sample-liger/trend", params=case | {"days": "all"}))
    assert "since then" not in now
    assert "not shown above" not in now


def test_the_page_says_what_changed_since_when_and_why(get: Get, decided: Seeded) -> None:
    said = words(get("/targets/norms/trend", params=REGRESSED))
    assert re.search(r"21\.\d % slower since \d+ \w+ 20\d\d at", said) or "% faster since" in said
    assert "Changes" in said
    withdrawn = words(get("/targets/norms/trend", params=SERIES | {"case": CASES[2]}))
    assert re.search(r"2 new sessions of bisection \d+ did not repeat it: the machine, not the code", withdrawn)
    assert "withdrawn" in withdrawn


def test_without_a_case_it_goes_to_the_one_that_matters_most(get: Get, seeded: Seeded) -> None:
    answer = get("/targets/norms/trend")
    assert answer.status_code == 303
    assert get(answer.headers["location"]).status_code == 200


def test_the_link_of_an_old_comment_goes_to_the_trend(get: Get, seeded: Seeded) -> None:
    answer = get("/targets/norms", params={"series": f"h200 norms {CASES[1]}"})
    assert (answer.status_code, "/targets/norms/trend?device=h200" in answer.headers["location"]) == (301, True)


@pytest.mark.parametrize(
    ("asked", "status", "why"),
    [
        ({"case": "rmsnorm.fwd.1x1.bf16", "device": "h200", "provider": "norms"}, 404, "Search for the case"),
        (REGRESSED | {"unit": "furlongs"}, 422, "unit"),
        (REGRESSED | {"since": "yesterday"}, 422, "since"),
        (REGRESSED | {"with": [f"h200 norms {CASES[n]}" for n in (0, 2, 3, 4)]}, 422, "at most 3 more series"),
        (REGRESSED | {"with": "h200 norms rmsnorm.fwd.8x8.bf16"}, 404, "Take it out of the address"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(
    get: Get, seeded: Seeded, asked: dict[str, object], status: int, why: str
) -> None:
    answer = get("/targets/norms/trend", params=asked)
    assert answer.status_code == status
    assert why in answer.text


def test_a_case_is_found_by_parts_of_its_name(get: Get, seeded: Seeded) -> None:
    said = words(get("/targets/norms/trend", params=REGRESSED | {"q": "LAYERNORM h200"}))
    assert re.search(r"\d+ series (has|have) “LAYERNORM h200”", said)
    assert "add to the figure" in said
    assert "Search for a part of the name" in words(get("/targets/norms/trend", params=REGRESSED | {"q": "zzz"}))


ADDRESS = f"/targets/norms/trend?device=h200&provider=norms&case={CASES[1]}"


def test_two_revisions_that_are_clicked_are_compared(page: Page, served: tuple[str, Seeded]) -> None:
    address, _ = served
    page.goto(address + ADDRESS)
    box = page.locator(".figure-place .wide-only svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + 100)
    expect(page.locator(".point")).to_contain_text("µs")
    page.mouse.click(box["x"] + box["width"] * 0.05, box["y"] + 100)
    page.wait_for_url("**&a=*")
    page.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + 100)
    page.wait_for_url("**&b=*")
    expect(page.locator(".between")).to_contain_text("times, over")
    page.reload()
    expect(page.locator(".between")).to_contain_text("times, over")


def test_the_keyboard_goes_from_revision_to_revision(page: Page, served: tuple[str, Seeded]) -> None:
    address, _ = served
    page.goto(address + ADDRESS)
    page.locator(".figure-place").focus()
    page.keyboard.press("ArrowLeft")
    newest = page.locator(".point").inner_text()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".point").inner_text() != newest
    page.keyboard.press("Enter")
    page.wait_for_url("**&a=*")


def test_neighbours_are_fetched_when_they_are_opened(page: Page, served: tuple[str, Seeded]) -> None:
    address, _ = served
    page.goto(address + ADDRESS)
    assert page.locator(".neighbour").count() == 0
    page.get_by_text("Its neighbours").click()
    expect(page.locator(".neighbour").first).to_be_visible()


def test_everything_can_be_read_without_script(browser: Browser, served: tuple[str, Seeded]) -> None:
    address, _ = served
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(address + ADDRESS)
    for kind in ("dot", "better", "worse"):
        assert page.locator(f".figure-place .wide-only svg path.{kind}").count() == 1
    page.get_by_role("link", name="As a table").click()
    page.get_by_role("link", name="as A").first.click()
    page.get_by_role("link", name="as B").last.click()
    expect(page.locator(".between")).to_contain_text("times, over")
    context.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_a_trend_fits_the_window(browser: Browser, tmp_path_factory: pytest.TempPathFactory, width: int) -> None:
    with watched(tmp_path_factory.mktemp("trend"), seed_deciding.seed), reachable() as address:
        page = browser.new_page(viewport={"width": width, "height": 900})
        for path in (ADDRESS, f"{ADDRESS}&q=norm", f"{ADDRESS}&unit=gb_s", "/regressions/4"):
            page.goto(address + path)
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
            texts = page.locator(f".figure-place {'.narrow-only' if width < 640 else '.wide-only'} svg text")
            assert texts.count() > 5, path
        page.close()


@pytest.mark.parametrize(
    ("ratios", "areas"),
    [
        ([1.0, 1.0, 1.0], 0),
        ([1.5, 1.5, 1.5], 1),
        ([1.0, 1.5, 1.0, 1.0, 1.5], 2),
        ([1.5, 1.0], 1),
    ],
)
def test_only_what_is_above_the_limit_to_sota_is_filled(ratios: list[float], areas: int) -> None:
    drawing = Drawn(draw(shown(points([100.0 * ratio for ratio in ratios])), width=1216, behind=1.05))
    assert drawing.path("ratio")
    assert drawing.path("behind-area").count("Z") == areas
