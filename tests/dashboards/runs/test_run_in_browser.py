"""The page of a run in a real browser: 206 cases, on a desk, on a phone, in the dark, without script."""

import gzip
import re
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from playwright.sync_api import expect

from tests.dashboards.browser.variants import SCHEMES_AND_WIDTHS
from tests.dashboards.conftest import reachable
from tests.dashboards.inspection import CONTRAST, OPEN_DETAILS, barriers, excess_width
from tests.dashboards.runs import seed_wide
from tests.dashboards.runs.seed_wide import SLOW, WideSeeded
from tests.dashboards.seed import watched

WORST = max(SLOW, key=lambda case: SLOW[case])
ROW = f"{WORST}~norms"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, WideSeeded]]:
    with watched(tmp_path_factory.mktemp("wide"), seed_wide.seed) as seeded, reachable() as address:
        yield address, seeded


def url_of(wide: tuple[str, WideSeeded], run: str, rest: str = "") -> str:
    address, seeded = wide
    return f"{address}/runs/{seeded.runs[run]}{rest}"


def test_206_cases_fit_their_limits(opened: Any, wide: tuple[str, WideSeeded]) -> None:
    page = opened(url_of(wide, "slow"))
    assert page.evaluate("document.documentElement.scrollHeight") <= 3000
    assert page.evaluate("document.querySelectorAll('*').length") <= 3000
    first = page.locator("tr.r").first.bounding_box()
    assert first is not None
    assert first["y"] + first["height"] <= 900, "the first regression is on the first screen"
    with urlopen(url_of(wide, "slow")) as answer:
        assert len(gzip.compress(answer.read(), 6)) <= 60_000
    assert page.locator("tr.r").count() == len(SLOW)
    assert page.locator("tr.fd").count() >= 8, "what is steady is folded"
    assert {row["height"] for row in (one.bounding_box() for one in page.locator("tr.r").all()) if row} <= {22, 23}
    page.wait_for_timeout(300)
    assert page.evaluate("shifts") <= 0.05


def test_the_worst_case_is_15_tabs_away(opened: Any, wide: tuple[str, WideSeeded]) -> None:
    page = opened(url_of(wide, "slow"))
    reached = []
    for _ in range(15):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.getAttribute('href')"))
    assert f"#{ROW}" in reached
    assert any(str(href).startswith("/incidents/") for href in reached), "and so is the incident"


def test_dots_are_one_stop_of_tab_and_open_their_cases(opened: Any, wide: tuple[str, WideSeeded]) -> None:
    page = opened(url_of(wide, "slow"))
    dots = page.locator("svg.dots[role=group] a")
    assert dots.count() == 206
    stop = page.locator("svg.dots a[tabindex='0']")
    assert stop.count() == 1
    assert WORST in (stop.locator("title").text_content() or "")
    stop.focus()
    page.keyboard.press("ArrowLeft")
    moved = page.evaluate("document.activeElement.getAttribute('href')")
    assert WORST not in moved
    page.keyboard.press("Home")
    assert dots.first.evaluate("one => one === document.activeElement")
    page.keyboard.press("ArrowLeft")
    assert dots.first.evaluate("one => one === document.activeElement"), "at the end it stays"
    page.keyboard.press("End")
    assert stop.count() == 1
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text(WORST)


def test_a_row_opens_in_place_and_its_address_opens_it_again(opened: Any, wide: tuple[str, WideSeeded]) -> None:
    page = opened(url_of(wide, "slow"))
    link = page.locator(f"tr[id='{ROW}'] a[data-row]")
    link.click()
    under = page.locator("tr.op")
    expect(under).to_contain_text("Every round of 6 trials")
    expect(under.locator("svg.rounds")).to_be_visible()
    assert under.locator(".df").first.inner_text().startswith("≠ hash of the code") or under.locator(".df").count() >= 4
    assert page.url.endswith(f"#{ROW}")
    assert link.get_attribute("aria-expanded") == "true"
    assert page.locator("h1:visible").count() == 1
    link.click()
    expect(under).to_have_count(0)
    again = opened(url_of(wide, "slow", f"#{ROW}"))
    expect(again.locator("tr.op")).to_contain_text("confirmed by 3 fresh trials")


def test_filters_change_the_table_the_address_and_nothing_else(opened: Any, wide: tuple[str, WideSeeded]) -> None:
    page = opened(url_of(wide, "slow"))
    page.evaluate("window.same = true")
    page.get_by_role("link", name=re.compile(r"^slower 34")).click()
    expect(page.locator("tr.fd")).to_have_count(0)
    assert "outcome=slower" in page.url
    assert page.evaluate("window.same"), "the page was not loaded again"
    assert page.evaluate("document.activeElement.textContent").startswith("slower"), "focus stays"
    page.get_by_role("link", name="name", exact=True).click()
    expect(page.locator("a[aria-current]", has_text="name")).to_have_count(1)
    page.go_back()
    expect(page.locator("a[aria-current]", has_text="relevance")).to_have_count(1)
    page.go_back()
    expect(page.locator("tr.fd").first).to_be_visible()
    page.locator("tr.fd a").first.click()
    expect(page.locator("tr.r")).not_to_have_count(len(SLOW))


def test_everything_is_readable_without_script(opened: Any, wide: tuple[str, WideSeeded]) -> None:
    page = opened(url_of(wide, "slow"), java_script_enabled=False)
    page.locator(f"tr[id='{ROW}'] a[data-row]").click()
    assert page.url.endswith(f"/cases/{WORST}?provider=norms")
    expect(page.locator("svg.rounds path.st")).to_have_count(5)
    page.get_by_role("link", name=re.compile("run ")).first.click()
    page.get_by_role("link", name=re.compile(r"^steady 172")).click()
    expect(page.locator("tr.fd").nth(7)).to_be_visible()
    page.get_by_role("link", name="unfold all").click()
    expect(page.locator("tr.r")).to_have_count(172)
    for part, text in (("telemetry", "prepare 38.2 s"), ("comment", "34 of 206 cases")):
        page.goto(url_of(wide, "slow"))
        page.locator(f"details[data-from$='/{part}'] > summary").click()
        page.locator(f"a[href$='/{part}']").first.click()
        assert text in page.locator("main").inner_text()


def test_a_phone_shows_the_worst_ratio_without_scrolling_sideways(opened: Any, wide: tuple[str, WideSeeded]) -> None:
    page = opened(url_of(wide, "slow"), viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator(f"tr[id='{ROW}'] .ra").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    name = page.locator(f"tr[id='{ROW}'] .c").bounding_box()
    assert name is not None
    assert name["y"] <= box["y"] + 4, "the name and the ratio come first"
    assert page.locator("tr.r:visible").count() == 12
    page.get_by_role("link", name="22 more").click()
    expect(page.locator("tr.r:visible")).to_have_count(34)


@SCHEMES_AND_WIDTHS
def test_nothing_bars_the_way(opened: Any, wide: tuple[str, WideSeeded], width: int, scheme: str) -> None:
    for run in ("slow", "hostile"):
        page = opened(url_of(wide, run), viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.locator("a[data-row]").first.click()
        expect(page.locator("tr.op")).to_contain_text("Facts")
        page.evaluate(OPEN_DETAILS)
        expect(page.locator("[data-here]", has_text="Preview of the comment")).to_be_visible()
        assert excess_width(page) == 0, run
        assert page.evaluate(CONTRAST) == [], run
        assert barriers(page) == {}, run


def test_a_hostile_run_does_nothing_and_is_no_wider(opened: Any, wide: tuple[str, WideSeeded]) -> None:
    page = opened(url_of(wide, "hostile"))
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.locator("a[data-row]").first.click()
    expect(page.locator("tr.op")).to_contain_text("alert(6)")
    assert page.locator("img[src=x]").count() == 0
    assert excess_width(page) == 0


@pytest.mark.parametrize("width", [390, 1440])
def test_a_pull_request_shows_whether_the_last_push_fixed_it(
    opened: Any, wide: tuple[str, WideSeeded], width: int
) -> None:
    address, seeded = wide
    page = opened(
        f"{address}/targets/norms/pulls/{seeded.pull}", viewport={"width": width, "height": 900}, color_scheme="dark"
    )
    expect(page.get_by_role("heading", level=1)).to_contain_text("2 of 206 cases")
    expect(page.locator(".lead")).to_contain_text("66 fixed, 2 still wrong or slower, none new")
    table = page.get_by_role("region", name="Cases that moved").locator("tbody tr")
    assert table.count() == 40, "the most severe"
    page.get_by_role("link", name=f"show all {2 * len(SLOW)}").click()
    expect(table).to_have_count(2 * len(SLOW))
    first = table.first.inner_text()
    assert re.search(r"h200\s+▲ 1\.0\d\d\s+▲ 1\.0\d\d", first), "slow at the newest head too"
    assert re.search(r"h[12]00\s+● (0\.99|1\.00)\d\s+▲ 1\.\d{3}", table.last.inner_text()), (
        "fixed since the head before"
    )
    assert excess_width(page) == 0
    assert page.evaluate(CONTRAST) == []
    assert barriers(page) == {}
    table.first.get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("slower")


def test_a_phone_folds_what_is_less_grave_and_unfolds_it_without_script(
    opened: Any, wide: tuple[str, WideSeeded]
) -> None:
    for script in (True, False):
        phone = {"viewport": {"width": 390, "height": 844}, "java_script_enabled": script}
        page = opened(url_of(wide, "slow"), **phone)
        assert page.evaluate("document.documentElement.scrollHeight") <= 3000
        assert page.evaluate("document.querySelectorAll('*').length") <= 3000
        groups = page.locator("tr.fd").count()
        assert page.locator("tr.fd:visible").count() == 3
        page.get_by_role("link", name=f"{groups - 3} more groups").click()
        assert page.locator("tr.fd:visible").count() == groups
        expect(page.get_by_role("link", name="more groups")).to_have_count(0)
        page.get_by_role("link", name="22 more", exact=True).click()
        expect(page.locator("tr.r:visible")).to_have_count(34)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
