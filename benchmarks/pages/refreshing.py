"""Whether focus, selection and scroll position survive the refreshes of a live page while its data change."""

from collections.abc import Callable
from dataclasses import dataclass

import playwright.sync_api as playwright

REFRESHES = 10
_PLACE = """() => {
  const links = [...document.querySelectorAll("main a[href]")].filter((one) => one.checkVisibility());
  const focused = links[Math.min(links.length - 1, 7)];
  const selected = document.querySelector("main h1");
  window.__placed = focused.getAttribute("href");
  getSelection().selectAllChildren(selected);
  focused.focus({ preventScroll: true });
  scrollTo(0, Math.min(400, document.documentElement.scrollHeight - innerHeight));
  window.__read = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
}"""
_HOLDS = """() => ({
  focus: document.activeElement.getAttribute("href") === window.__placed,
  selection: getSelection().toString(),
  scroll: scrollY,
  read: window.__read.isConnected ? Math.round(window.__read.getBoundingClientRect().top) : null,
  text: document.querySelector("main").textContent,
})"""


@dataclass(frozen=True)
class Survived:
    focus: bool
    selection: bool
    scroll: bool
    changes: int  # refreshes that changed the page

    @property
    def all(self) -> bool:
        return self.focus and self.selection and self.scroll

    def __str__(self) -> str:
        lost = [name for name in ("focus", "selection", "scroll") if not getattr(self, name)]
        return f"loses {', '.join(lost)}" if lost else "yes" if self.changes else "nothing changed"


def refresh(browser: playwright.Browser, url: str, disturb: Callable[[], None]) -> Survived | None:
    """Change the data and let the page refresh itself, ten times.  None where the page is not live.

    The page's clock is moved on; requests are real.
    """
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        page = context.new_page()
        page.clock.install()
        page.goto(url, wait_until="networkidle")
        live = page.locator("[data-live]").first
        if not live.count():
            return None
        page.evaluate(_PLACE)
        before = was = page.evaluate(_HOLDS)
        changes = 0
        for _ in range(REFRESHES):
            disturb()
            seconds = float(live.get_attribute("data-live") or 0)
            with page.expect_response(lambda answer: answer.url == page.url) as answered:
                page.clock.run_for(seconds * 1000 + 100)
            answered.value.finished()
            page.wait_for_timeout(100)  # until it is in the page
            now = page.evaluate(_HOLDS)
            changes += now["text"] != was["text"]
            was = now
        kept = was["selection"] == before["selection"] != ""
        # A page that grows above what is read scrolls by itself, so that this keeps its place.
        stays = was["scroll"] == before["scroll"] or was["read"] == before["read"]
        return Survived(before["focus"] and was["focus"], kept, stays, changes)
    finally:
        context.close()
