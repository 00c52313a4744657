"""The ruler against pages whose measures are known, in a real browser."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from playwright.sync_api import Browser

from benchmarks.pages.cost import Cost
from benchmarks.pages.listed import NEEDS, Limits, Page
from benchmarks.pages.looks import Looks, look_at
from benchmarks.pages.refreshing import refresh
from benchmarks.pages.study import COLUMNS, Result, cell
from tests.dashboards.conftest import browser as browser_fixture
from tests.fakes.processes import served

browser = browser_fixture
HEAD = (
    '<!doctype html><html lang="en"><head><title>A page</title><link rel="icon" href="data:,">'
    '<meta name="viewport" content="width=device-width">'
)
GOOD = f"""{HEAD}</head><body style="margin:0"><main><h1>34 regressions</h1>
<p><a href="/a">one</a> <a href="/b">two</a> <a href="/regressions/7" data-needs>seven</a> 1.214</p>
<svg width="200" height="100" role="img" aria-label="A figure"></svg>
<div style="height:2000px"></div></main></body></html>"""
BAD = f"""{HEAD}</head><body style="margin:0"><main><h1>Overview</h1><img src="data:," width="9" height="9">
<div style="width:1500px;text-align:right">1.214</div><div id="late"></div></main>
<script>setTimeout(() => {{
  document.getElementById("late").outerHTML = '<svg width="200" height="300" role="img" aria-label="Late"></svg>';
  document.body.prepend(Object.assign(document.createElement("div"), {{ style: "height:300px" }}));
}}, 700); console.error("a complaint")</script></body></html>"""
LIVE = f"""{HEAD}</head><body><main data-live="5"><h1>Run %d</h1><a href="/x">x</a>
<div style="height:3000px"></div></main>
<script>setInterval(async () => {{
  const next = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
  const morphs = location.pathname === "/morphs";
  const [here, there] = [document, next].map((one) => one.querySelector(morphs ? "main a" : "main"));
  if (morphs) here.title = next.querySelector("h1").textContent;
  else here.replaceChildren(...there.childNodes);
}}, 5000)</script></body></html>"""


@dataclass
class Site:
    address: str
    asked: int = 0

    def page(self, name: str, **more: str) -> Page:
        return Page(name, f"/{name}", needs=more.get("needs", ""))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    app, found = FastAPI(), Site("")
    app.get("/good", response_class=HTMLResponse)(lambda: GOOD)
    app.get("/bad", response_class=HTMLResponse)(lambda: BAD)

    def live() -> str:
        found.asked += 1
        return LIVE % found.asked

    app.get("/replaces", response_class=HTMLResponse)(live)
    app.get("/morphs", response_class=HTMLResponse)(live)
    with served(app) as address:
        found.address = address
        yield found


def test_a_good_page(browser: Browser, site: Site) -> None:
    seen = look_at(browser, site.address, site.page("good", needs=NEEDS), 1.214)
    assert (seen.overflow, seen.overflow_narrow, seen.axe, seen.errors, seen.shift) == (0, 0, 0, 0, 0)
    assert seen.tabs == 3
    assert seen.needs_y is not None
    assert 0 < seen.needs_y < 150
    assert 2000 < seen.height < 2300
    assert seen.worst_shown is True
    assert seen.figure_s is not None
    assert 0.1 < seen.figure_s < 2
    assert len(GOOD) / 1e3 <= seen.weight_kb < 5


def test_a_bad_page(browser: Browser, site: Site) -> None:
    seen = look_at(browser, site.address, site.page("bad", needs=NEEDS), 1.214)
    assert (seen.overflow, seen.overflow_narrow) == (60, 1110)
    assert (seen.tabs, seen.needs_y) == (None, None)
    assert seen.worst_shown is False
    assert seen.axe == 1
    assert any(one.startswith("axe: image-alt") for one in seen.said)
    assert seen.errors == 4  # a complaint each time the page is opened
    assert seen.shift > 0.05
    assert seen.figure_s is not None
    assert seen.figure_s > 0.7


@pytest.mark.parametrize(("path", "survived"), [("replaces", False), ("morphs", True)])
def test_refreshes(browser: Browser, site: Site, path: str, survived: bool) -> None:
    seen = refresh(browser, f"{site.address}/{path}", lambda: None)
    assert seen is not None
    assert (seen.focus, seen.selection, seen.scroll) == (survived, survived, True)
    assert (seen.changes == 10) is not survived


def test_a_page_that_is_not_live(browser: Browser, site: Site) -> None:
    assert refresh(browser, f"{site.address}/good", lambda: None) is None


def test_a_missed_limit_is_marked() -> None:
    page = Page("run", "/runs/1", Limits(cpu_ms=40, needs_y=900), NEEDS)
    slow = Result(page, Cost(40.04, 60, 100, 10), Looks(nodes=3000))
    columns = {column.name: column for column in COLUMNS}
    assert cell(columns["CPU ms"], slow) == ("40.0>40", True)
    assert cell(columns["CPU ms"], replace(slow, cost=Cost(40, 60, 100, 10))) == ("40.0", False)
    assert cell(columns["need at"], slow) == ("none", True)
    assert cell(columns["need at"], replace(slow, looks=None)) == ("–", False)
    assert cell(columns["nodes"], slow) == ("3,000", False)
