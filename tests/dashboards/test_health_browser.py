"""The front page in a real browser: near, narrow, dark, without script, and while it refreshes itself."""

from playwright.sync_api import Browser, Page, expect

from service.db.engine import clock, transaction
from service.db.models import RegressionRow, Worker
from tests.dashboards.seed import Seeded

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


def test_all_that_needs_somebody_is_near(page: Page, big: str) -> None:
    page.goto(big)
    page.wait_for_load_state("networkidle")
    assert page.locator("#needs > li").count() == 8
    box = page.locator("[data-needs]").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 900
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the link that skips to the content
    last = "document.activeElement === document.querySelector('[data-needs] summary')"
    tabs = next(n for n in range(1, 30) if page.keyboard.press("Tab") or page.evaluate(last))
    assert tabs + 2 <= 15
    assert page.evaluate("window.shifts") <= 0.05


def test_a_phone_shows_every_word_of_what_needs_somebody(page: Page, big: str) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto(big)
    hidden = "one => one.scrollWidth > one.clientWidth + 1"
    for line in page.locator("#needs .what").all():
        assert not line.evaluate(hidden), line.text_content()
        box = line.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


def test_the_page_needs_no_script(browser: Browser, big: str) -> None:
    context = browser.new_context(viewport=WIDE, java_script_enabled=False)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(big)
    expect(page.get_by_role("heading", level=1)).to_contain_text("items need attention")
    expect(page.locator(".strip svg").first).to_be_visible()
    page.get_by_text(" more", exact=False).first.click()
    expect(page.locator("#more-needs li").first).to_be_visible()
    first = page.locator("#needs .act").first
    href = first.get_attribute("href")
    first.click()
    expect(page).to_have_url(f"{big}{href}")
    context.close()


def test_focus_selection_and_details_survive_refreshes(page: Page, served: tuple[str, Seeded]) -> None:
    address, _ = served
    page.set_viewport_size({"width": 1440, "height": 500})
    page.clock.install()
    page.goto(address)
    page.evaluate("getSelection().selectAllChildren(document.querySelector('main h1'))")
    page.locator("#needs .act").nth(1).evaluate("one => one.focus({ preventScroll: true })")
    focused = page.evaluate("document.activeElement.getAttribute('href')")
    page.evaluate("scrollTo(0, 200)")
    for n in range(3):
        with transaction() as session:
            now = clock(session)
            session.add(Worker(name=f"new-{n}", device="h200", description="", started_at=now, seen_at=now))
            for row in session.query(RegressionRow).filter_by(state="open"):
                row.assignee = f"ada{n}"
        with page.expect_response(lambda answer: answer.url == page.url):
            page.clock.run_for(21_000)
        page.get_by_text(f"new-{n}").first.wait_for()
    assert page.evaluate("document.activeElement.getAttribute('href')") == focused
    assert page.evaluate("getSelection().toString()") == "7 items need attention"
    assert page.evaluate("scrollY") == 200
