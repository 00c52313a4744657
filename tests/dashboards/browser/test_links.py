"""What a page names has a link: commits, runs, pull requests and workers; and every link leads to a page."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from dashboards.links import SERVICE, TERMS
from service.app import create_app
from service.db import models as m
from service.db.engine import reading
from service.ledger.studies import sessions
from tests.big.seed import seed
from tests.big.seeder import Places
from tests.big.story import SMALL
from tests.dashboards.browser.test_every_page import addresses
from tests.dashboards.seed import watched
from tests.service.ledger.studies.literal import session_file

VOID = {"br", "col", "hr", "img", "input", "link", "meta", "source"}
NOT_READ = {"a", "button", "code", "datalist", "option", "pre", "script", "style", "summary", "textarea", "title", "h1"}
HEADS, LEGENDS = {"th", "dt"}, {"head", "legend", "key"}
AS_WRITTEN = {"comment", "docs"}  # what a forge shows without links of pages
# How heads and legends write the terms that have an entry in the glossary.
WRITTEN = {
    "× SOTA": r"(?:×|times) (?:SOTA|quack)",
    "A/A": r"\bA/A\b",
    "slow before": r"slow before",
    "time at stake": r"at stake",
    "ceiling": r"\bceilings?\b",
    "geomean": r"geomean",
    "gate": r"^Gate$",
}
SUBJECT = "Merge pull request"  # words of a commit


class PageText(HTMLParser):
    """The words of a page that are in no link, and its links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.legends: list[str] = []  # texts of heads and legends
        self._depth = self._quoted = 0  # open elements when a head, a legend or a text of Markdown began; 0 outside
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
        if tag == "a":
            self.links.add(given.get("href") or "")
        if tag not in VOID:
            self.open.append(tag)
            kinds = set((given.get("class") or "").split())
            if kinds & AS_WRITTEN:
                self._quoted = len(self.open)
            is_legend = (tag in HEADS or kinds & LEGENDS) and not self._quoted
            if is_legend and not self._depth:
                self._depth = len(self.open)
                self.legends.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass
        if len(self.open) < self._depth:
            self._depth = 0
        if len(self.open) < self._quoted:
            self._quoted = 0

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.legends[-1] += data
        if data.strip() and not NOT_READ.intersection(self.open) and SUBJECT not in data:
            self.words.append(data.strip())


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    def sow(session: Session, _now: float) -> Places:
        for device in ("h200", "b200"):
            sessions.store(session, session_file(device=device))
        return seed(session, SMALL)

    with watched(tmp_path_factory.mktemp("big"), sow) as found:
        yield found


@pytest.fixture(scope="module")
def pages(places: Places) -> dict[str, PageText]:
    """Each page by its address."""
    client = TestClient(create_app(), base_url="http://localhost")
    found = {}
    for address in [one for of_route in addresses(places).values() for one in of_route]:
        answer = client.get(address)
        if answer.status_code == 200 and "html" in answer.headers["content-type"]:
            found[address] = PageText(answer.text)
    return found


def test_what_has_a_page_is_a_link(pages: dict[str, PageText]) -> None:
    with reading() as session:
        known = {sha[:7] for sha in session.scalars(select(m.Revision.sha))}
        workers = set(session.scalars(select(m.Worker.name)))
    named = []
    for address, page in pages.items():
        for words in page.words:
            shas = known.intersection(re.findall(r"\b[0-9a-f]{7}\b", words))
            runs = re.findall(r"^(?!/).*\b(?:by run|pull request) \d+", words)  # "/ run 7" is the page itself
            here = "" if address.startswith("/workers") else next((one for one in workers if words.endswith(one)), "")
            if shas or runs or here:
                named.append((address, words))
    assert not named


def test_every_link_leads_to_a_page(places: Places, pages: dict[str, PageText]) -> None:
    client = TestClient(create_app(), base_url="http://localhost")
    linked = {link.partition("#")[0] for page in pages.values() for link in page.links if link.startswith("/")}
    logs = {link for link in linked if link.endswith("/log")}  # the seed keeps the length of a log alone
    broken = [link for link in sorted(linked - logs) if client.get(link).status_code >= 400]
    assert not broken


def test_a_term_of_a_head_or_a_legend_leads_to_its_entry(pages: dict[str, PageText]) -> None:
    assert WRITTEN.keys() == TERMS.keys()
    unexplained, used = [], set[str]()
    for address, page in pages.items():
        for term, pattern in WRITTEN.items():
            if any(re.search(pattern, " ".join(text.split()), re.IGNORECASE) for text in page.legends):
                used.add(term)
                if SERVICE.term(term) not in page.links:
                    unexplained.append(f"{address}: {term}")
    assert unexplained == []
    assert used == TERMS.keys()


def test_a_worker_is_linked_at_its_row(pages: dict[str, PageText]) -> None:
    with reading() as session:
        rows = {f"worker-{name}" for name in session.scalars(select(m.Worker.name))}
    linked = {link.partition("#")[2] for page in pages.values() for link in page.links if link.startswith("/workers#")}
    assert linked & rows
    assert linked & rows <= pages["/workers"].ids
