"""Figures to explore in a real browser, under the policy of the pages: any report of it fails these tests."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from service.ledger.intake import samples
from tests.dashboards.inspection import CONTRAST, barriers, excess_width
from tests.dashboards.seed import CASES, Seeded

TREND = f"/targets/norms/trend?device=h200&provider=norms&case={CASES[1]}"
OWN = "median, µs"


def explored(page: Page, address: str, button: str = "explore") -> Locator:
    page.goto(address)
    page.locator(f"#{button}").click()
    place = page.locator(f"[data-explored={button}]")
    expect(place).to_be_visible()
    return place


def at_point(page: Page, n: int) -> tuple[float, float]:
    """Where a revision of the series is in the window, in px."""
    found: list[float] = page.evaluate(
        """([name, n]) => {
          const plot = document.querySelector("[data-explored]");
          const trace = plot.data.find((one) => one.name === name), box = plot.getBoundingClientRect();
          const { xaxis, yaxis } = plot._fullLayout;
          return [box.left + xaxis._offset + xaxis.d2p(trace.x[n]), box.top + yaxis._offset + yaxis.d2p(trace.y[n])];
        }""",
        [OWN, n],
    )
    return found[0], found[1]


def wait_until(page: Page, condition: Callable[[], bool]) -> None:
    """Wait; `page.wait_for_function` would need code from text, which the policy refuses."""
    for _ in range(200):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("The page did not come so far.")


def test_nothing_of_plotly_is_loaded_before_it_is_asked_for(page: Page, served: tuple[str, Seeded]) -> None:
    address, _ = served
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    page.goto(address + TREND)
    page.wait_for_load_state("networkidle")
    assert not [path for path in asked if "plotly" in path or path.endswith(("/figure", "/explore.js"))]
    assert page.evaluate("typeof Plotly") == "undefined"
    page.locator("#explore").click()
    expect(page.locator("[data-explored]")).to_be_visible()
    assert [path.rpartition("/")[2] for path in asked if "plotly" in path] == ["plotly.css", "plotly-basic.min.js"]
    expect(page.locator("#drawn")).to_be_hidden()
    page.get_by_role("button", name="Close the figure").click()
    expect(page.locator("#drawn")).to_be_visible()
    assert page.locator("[data-explored]").count() == 0


def test_a_hover_says_what_is_known_of_a_revision(page: Page, served: tuple[str, Seeded]) -> None:
    address, _ = served
    explored(page, address + TREND)
    page.mouse.move(*at_point(page, 2))
    said = page.locator(".hoverlayer")
    expect(said).to_contain_text("Ada Example")
    text = said.text_content() or ""
    assert re.search(r"[\d.]+ µs", text)
    assert re.search(r"[\d.]+ to its parent, [\d.]+ to [\d.]+", text)
    assert re.search(r"[\d.]+ × quack", text)


def test_a_rectangle_zooms_finer_than_a_day_and_two_clicks_zoom_out(page: Page, served: tuple[str, Seeded]) -> None:
    address, _ = served
    explored(page, address + TREND)
    shown = """() => {
      const { xaxis, yaxis } = document.querySelector("[data-explored]")._fullLayout;
      return [Date.parse(xaxis.range[1]) - Date.parse(xaxis.range[0]), yaxis.range[1] - yaxis.range[0]];
    }"""
    before = page.evaluate(shown)
    box = page.locator(".nsewdrag").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x - 60, y - 40)
    page.mouse.down()
    page.mouse.move(x + 60, y + 40, steps=8)
    page.mouse.up()
    wait_until(page, lambda: page.evaluate(shown)[0] < before[0] / 2)
    after = page.evaluate(shown)
    assert after[0] < 86_400_000
    assert after[1] < before[1] / 2, "of both axes"
    page.mouse.dblclick(x, y)
    wait_until(page, lambda: page.evaluate(shown)[0] >= before[0])


def test_a_click_opens_the_run(page: Page, served: tuple[str, Seeded]) -> None:
    address, _ = served
    explored(page, address + TREND)
    opened: str = page.evaluate(
        "(name) => document.querySelector('[data-explored]').data.find((one) => one.name === name).customdata[2][0]",
        OWN,
    )
    x, y = at_point(page, 2)
    page.mouse.move(x, y)
    expect(page.locator(".hoverlayer")).to_contain_text("µs")
    page.mouse.click(x, y)
    page.wait_for_url(address + opened)


def test_a_series_is_hidden_by_its_name(page: Page, served: tuple[str, Seeded]) -> None:
    address, _ = served
    place = explored(page, address + TREND)
    shown = "document.querySelector('[data-explored]')._fullData.find((one) => one.name === 'quack').visible"
    assert page.evaluate(shown) is True
    place.locator(".legend .traces", has_text="quack").locator(".legendtoggle").click()
    wait_until(page, lambda: page.evaluate(shown) == "legendonly")


def test_it_stays_while_another_unit_is_chosen(page: Page, served: tuple[str, Seeded]) -> None:
    address, _ = served
    explored(page, address + TREND)
    page.get_by_role("link", name="GB/s").click()
    place = page.locator("[data-explored]")
    expect(place).to_be_visible()
    expect(place.locator(".ytitle")).to_have_text("GB/s")
    page.reload()
    expect(place).to_be_visible()


def test_the_figure_can_be_saved_as_a_picture(page: Page, served: tuple[str, Seeded], tmp_path: Path) -> None:
    address, _ = served
    explored(page, address + TREND)
    with page.expect_download() as download:
        page.locator(".modebar-btn[data-title^=Download]").click()
    saved = Path(download.value.path()).read_text()
    assert download.value.suggested_filename == "kernelwatch.svg"
    assert saved.startswith("<svg")
    assert "µs" in saved


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_an_explored_page_fits_and_can_be_read(
    opened: Any, served: tuple[str, Seeded], width: int, scheme: str
) -> None:
    address, _ = served
    page = opened(viewport={"width": width, "height": 900}, color_scheme=scheme)
    explored(page, address + TREND)
    assert excess_width(page) == 0
    assert page.evaluate(CONTRAST) == []
    assert barriers(page) == {}


@pytest.mark.parametrize(
    ("path", "button"),
    [
        ("norms/board?device=h200", "explore"),
        ("sample-liger/board?device=h200", "explore-roofline"),
        ("norms/compare?device=h200&base={base}&head={head}", "explore"),
    ],
    ids=["board", "roofline", "comparison"],
)
def test_a_case_of_a_board_and_of_a_comparison_opens_its_trend(
    page: Page, served: tuple[str, Seeded], path: str, button: str
) -> None:
    address, seeded = served
    samples.load()
    run = httpx.get(f"{address}/api/v1/runs/{seeded.runs['wrong']}").json()
    page_of_it = path.format(base=run["baseline"], head=run["revision"])
    place = explored(page, f"{address}/targets/{page_of_it}", button)
    assert excess_width(page) == 0
    assert barriers(page) == {}
    case = place.locator(".scatterlayer .point").first
    case.scroll_into_view_if_needed()
    case.hover(force=True)
    expect(page.locator(".hoverlayer")).to_contain_text(" by ")
    case.click(force=True)
    page.wait_for_url("**/trend?*")


def test_a_figure_that_fails_says_why_and_leaves_the_drawing(page: Page, served: tuple[str, Seeded]) -> None:
    address, _ = served
    problem = json.dumps({"detail": "The database is being restored."})
    page.route("**/figure?*", lambda route: route.fulfill(status=200, body=problem.replace("{", "[", 1)))
    page.goto(address + TREND)
    page.locator("#explore").click()
    expect(page.get_by_role("status")).to_contain_text("The figure cannot be shown")
    expect(page.locator("#drawn")).to_be_visible()
    page.unroute_all()
    page.locator("#explore").click()
    expect(page.locator("[data-explored]")).to_be_visible()
    expect(page.get_by_text("cannot be shown")).to_have_count(0)


def test_there_is_no_button_without_script(browser: Browser, served: tuple[str, Seeded]) -> None:
    address, _ = served
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address + TREND)
    expect(page.locator("#drawn svg").first).to_be_visible()
    expect(page.locator("#explore")).to_be_hidden()
    context.close()
