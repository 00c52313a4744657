"""Two revisions side by side: the order and geometry of the cases as values, the page as text and in a browser."""

import csv
import io
import re
from collections.abc import Sequence
from html import unescape

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy.orm import joinedload

from dashboards.pages.history.compare import WIDTH, Show, Sort, compose
from service.db.engine import transaction
from service.db.models import Pull, Run
from service.domain.states import ComparisonMethod, Direction
from service.domain.verdicts.samples import PairedRatio
from service.reports.rows import ComparedCase
from tests.dashboards.asking import Get, words
from tests.dashboards.inspection import Drawn
from tests.dashboards.seed import Seeded


def case(name: str, ratio: float | None, direction: Direction, base: float = 100.0) -> ComparedCase:
    interval = PairedRatio(ratio, ratio * 0.99, ratio * 1.01) if ratio else None
    method = ComparisonMethod.PAIRED if ratio else ComparisonMethod.UNPAIRED
    return ComparedCase("norms", name, method, direction, base, base * (ratio or 1.0), interval, (1,))


CASES = (
    case("rmsnorm.fwd.32768x1024.bf16", 1.001, "same"),
    case("rmsnorm.fwd.32768x8192.bf16", 1.05, "slower", base=1000.0),
    case("rmsnorm.bwd.32768x1024.bf16", 1.2, "slower", base=10.0),
    case("layernorm.fwd.4096x768.bf16", 0.8, "faster"),
    case("layernorm.bwd.4096x768.bf16", None, "unknown"),
)


@pytest.mark.parametrize(
    ("show", "sort", "text", "columns"),
    [
        (Show.CHANGED, Sort.RATIO, "", ["bwd.32768x1024", "fwd.32768x8192", "fwd.4096x768"]),
        (Show.CHANGED, Sort.LOST, "", ["fwd.32768x8192", "bwd.32768x1024", "fwd.4096x768"]),
        (Show.CHANGED, Sort.RATIO, "RMSNORM fwd", ["fwd.32768x8192"]),
        (Show.ALL, Sort.RATIO, "rmsnorm", ["bwd.32768x1024", "fwd.32768x8192", "fwd.32768x1024"]),
        (Show.ALL, Sort.NAME, "layernorm", ["bwd.4096x768", "fwd.4096x768"]),
        (Show.CHANGED, Sort.RATIO, "softmax", []),
    ],
)
def test_what_is_listed_and_in_which_order(show: Show, sort: Sort, text: str, columns: Sequence[str]) -> None:
    found = compose(CASES, show, sort, text)
    assert [one.case.case.partition(".")[2].removesuffix(".bf16") for one in found.lines] == columns


def test_every_interval_is_within_the_column_and_noise_stays_small() -> None:
    found = compose([*CASES, case("rmsnorm.fwd.1x64.bf16", 40.0, "slower")], Show.ALL)
    for one in found.lines:
        if one.case.ratio:
            whisker, *_ = Drawn(one.interval).root.iterfind(".//path")
            start, end = (float(text) for text in re.findall(r"[\d.]+(?= 11|$)", whisker.get("d", "")))
            assert 0 <= start <= end <= WIDTH
    quiet = compose([case("rmsnorm.fwd.1x64.bf16", 1.004, "same")], Show.ALL)
    assert quiet.axis(1.004) - quiet.axis(1.0) < WIDTH / 20


def test_the_mean_is_over_all_that_have_a_ratio() -> None:
    assert compose(CASES).geomean == pytest.approx((1.001 * 1.05 * 1.2 * 0.8) ** 0.25)
    assert compose([CASES[-1]]).geomean is None


def asked(get: Get, **more: str) -> str:
    params = {"base": "35e8049", "head": "pull/7", "device": "h200"} | more
    return words(get("/targets/norms/compare", params={key: one for key, one in params.items() if one}))


def test_the_page_says_what_differs(get: Get, seeded: Seeded) -> None:
    base, head = (get(f"/api/v1/runs/{seeded.runs[name]}").json()["revision"] for name in ("steady", "slow"))
    said = asked(get, base=base, head=head, show="all")
    assert re.search(r"of \d+ cases, \w{10} against \w{10} on h200", said)
    assert "paired: one session measured both in turns" in said
    export = get("/targets/norms/compare.csv", params={"base": base, "head": head, "device": "h200"})
    rows = list(csv.reader(io.StringIO(export.text)))
    assert rows[0][:3] == ["provider", "case", "direction"]
    assert len(rows) > 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"base": "ffffffffff"}, "no revision of norms"),
        ({"head": "pull/9999"}, "no pull request of norms"),
        ({"device": "b200", "base": "mainline", "head": "mainline"}, "was measured on this device"),
        ({"base": ""}, "Choose two commits"),
    ],
)
def test_the_form_says_why_two_revisions_cannot_be_compared(
    get: Get, seeded: Seeded, more: dict[str, str], why: str
) -> None:
    said = asked(get, **more)
    assert why.lower() in said.lower()
    assert "Compare" in said


def test_recent_revisions_are_offered_with_what_they_are(get: Get, seeded: Seeded) -> None:
    with transaction() as session:
        run = session.get_one(Run, seeded.runs["pull"], options=[joinedload(Run.revision)])
        session.add(Pull(target_id=run.target_id, number=7, head=run.revision.sha))
    page = get("/targets/norms/compare", params={"device": "h200"})
    said = words(page)
    assert re.search(r"Recent revisions that were measured on h200 .* pull/7 Try num_warps=16 everywhere", said)
    assert re.search(r"Sum in bf16 main .*? ago as base · as head · with the one before", said)
    assert "Say in the README" not in said, "it was not measured"
    assert '<option value="main">the newest that was measured</option>' in page.text
    links = re.findall(r'<a href="([^"]+)">with (?:main|the one before)</a>', page.text)
    assert len(links) >= 4
    for link in links:
        assert "of 6 cases" in words(get(unescape(link))), link
    chosen = re.search(r'<a href="([^"]+)">as base</a>', page.text)
    assert chosen is not None
    filled = get(unescape(chosen[1])).text
    assert re.search(r'name="base" list="offered" value="[^"]+"', filled)
    assert "as head" in filled, "it still offers the other side"


@pytest.mark.parametrize("width", [390, 1280])
def test_two_revisions_are_chosen_and_swapped(browser: Browser, served: tuple[str, Seeded], width: int) -> None:
    address, _ = served
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(f"{address}/targets/norms/compare")
    page.get_by_label("Base").fill("mainline")
    page.get_by_label("Head").fill("mainline")
    page.get_by_label("Device").select_option("h200")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**base=mainline*")
    page.get_by_role("link", name="all", exact=False).last.click()
    expect(page.locator("table.cmp")).to_be_visible()
    page.get_by_role("link", name="Swap").click()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.close()
