"""What a browser makes of a page: sizes, keys, time over a slow line, shifts, complaints, and what axe finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import playwright.sync_api as playwright

from benchmarks.pages.listed import Page
from tests.dashboards.inspection import barriers

MBIT, LATENCY_MS = 1.6, 150.0  # of a slow mobile line
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
_MAX_TABS = 60
# A figure is there when nothing waits to be drawn and the first picture in the page has a size.
_OBSERVE = """(() => {
  const seen = window.__seen = { shifts: 0, figure: null, policy: [] };
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) if (!one.hadRecentInput) seen.shifts += one.value;
  }).observe({ type: "layout-shift", buffered: true });
  document.addEventListener("securitypolicyviolation", (one) => {
    seen.policy.push(`${one.violatedDirective} ${one.blockedURI}`);
  });
  const drawn = () => document.readyState !== "loading"
    && !document.querySelector("[data-figures]:not([data-drawn]):not(.empty)")
    && [...document.querySelectorAll("main [data-drawn], main svg, main canvas, body.lnt canvas")].some((one) => {
      const box = one.getBoundingClientRect();
      return box.width > 60 && box.height > 10;
    });
  const look = () => {
    if (drawn()) requestAnimationFrame(() => { seen.figure = performance.now(); });
    else requestAnimationFrame(look);
  };
  look();
})()"""
_WAITING = "[data-figures]:not([data-drawn]):not(.empty)"
_OVERFLOW = "Math.max(0, document.documentElement.scrollWidth - innerWidth)"
_HEIGHT = "document.documentElement.scrollHeight"
_AT_NEED = """(needs) => {
  const first = [...document.querySelectorAll(needs)].find((one) => one.checkVisibility());
  const here = document.activeElement;
  return Boolean(first) && (first === here || first.contains(here) || (here !== document.body && here.contains(first)));
}"""
_NEED_Y = """(needs) => {
  const first = [...document.querySelectorAll(needs)].find((one) => one.checkVisibility());
  return first ? Math.round(first.getBoundingClientRect().bottom + scrollY) : null;
}"""
# Whether some text of the page has one of these figures, within the window and not behind an edge that scrolls.
_SHOWS = """(figures) => {
  const within = (box, node) => {
    for (let e = node; e; e = e.parentElement) {
      if (!/auto|scroll|hidden/.test(getComputedStyle(e).overflowX)) continue;
      const edge = e.getBoundingClientRect();
      if (box.right > edge.right + 1 || box.left < edge.left - 1) return false;
    }
    return box.width > 0 && box.left >= 0 && box.right <= innerWidth;
  };
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    for (const figure of figures) {
      const at = text.data.indexOf(figure);
      if (at < 0 || !text.parentElement.checkVisibility()) continue;
      const range = document.createRange();
      range.setStart(text, at);
      range.setEnd(text, at + figure.length);
      if (within(range.getBoundingClientRect(), text.parentElement)) return true;
    }
  }
  return false;
}"""


@dataclass
class Looks:
    """What was seen of one page.  None where the page has no such thing."""

    nodes: int = 0
    height: int = 0
    height_narrow: int = 0
    overflow: int = 0
    overflow_narrow: int = 0
    needs_y: int | None = None
    tabs: int | None = None
    worst_shown: bool | None = None
    weight_kb: float = 0.0
    figure_s: float | None = None
    explored_kb: float | None = None  # that Explore loads, of a page that has it
    explored_s: float | None = None  # from its click until the figure can be explored
    shift: float = 0.0
    axe: int = 0  # rules that are broken seriously, in light and dark and on a phone
    errors: int = 0
    said: list[str] = field(default_factory=list)  # each finding and complaint


@contextmanager
def _opened(
    browser: playwright.Browser, viewport: dict[str, int], looks: Looks, scheme: str = "light"
) -> Iterator[playwright.Page]:
    """A page in a context of its own, with an empty cache; what it complains about is counted."""
    context = browser.new_context(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
    try:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.add_init_script(_OBSERVE)
        page.on("console", lambda one: _note(looks, one.text) if one.type == "error" else None)
        page.on("pageerror", lambda error: _note(looks, str(error)))
        yield page
        for report in page.evaluate("window.__seen.policy"):
            _note(looks, f"policy: {report}")
    finally:
        context.close()


def _note(looks: Looks, text: str) -> None:
    looks.errors += 1
    looks.said.append(text[:200])


def look_at(browser: playwright.Browser, address: str, page: Page, worst: float | None) -> Looks:
    """Open the page as often as the measures need; `worst` is the ratio that a phone must show."""
    looks = Looks()
    url = address + page.path
    _over_a_slow_line(browser, url, looks)
    with _opened(browser, WIDE, looks) as shown:
        shown.goto(url, wait_until="networkidle")
        looks.nodes = shown.evaluate("document.querySelectorAll('*').length")
        looks.height, looks.overflow = shown.evaluate(_HEIGHT), shown.evaluate(_OVERFLOW)
        if page.needs:
            looks.needs_y = shown.evaluate(_NEED_Y, page.needs)
            looks.tabs = _tabs(shown, page.needs)
        found = _serious(shown)
    with _opened(browser, WIDE, looks, "dark") as shown:
        shown.goto(url, wait_until="networkidle")
        found |= _serious(shown)
    with _opened(browser, NARROW, looks) as shown:
        shown.goto(url, wait_until="networkidle")
        looks.height_narrow, looks.overflow_narrow = shown.evaluate(_HEIGHT), shown.evaluate(_OVERFLOW)
        if worst is not None:
            looks.worst_shown = shown.evaluate(_SHOWS, formats(worst))
        found |= _serious(shown)
    looks.axe = len(found)
    looks.said += [f"axe: {rule}" for rule in sorted(found)]
    return looks


def _over_a_slow_line(browser: playwright.Browser, url: str, looks: Looks) -> None:
    with _opened(browser, WIDE, looks) as page:
        line = page.context.new_cdp_session(page)
        sent = list[float]()
        line.on("Network.loadingFinished", lambda event: sent.append(event["encodedDataLength"]))
        line.send("Network.enable")
        bytes_s = MBIT * 1e6 / 8
        rates = {"downloadThroughput": bytes_s, "uploadThroughput": bytes_s}
        line.send("Network.emulateNetworkConditions", {"offline": False, "latency": LATENCY_MS, **rates})
        page.goto(url, wait_until="networkidle", timeout=120_000)
        page.locator(_WAITING).first.wait_for(state="detached")
        page.wait_for_timeout(300)
        seen = page.evaluate("window.__seen")
        looks.weight_kb, looks.shift = sum(sent) / 1e3, seen["shifts"]
        looks.figure_s = None if seen["figure"] is None else seen["figure"] / 1e3
        if page.locator("[data-explore]").count():
            sent.clear()
            page.evaluate("window.__clicked = performance.now(); document.querySelector('[data-explore]').click()")
            page.locator("[data-explored]").wait_for(timeout=120_000)
            looks.explored_s = page.evaluate("performance.now() - window.__clicked") / 1e3
            page.wait_for_timeout(300)
            looks.explored_kb = sum(sent) / 1e3


def _tabs(page: playwright.Page, needs: str) -> int | None:
    """How often Tab is pressed until the focus is there; None if it does not get there."""
    for presses in range(1, _MAX_TABS + 1):
        page.keyboard.press("Tab")
        if page.evaluate(_AT_NEED, needs):
            return presses
    return None


def _serious(page: playwright.Page) -> set[str]:
    """The rules that axe finds broken seriously, each with the first element."""
    return {f"{rule}: {' '.join(first.split())}" for rule, (first, *_) in barriers(page).items()}


def formats(ratio: float) -> list[str]:
    """How pages print a ratio, with two or three decimals or as a per cent."""
    share = f"{abs(ratio - 1) * 100:.1f}"
    spaces = ("", " ", "\u00a0", "\u202f")
    return [f"{ratio:.3f}", f"{ratio:.2f}", *(f"{share}{space}%" for space in spaces)]
