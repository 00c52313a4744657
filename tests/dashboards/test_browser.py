"""The pages in a real browser: figures are drawn under the strict policy, nothing overflows a phone, themes differ."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from service.db.engine import transaction
from service.db.models import Run
from service.domain.states import RunState
from tests.dashboards import seed_metrics
from tests.dashboards.conftest import reachable
from tests.dashboards.inspection import CONTRAST, OPEN_DETAILS, excess_width
from tests.dashboards.seed import Seeded, watched

NOT_DRAWN = "[data-figures]:not([data-drawn]):not(.empty)"


def test_a_run_loads_nothing_from_another_host(page: Page, served: tuple[str, Seeded]) -> None:
    address, seeded = served
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}/runs/{seeded.runs['slow']}")
    page.locator("a[data-row]").first.click()
    page.locator("tr.op svg.rounds").wait_for()
    assert asked
    assert all(url.startswith((address, "data:", "blob:")) for url in asked)


def test_keyboards_and_screen_readers_find_their_way(page: Page, served: tuple[str, Seeded]) -> None:
    address, seeded = served
    page.goto(f"{address}/runs/{seeded.runs['slow']}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.locator("h1").count() == 1
    assert page.locator("main > section:not(:has(.comment)) th:not([scope])").count() == 0
    assert page.locator("[role=img]:not([aria-label])").count() == 0
    assert page.locator(".scroll:not([aria-label])").count() == 0


def test_a_refresh_keeps_focus_selection_scroll_and_what_is_open(page: Page, served: tuple[str, Seeded]) -> None:
    address, seeded = served
    page.set_viewport_size({"width": 900, "height": 300})
    page.goto(f"{address}/runs/{seeded.runs['running']}")
    page.locator("main details > summary").first.click()
    page.locator("main a").last.focus()
    page.evaluate("""() => {
      document.querySelector("[data-live]").dataset.live = "0.05";
      const text = document.querySelector("main h1").firstChild;
      getSelection().setBaseAndExtent(text, 0, text, 3);
      scrollTo(0, 120);
      window.before = { focus: document.activeElement, selection: String(getSelection()), scroll: scrollY,
        open: document.querySelectorAll("main details[open]").length };
      let refreshes = 0;
      document.addEventListener("kernelwatch:morphed", () => {
        document.body.dataset.refreshes = String(++refreshes);
        document.querySelector("[data-live]").dataset.live = "0.05";
      });
    }""")
    # The page waits for its own pause once; every later one is short.
    expect(page.locator("body")).to_have_attribute("data-refreshes", re.compile(r"\d\d"), timeout=20_000)
    kept = page.evaluate("""() => [
      document.activeElement === before.focus, String(getSelection()) === before.selection, scrollY === before.scroll,
      before.open > 0 && document.querySelectorAll("main details[open]").length === before.open,
    ]""")
    assert kept == [True, True, True, True]


def test_a_running_page_follows_the_run_to_its_end(page: Page, served: tuple[str, Seeded]) -> None:
    address, seeded = served
    page.goto(f"{address}/runs/{seeded.runs['running']}")
    with transaction() as session:
        session.get_one(Run, seeded.runs["running"]).stage = "measuring: trial 3, case 1 of 6"
    page.get_by_text("trial 3, case 1 of 6").wait_for(timeout=10_000)
    with transaction() as session:
        session.get_one(Run, seeded.runs["running"]).state = RunState.CANCELLED
    page.get_by_role("heading", name="Cancelled at").wait_for(timeout=10_000)
    assert page.locator("[data-live]").count() == 0


def test_a_reader_chooses_the_theme_and_keeps_it(page: Page, served: tuple[str, Seeded]) -> None:
    address, _ = served
    page.emulate_media(color_scheme="light")
    page.goto(address)
    switch = page.get_by_role("button", name="Theme")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(245, 246, 248)"
    switch.click()
    switch.click()
    expect(switch).to_have_text("Theme: dark")
    assert page.evaluate(ground) == "rgb(18, 23, 29)"
    page.reload()
    assert page.evaluate(ground) == "rgb(18, 23, 29)"
    switch.click()
    expect(switch).to_have_text("Theme: system")
    assert page.evaluate(ground) == "rgb(245, 246, 248)"


def test_times_are_shown_in_the_zone_of_the_reader(browser: Browser, served: tuple[str, Seeded]) -> None:
    address, _ = served
    context = browser.new_context(timezone_id="Asia/Tokyo", locale="en-GB")
    page = context.new_page()
    page.goto(address)
    title = page.locator("main time").first.get_attribute("title") or ""
    assert re.fullmatch(r".+ here, \d{4}-\d\d-\d\d \d\d:\d\d UTC", title), title
    context.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_a_run_in_every_metric_fits_and_can_be_read(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, width: int
) -> None:
    with watched(tmp_path_factory.mktemp("metrics"), seed_metrics.seed) as metrics, reachable() as address:
        page = browser.new_page(viewport={"width": width, "height": 900})
        for path in (f"/runs/{metrics.second}", "/targets/blocks", "/regressions"):
            page.goto(address + path)
            expect(page.locator(NOT_DRAWN)).to_have_count(0, timeout=20_000)
            page.evaluate(OPEN_DETAILS)
            assert excess_width(page) == 0, path
            assert page.evaluate(CONTRAST) == [], path
        page.close()


def test_a_printed_page_has_its_content_alone(page: Page, served: tuple[str, Seeded]) -> None:
    address, seeded = served
    page.emulate_media(media="print")
    page.goto(f"{address}/runs/{seeded.runs['slow']}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    for one in ("header.top", "footer.bottom", ".trail"):
        expect(page.locator(one)).to_be_hidden()
