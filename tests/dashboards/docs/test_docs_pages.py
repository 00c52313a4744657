"""The documentation as pages of the service: every file, its links, its pictures and the terms of the glossary."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest
from sqlalchemy.orm import Session

from dashboards.links import GLOSSARY, TERMS
from tests.dashboards.asking import Get, asking
from tests.dashboards.seed import watched

FILES = Path(__file__).parents[3] / "docs"


def sow_nothing(_session: Session, _now: float) -> None:
    """An empty service."""


@pytest.fixture(scope="module")
def get(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Get]:
    with watched(tmp_path_factory.mktemp("empty"), sow_nothing):
        yield asking()


@pytest.fixture(scope="module")
def pages(get: Get) -> dict[str, str]:
    """The text of each page of the documentation by its address."""
    addresses = ["/docs", *(f"/docs/{path.stem}" for path in FILES.glob("*.md") if path.stem != "README")]
    answers = {address: get(address) for address in addresses}
    assert {answer.status_code for answer in answers.values()} == {200}
    return {address: answer.text for address, answer in answers.items()}


def ids(text: str) -> list[str]:
    return re.findall(r'\bid="([^"]+)"', text)


def test_every_link_and_picture_answers(get: Get, pages: dict[str, str]) -> None:
    broken, status, linked = list[tuple[str, str]](), dict.fromkeys(pages, 200), set[str]()
    for address, text in pages.items():
        for link in re.findall(r'(?:href|src|srcset)="([^"]+)"', text):
            parts = urlsplit(urljoin(address, link))
            if parts.scheme:
                continue
            if parts.path not in status:
                status[parts.path] = get(parts.path).status_code
            linked |= {parts.path} - {address}
            anchors = ids(pages[parts.path]) if parts.fragment and parts.path in pages else [parts.fragment]
            if status[parts.path] != 200 or parts.fragment not in anchors:
                broken.append((address, link))
    assert broken == []
    assert pages.keys() <= linked


def test_links_to_other_pages_are_kept_and_links_to_source_are_text(pages: dict[str, str]) -> None:
    assert '<a href="/docs/reading">Reading a result</a>' in pages["/docs/verdicts"]
    assert "<a>Contribute</a>" in pages["/docs"]
    assert not [address for address, text in pages.items() if re.search(r'href="[^"]*\.(md|py)\b', text)]


def test_ids_are_unique(pages: dict[str, str]) -> None:
    for address, text in pages.items():
        assert len(ids(text)) == len(set(ids(text))), address


def test_every_term_has_an_entry(pages: dict[str, str]) -> None:
    assert set(TERMS.values()) <= set(ids(pages[f"/docs/{GLOSSARY}"]))


def test_no_tag_is_shown_as_text(pages: dict[str, str]) -> None:
    """Only pictures are HTML in the files."""
    for address, text in pages.items():
        assert "&lt;" not in re.sub(r"<code>.*?</code>", "", text, flags=re.DOTALL), address


@pytest.mark.parametrize("path", ["/docs/no-such-page", "/docs/pictures/no.png", "/docs/pictures/..%2Fglossary.md"])
def test_other_names_are_no_page(get: Get, path: str) -> None:
    assert get(path).status_code == 404
