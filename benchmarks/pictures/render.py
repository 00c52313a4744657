"""Show Markdown and annotations as GitHub does, and take pictures of them in light and dark."""

import shutil
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import playwright.sync_api as playwright
from markdown_it import MarkdownIt

from service.reports.payloads import CheckAnnotation
from tests.dashboards.conftest import ARGUMENTS, BROWSERS, reachable

_READER = MarkdownIt("commonmark", {"html": True}).enable("table")  # our comments use no other extension of GitHub
_STYLE = Path(__file__).with_name("github.css")
_AROUND = 3  # lines of the source above and below an annotation


def comment(body: str, author: str = "kernelwatch", *, bot: bool = True) -> str:
    """A comment on a pull request."""
    label = " <code>bot</code>" if bot else ""
    return f"<div class=box><header><b>{escape(author)}</b>{label} commented</header>{_body(body)}</div>"


def message(subject: str, body: str) -> str:
    """A mail or a chat message with its subject."""
    return f"<div class=box><header><b>{escape(subject)}</b></header>{_body(body)}</div>"


def check(name: str, title: str) -> str:
    """The line of a check in the list of a pull request."""
    return f"<div class=box><header><b>{escape(name)}</b> {escape(title)}</header></div>"


def annotated(text: str, annotations: Sequence[CheckAnnotation]) -> str:
    """The lines of a file around its annotations, as in *Files changed*."""
    lines = text.splitlines()
    ends = {one.end_line: one for one in annotations}
    first = max(1, min(one.start_line for one in annotations) - _AROUND)
    last = min(len(lines), max(ends) + _AROUND)
    shown = []
    for number in range(first, last + 1):
        shown.append(f"<div><i>{number}</i>{escape(lines[number - 1])}</div>")
        if one := ends.get(number):
            said = f"<p><b>{escape(one.annotation_level.value)}: {escape(one.title)}</b></p>"
            shown.append(f"<div class='remark {one.annotation_level}'>{said}<pre>{escape(one.message)}</pre></div>")
    path = annotations[0].path
    return f"<div class=box><header><b>{escape(path)}</b></header><div class=source>{''.join(shown)}</div></div>"


def take(pictures: Mapping[str, str], folder: Path) -> list[Path]:
    """Write each page as `NAME.png` and `NAME-dark.png`."""
    style, taken = _STYLE.read_text(), []
    browser_path = next(path for path in map(shutil.which, BROWSERS) if path)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=browser_path, args=ARGUMENTS)
        for theme, ending in (("light", ""), ("dark", "-dark")):
            page = browser.new_page(viewport={"width": 860, "height": 100}, color_scheme=theme)  # type: ignore[arg-type]
            for name, body in pictures.items():
                page.set_content(f"<!doctype html><html class={theme}><style>{style}</style><body>{body}</body></html>")
                file = folder / f"{name}{ending}.png"
                page.screenshot(path=file, full_page=True)
                taken.append(file)
        browser.close()
    return taken


def take_pages(addresses: Mapping[str, str], folder: Path, top: int | None = None) -> list[Path]:
    """Write pages of the dashboard, served from the database of this process, in the same way.

    With `top`, a longer page is cut after so many pixels.
    """
    taken = []
    browser_path = next(path for path in map(shutil.which, BROWSERS) if path)
    with reachable() as host, playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=browser_path, args=ARGUMENTS)
        for theme, ending in (("light", ""), ("dark", "-dark")):
            page = browser.new_page(viewport={"width": 1280, "height": 600}, color_scheme=theme)  # type: ignore[arg-type]
            for name, address in addresses.items():
                page.goto(host + address)
                file = folder / f"{name}{ending}.png"
                height = page.evaluate("document.documentElement.scrollHeight")
                clip = {"x": 0, "y": 0, "width": 1280, "height": min(height, top or height)}
                page.screenshot(path=file, full_page=True, clip=clip)  # type: ignore[arg-type]
                taken.append(file)
        browser.close()
    return taken


def _body(markdown: str) -> str:
    return f"<div class=body>{_READER.render(markdown)}</div>"
