"""What a figure shows, and what a browser finds wrong with a page: hard to read, barriers, wider than its window."""

import re
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from playwright.sync_api import Page

from dashboards.drawing import Figure

_AXE = Path(__file__).parent / "vendor" / "axe.min.js"
OPEN_DETAILS = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"

# Sums the layout shifts, in `window.shifts`.
SHIFTS = """window.shifts = 0; new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) window.shifts += one.value;
}).observe({ type: "layout-shift", buffered: true });"""

# Contrast as WCAG 2 defines it, of each visible piece of text against the nearest background that is not see-through.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const over = (top, under) => top.slice(0, 3).map((c, i) => (c * top[3] + under[i] * (255 - top[3])) / 255);
  const light = (c) => c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => { if (!e) return [255, 255, 255]; const own = rgba(getComputedStyle(e).backgroundColor); return own[3] === 255 ? own.slice(0, 3) : over(own, ground(e.parentElement)); };
  const poor = [];
  for (const e of document.querySelectorAll("body *:not(svg *)")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility() || e.closest(".skip")) continue;
    const [a, b] = [light(over(rgba(getComputedStyle(e).color), ground(e))), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(`${e.tagName}.${e.className} ${e.textContent.trim().slice(0, 30)} ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
  }
  return poor;
}"""  # noqa: E501


def barriers(page: Page) -> dict[str, list[str]]:
    """The serious rules of axe that the page breaks, each with the beginnings of the first elements that break it."""
    page.evaluate(_AXE.read_text())
    # Preloading would fetch the style sheets again, which some pages do not permit.
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'], preload: false })")["violations"]
    serious = (one for one in found if one["impact"] in ("serious", "critical"))
    return {one["id"]: [node["html"][:120] for node in one["nodes"][:3]] for one in serious}


def excess_width(page: Page) -> int:
    """By how many px the page is wider than its window."""
    return max(0, int(page.evaluate("document.documentElement.scrollWidth - innerWidth")))


class DrawnText(NamedTuple):
    x: float
    y: float
    text: str


class Drawn:
    """The elements of a figure by their class."""

    def __init__(self, figure: Figure | str | None) -> None:
        assert figure is not None
        self.root = ElementTree.fromstring(f"<div>{figure if isinstance(figure, str) else figure.__html__()}</div>")

    def paths(self, kind: str) -> list[str]:
        return [one.get("d", "") for one in self.root.iterfind(f".//path[@class='{kind}']")]

    def path(self, kind: str) -> str:
        [one] = self.paths(kind)
        return one

    def texts(self, kind: str = "") -> list[DrawnText]:
        """Those of a class, or all."""
        found = self.root.iterfind(f".//text[@class='{kind}']" if kind else ".//text")
        return [DrawnText(float(one.get("x", "")), float(one.get("y", "")), _own(one)) for one in found]


def _own(one: ElementTree.Element) -> str:
    """The text of an element without its title."""
    title = one.find("title")
    return (one.text if title is None else title.tail) or ""


def places(path: str) -> list[tuple[float, float]]:
    """The points that a path begins at or draws lines to."""
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([0-9.-]+) ([0-9.-]+)", path)]
