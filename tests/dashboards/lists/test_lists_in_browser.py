"""The lists in a real browser: near, narrow, dark, without script, folded and unfolded."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from service.ledger.intake import samples
from tests.dashboards.conftest import reachable
from tests.dashboards.inspection import CONTRAST, barriers

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
PATHS = ("/regressions", "/regressions?state=fixed", "/regressions?q=zzz", "/bisections")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", PHONE)], ids=["light", "dark phone"])
def test_the_lists_fit_and_can_be_read(page: Page, big: str, path: str, scheme: str, size: dict[str, int]) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size(size)  # type: ignore[arg-type]
    page.goto(f"{big}{path}")
    for one in page.locator("details[data-from]").all()[:2]:
        one.locator("summary").click()
        one.locator("table").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.evaluate(CONTRAST) == []
    assert barriers(page) == {}


def test_the_first_regression_is_near(page: Page, big: str) -> None:
    page.set_viewport_size(WIDE)  # type: ignore[arg-type]
    page.goto(f"{big}/regressions")
    assert page.evaluate("document.documentElement.scrollHeight") <= 3000
    assert page.evaluate("document.querySelectorAll('*').length") <= 3000
    assert page.locator(".causes .act.primary").count() == 1
    within = "document.querySelector('[data-needs]').contains(document.activeElement)"
    assert next(n for n in range(1, 30) if page.keyboard.press("Tab") or page.evaluate(within)) <= 15


def test_a_cause_has_two_lines_and_the_pointer_shows_all_of_it(state: Path, page: Page) -> None:
    samples.load()
    page.set_viewport_size(WIDE)  # type: ignore[arg-type]
    with reachable() as address:
        page.goto(f"{address}/regressions")
        detail = page.locator(".causes .detail").first
        expect(detail).to_contain_text("slower, perhaps because its configuration is num_warps=8 instead of")
        height = detail.evaluate("one => one.clientHeight / parseFloat(getComputedStyle(one).lineHeight)")
        assert round(height) == 2
        assert "shared memory instead of 16; worst " in (detail.get_attribute("title") or "")


def test_a_line_unfolds_with_the_keyboard_and_a_filter_stays_in_the_address(page: Page, big: str) -> None:
    page.goto(f"{big}/regressions")
    first = page.locator("details[data-from]").first
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(first.locator("tbody tr").first).to_be_visible()
    page.locator("#filters").get_by_role("link", name="h200").click()
    expect(page).to_have_url(f"{big}/regressions?device=h200")
    expect(page.locator(".place").first).to_contain_text("on h200")
    page.locator("main").get_by_role("searchbox").fill("layernorm")
    page.get_by_role("button", name="Find").click()
    expect(page).to_have_url(f"{big}/regressions?device=h200&q=layernorm")
    page.locator("#filters").get_by_role("link", name="h200").click()
    expect(page).to_have_url(f"{big}/regressions?q=layernorm")


def test_the_lists_need_no_script(browser: Browser, big: str) -> None:
    context = browser.new_context(viewport=PHONE, java_script_enabled=False)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{big}/regressions")
    first = page.locator("details[data-from]").first
    first.locator("summary").click()
    first.get_by_role("link", name="on a page").click()
    expect(page.locator("tbody tr").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.goto(f"{big}/bisections")
    expect(page.locator(".strip svg").first).to_be_visible()
    context.close()
