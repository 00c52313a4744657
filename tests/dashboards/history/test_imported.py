"""The pages of what was measured elsewhere say what it is, and what became worse."""

import json
import re
from html import unescape
from urllib.parse import parse_qs, urlencode, urlsplit
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.pages.history.imported import figure_of
from service.domain.ingest import LARGEST_SAMPLE
from service.reports.imported import imported_series
from tests import world
from tests.dashboards.asking import Get, words
from tests.fakes.api import Api
from tests.service.reports.test_imported import NOISE, point

BATCH = {"tool": "asv 0.6", "machine": "ci-7", "device": "cpu"}
THROUGHPUT = {"provider": "norms", "case": "norm 64", "unit": "GB/s", "better": "larger"}


@pytest.fixture
def sent(state: object) -> None:
    world.target(name="norms")
    world.target(name="quiet")
    values = [900 + 100 * d for d in NOISE] + [700 + 100 * d for d in NOISE]
    lines: list[dict[str, object]] = [
        {"revision": f"r{n}", "samples": [value], **THROUGHPUT} for n, value in enumerate(values)
    ]
    lines.append({"revision": "r20", "missing": "oom", **THROUGHPUT})
    lines.append({"revision": "r20", "provider": "norms", "case": "rmsnorm.fwd.64x64.bf16", "samples": [7.31]})
    body = "".join(json.dumps(line) + "\n" for line in ({"batch": BATCH}, *lines)).encode()
    headers = {"Content-Type": "application/x-ndjson"}
    made = Api().with_key("ingest:norms").request("POST", "/targets/norms/ingested", content=body, headers=headers)
    assert made.status_code == 201, made.text


def series(case: str) -> str:
    return f"/targets/norms/imported/series?{urlencode({'device': 'cpu', 'provider': 'norms', 'case': case})}"


@pytest.mark.usefixtures("sent")
def test_a_target_links_what_was_measured_elsewhere_if_there_is_any(get: Get) -> None:
    assert "/targets/norms/imported" in get("/targets/norms").text
    assert "/imported" not in get("/targets/quiet").text
    listed = words(get("/targets/norms/imported"))
    assert "2 series measured elsewhere" in listed
    assert "No verdict, baseline or gate uses them" in listed
    assert "norm 64 norms cpu out of memory larger" in listed
    assert "rmsnorm.fwd.64x64.bf16 norms cpu 7.31 µs smaller" in listed
    assert "1 series measured elsewhere" in words(get("/targets/norms/imported?q=RMS"))
    assert "No series has “quack” in its name" in words(get("/targets/norms/imported?q=quack"))
    assert "Nothing was sent yet" in words(get("/targets/quiet/imported"))


@pytest.mark.usefixtures("sent")
def test_a_series_shows_its_levels_and_what_became_worse(get: Get) -> None:
    page = get(series("norm 64"))
    said = words(page)
    assert "measured elsewhere: 700 GB/s; larger is better. No verdict, baseline or gate uses it." in said
    assert "advisory: its sessions compared nothing in turns" in said
    assert "r10 compare r10 with the one before ▼ −22.2 % worse" in said
    assert "r20 out of memory" in said
    assert page.text.count('class="change slower"') == 2, "once for wide windows, and once for phones"
    assert get(series("norm 65")).status_code == 404


@pytest.mark.usefixtures("sent")
def test_a_short_series_has_no_change(get: Get) -> None:
    assert "None was found." in words(get(series("rmsnorm.fwd.64x64.bf16")))


@pytest.mark.usefixtures("sent")
def test_two_revisions_are_compared_with_what_is_worse_first(get: Get) -> None:
    assert "/targets/norms/imported/compare?base=r9&amp;head=r10" in get(series("norm 64")).text
    said = words(get("/targets/norms/imported/compare?base=r9&head=r10"))
    assert "1 series of two revisions" in said
    assert "norm 64 norms cpu 900 GB/s 700 GB/s −22.2 % worse" in said
    assert "900 GB/s out of memory –" in words(get("/targets/norms/imported/compare?base=r9&head=r20"))
    assert "No series was measured of both r9 and r99" in words(get("/targets/norms/imported/compare?base=r9&head=r99"))
    assert "Compare two revisions" in words(get("/targets/norms/imported/compare"))


@pytest.mark.usefixtures("sent")
def test_changes_of_a_series_are_in_a_feed_of_its_own(get: Get) -> None:
    address = series("norm 64").replace("/targets/norms/imported/series", "/feeds/norms/imported.atom")
    [link] = re.findall(r'<link rel="alternate" [^>]*href="([^"]+imported[^"]+)"', get(series("norm 64")).text)
    assert parse_qs(urlsplit(unescape(link)).query) == parse_qs(urlsplit(address).query)
    feed = get(address)
    assert feed.headers["content-type"].startswith("application/atom+xml")
    root = ET.fromstring(feed.content)  # our own
    [entry] = root.findall("{http://www.w3.org/2005/Atom}entry")
    title = entry.findtext("{http://www.w3.org/2005/Atom}title")
    assert title == "norms on cpu: norm 64 by norms 22.2 % worse at r10, measured elsewhere"
    assert get(address.replace("64", "65")).status_code == 404


@given(
    st.lists(st.floats(0, LARGEST_SAMPLE), min_size=1, max_size=40), st.sampled_from(["us", "bytes", "count", "GB/s"])
)
def test_a_figure_is_drawn_of_any_values(values: list[float], unit: str) -> None:
    shown = imported_series([point(n, value, unit=unit) for n, value in enumerate(values)])
    for width in (360, 960):
        assert "nan" not in figure_of(shown, width, "a").__html__()
