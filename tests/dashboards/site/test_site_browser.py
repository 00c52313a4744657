"""The site in a real browser: from a plain file server below any path, and from the disk."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.dashboards.browser.variants import SCHEMES_AND_WIDTHS
from tests.dashboards.inspection import barriers
from tests.dashboards.seed import CASES
from tests.dashboards.site import published

PAGES = (
    "index.html",
    "about.html",
    "404.html",
    "docs/glossary.html",
    "targets/norms/h200/index.html",
    f"targets/norms/h200/trends/norms/{CASES[3]}.html",
    "targets/pkg/h200/releases.html",
    "targets/pkg/h200/releases/1.1.0.html",
)


class Quiet(SimpleHTTPRequestHandler):
    """`python -m http.server` without its log."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("web")
    with published.ledger(tmp_path_factory.mktemp("state")):
        published.exported(root / "some" / "path")
    return root


@pytest.fixture(scope="module", params=["server", "disk"])
def address(folder: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the site is, without a trailing slash."""
    if request.param == "disk":
        yield f"file://{folder}/some/path"
        return
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/some/path"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@SCHEMES_AND_WIDTHS
def test_every_page_fits_and_can_be_read(page: Page, address: str, width: int, scheme: str) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    for path in PAGES:
        page.goto(f"{address}/{path}")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
        assert barriers(page) == {}, path


def test_its_own_styles_are_used(page: Page, address: str) -> None:
    page.goto(f"{address}/targets/norms/h200/index.html")
    sheets = page.evaluate("[...document.styleSheets].map((one) => one.href.split('/').pop().split('-')[0])")
    assert sheets[0] == "kernelwatch"
    assert page.locator("main").evaluate("(one) => getComputedStyle(one).maxWidth") == "1280px"


def test_a_reader_goes_from_the_list_to_a_case_and_back(page: Page, address: str) -> None:
    page.goto(f"{address}/index.html")
    page.get_by_role("row", name="pkg").get_by_role("link", name="h200").click()
    assert "behind on 6" in page.locator("h1").inner_text()
    page.locator("#behind td").get_by_role("link").first.click()
    page.locator(".wide-only svg").wait_for()
    page.get_by_role("link", name="The board of pkg on h200").click()
    page.get_by_role("link", name="Releases, each against the one before").click()
    page.get_by_role("link", name="1.1.0").first.click()
    assert "6 cases" in page.locator("h1").inner_text()
    page.get_by_role("link", name="Boards").first.click()
    assert page.url == f"{address}/index.html"


def test_the_theme_can_be_chosen_and_stays(page: Page, address: str) -> None:
    page.goto(f"{address}/index.html")
    page.get_by_role("button", name="Theme: system").click()
    page.goto(f"{address}/about.html")
    page.get_by_role("button", name="Theme: light").wait_for()


def test_it_needs_no_script(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/targets/norms/h200/index.html")
    assert page.get_by_role("heading", level=1).is_visible()
    assert page.get_by_role("button").count() == 0
    context.close()


def test_nothing_is_loaded_from_elsewhere(page: Page, address: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in PAGES:
        page.goto(f"{address}/{path}")
    assert asked
    assert all(one.startswith((address, "data:")) for one in asked)
