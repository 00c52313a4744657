"""Weekly page, feeds and badges in a browser, and for readers who may not know of a target."""

import html
import json
import re
from collections.abc import Iterator

import feedparser
import pytest
from playwright.sync_api import Browser
from sqlalchemy import update

from service.db.engine import transaction
from service.db.models import Target
from service.domain.weekly.weeks import Week
from tests.dashboards import seed_deciding
from tests.dashboards.conftest import reachable
from tests.dashboards.inspection import CONTRAST
from tests.dashboards.seed import watched
from tests.fakes.api import Api

BADGES = ("status.svg", "status.json", "sota.svg", "sota.json")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with watched(tmp_path_factory.mktemp("news"), seed_deciding.seed):
        yield Api()


def test_a_private_target_looks_like_none_without_its_key(api: Api) -> None:
    reader = api.with_key("read:norms")
    with transaction() as session:
        session.execute(update(Target).where(Target.name == "norms").values(private=True))
    try:
        for badge in BADGES:
            hidden, unknown = (api.at(f"/badges/{name}/{badge}") for name in ("norms", "nobody"))
            assert (hidden.status_code, hidden.text) == (404, unknown.text)
            assert "not found" in hidden.text
            shown = reader.at(f"/badges/norms/{badge}")
            assert shown.status_code == 200
            assert shown.headers["cache-control"] == "private, no-cache"
        assert api.at("/feeds/norms.atom").status_code == 404
        assert "norms" not in api.at("/feeds/all.atom").text
        assert "norms on h200" in reader.at("/feeds/all.atom").text
        weeks = [reader.get("/weekly").json()["week"], str(Week.parse(reader.get("/weekly").json()["week"]).previous)]
        assert any("norms" in reader.get(f"/weekly/markdown?week={week}").text for week in weeks)
        drifted = [reader.get(f"/weekly?week={week}").json()["counts"]["drifts"] for week in weeks]
        assert sum(drifted) == 1
        for week in weeks:
            assert "norms" not in api.get(f"/weekly?week={week}").text
            assert api.get(f"/weekly?week={week}").json()["counts"]["drifts"] == 0
            assert "norms" not in api.at(f"/weekly/{week}").text
        assert api.get("/weekly?target=norms").status_code == 404
        assert api.get("/targets/norms/drifts").status_code == 404
        assert len(reader.get("/targets/norms/drifts").json()["items"]) == 1
    finally:
        with transaction() as session:
            session.execute(update(Target).values(private=False))


def test_a_configuration_that_changed_without_a_commit_is_in_the_week_of_its_run(api: Api) -> None:
    this = Week.parse(api.get("/weekly").json()["week"])
    reports = {str(week): api.get(f"/weekly?week={week}").json() for week in (this, this.previous)}
    [(week, drift)] = [(name, one) for name, found in reports.items() for one in found["drifts"]]
    assert (drift["before"], drift["now"]) == ("_backward num_warps=4", "_backward num_warps=8")
    page = api.at(f"/weekly/{week}").text
    assert "_backward num_warps=8" in page
    links = re.findall(r'href="(/(?:runs|targets/norms/facts)[^"]*)"', page[page.index("changed without a commit") :])
    for link in {html.unescape(one) for one in links}:
        assert api.at(link).status_code == 200, link
    assert f"/runs/{drift['run_id']}" in links
    markdown = api.get(f"/weekly/markdown?week={week}").text
    assert "**Configurations that changed without a commit** (1 case)" in markdown
    assert f"/runs/{drift['earlier_run_id']})" in markdown


def test_a_drift_is_an_entry_of_the_feed_and_an_item_of_the_list(api: Api) -> None:
    [item] = api.get("/targets/norms/drifts").json()["items"]
    assert (item["before"], item["now"]) == ("_backward num_warps=4", "_backward num_warps=8")
    assert api.get("/targets/norms/drifts?device=b200").json()["items"] == []
    entries = feedparser.parse(api.at("/feeds/norms.atom").content).entries
    [entry] = [one for one in entries if one.category == "configuration-drift"]
    assert entry.title == f"norms on {item['device']}: 1 configuration changed without a commit"
    assert f"Run {item['run_id']} against run {item['earlier_run_id']}" in entry.summary
    path = entry.link[entry.link.index("/targets/") :]
    assert path == "/targets/norms/facts#drifts"
    assert api.request("GET", path, below="").status_code in (200, 303)


def test_a_badge_is_kept_for_minutes_and_fetched_again_only_if_it_changed(api: Api) -> None:
    answer = api.at("/badges/norms/status.svg")
    assert answer.headers["content-type"] == "image/svg+xml; charset=utf-8"
    assert answer.headers["cache-control"] == "max-age=300"
    again = api.request("GET", "/badges/norms/status.svg", below="", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
    document = json.loads(api.at("/badges/norms/status.json").text)
    assert document.keys() == {"schemaVersion", "label", "message", "color", "isError", "cacheSeconds"}
    assert document["message"] in answer.text


def test_pages_name_their_feeds(api: Api) -> None:
    links = re.compile(r'<link rel="alternate" type="application/atom\+xml"[^>]* href="([^"]+)">')
    assert links.findall(api.at("/weekly").text) == ["/feeds/all.atom"]
    assert links.findall(api.at("/targets/norms").text) == ["/feeds/all.atom", "/feeds/norms.atom"]
    for address in links.findall(api.at("/targets/norms").text):
        assert api.at(address).status_code == 200


@pytest.mark.parametrize("width", [390, 1280])
def test_the_weekly_page_fits_and_can_be_read(browser: Browser, api: Api, width: int) -> None:
    complaints: list[str] = []
    with reachable() as address:
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{address}/weekly")
        page.get_by_role("link", name="Previous week").click()
        page.get_by_label("Target").select_option("norms")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**target=norms**")
        assert page.locator("h1").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert page.evaluate(CONTRAST) == []
        assert page.locator("th:not([scope])").count() == 0
        page.close()
    assert complaints == []


# The natural widths of both texts, and how far they reach when they are drawn.
WIDTHS = """() => [...document.querySelectorAll("text")].map((one) => {
  const drawn = one.getBBox(), wanted = one.textLength.baseVal.value;
  one.removeAttribute("textLength");
  return { wanted, end: drawn.x + drawn.width, drawn: drawn.width, natural: one.getComputedTextLength() };
})"""


def test_the_text_of_a_badge_is_not_clipped_and_hardly_stretched(browser: Browser, api: Api) -> None:
    with reachable() as address:
        page = browser.new_page()
        for path in ("norms/status.svg", "norms/sota.svg", "norms/status.svg?device=WiMl-01.×·漢", "nobody/sota.svg"):
            page.goto(f"{address}/badges/{path}")
            whole = page.evaluate("document.documentElement.getBBox().width")
            ground = page.evaluate("document.querySelectorAll('rect')[1].getBBox().width")
            label, message = page.evaluate(WIDTHS)
            assert label["end"] <= ground
            assert message["end"] <= whole
            for text in (label, message):
                assert text["drawn"] == pytest.approx(text["wanted"], abs=1.5)
                assert text["natural"] == pytest.approx(text["wanted"], rel=0.06)
        page.close()
