"""A served dashboard with a few days in it, and a real browser to look at it."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from service.app import create_app
from tests import needs
from tests.dashboards.inspection import SHIFTS
from tests.dashboards.lists import seed_big
from tests.dashboards.seed import Seeded, watched

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 30_000  # of `expect`, on a machine that other programs keep busy


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service with many targets and incidents, hostile names and trouble of every kind."""
    with (
        watched(tmp_path_factory.mktemp("big"), seed_big.small),
        reachable() as address,
    ):
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        needs.skip("chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Any]:
    """Opens pages, each in a context of its own.  An error on the console or a report of the policy fails the test."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def open_page(url: str = "", **options: Any) -> Page:
        context = browser.new_context(viewport={"width": 1440, "height": 900} | options.pop("viewport", {}), **options)
        contexts.append(context)
        page = context.new_page()
        page.add_init_script(SHIFTS)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        if url:
            page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page(opened: Any) -> Page:
    found: Page = opened()
    return found


@contextmanager
def reachable(port: int = 0) -> Iterator[str]:
    """The address of an app that a browser can reach."""
    server = uvicorn.Server(uvicorn.Config(create_app(), host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server ended before it had started: is the port in use?"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def served(seeded: Seeded) -> Iterator[tuple[str, Seeded]]:
    """The address of an app that a browser can reach, and what is in its database."""
    with reachable() as address:
        yield address, seeded
