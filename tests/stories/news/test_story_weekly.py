"""Weekly report, feeds and badges as a story: slower, accepted, fixed, behind SOTA and ahead again."""

import json
from unittest.mock import ANY
from xml.etree import ElementTree

import feedparser
import pytest
from sqlalchemy import update

from kernelwatch.client import Client
from service.db.engine import clock, reading, transaction
from service.db.models import GapEvent, RegressionEvent, RegressionRow, Run
from service.domain.weekly.weeks import Week
from tests.shell import kernelwatch
from tests.stories.test_story import FAST, WIDE, Story, story  # noqa: F401  (a fixture)

NASTY = "</title><script>alert(1)</script> & ]]> \u202e{{ 7*7 }} \x1b[31m"
WEEK_S = 7 * 86_400.0


def report(options: str = "") -> dict:
    return json.loads(kernelwatch(f"weekly --format json {options}").stdout)


def badge(told: Story, path: str) -> str:
    answer = told.api("GET", f"/badges/norms/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()["message"]


def feed(told: Story, name: str = "norms"):
    answer = told.api("GET", f"/feeds/{name}.atom")
    assert answer.headers["content-type"] == "application/atom+xml; charset=utf-8"
    found = feedparser.parse(answer.content)
    assert not found.bozo, found.get("bozo_exception")
    return found


def a_week_passes() -> None:
    """Everything that has happened until now happened a week earlier."""
    with transaction() as session:
        session.execute(update(Run).values(finished_at=Run.finished_at - WEEK_S))
        session.execute(update(RegressionRow).values(opened_at=RegressionRow.opened_at - WEEK_S))
        session.execute(update(RegressionEvent).values(at=RegressionEvent.at - WEEK_S))
        session.execute(update(GapEvent).values(at=GapEvent.at - WEEK_S))


def test_a_week_of_a_watched_repository(story: Story) -> None:  # noqa: F811
    first = report()
    assert first["headline"] == "1 gap to SOTA opened", "the wide rows begin behind inductor"
    assert first["measured"] == {"runs": 1, "revisions": 1, "pulls": 0, "failed": 0}
    assert first["totals"] == first["slower"] == first["regressions"] == []
    assert badge(story, "status.json") == "no regressions"

    slow = story.push(f"wide rows in two passes {NASTY}", wide=260.0, fast=130.0)
    after = report()
    assert after["headline"].startswith("2 regressions opened")
    [moved] = after["slower"]
    assert (moved["revision"], moved["cases"], moved["case"]) == (slow, 2, WIDE), "one revision, 60 us before 30 us"
    assert (moved["case_stake_us"], moved["stake_us"]) == (pytest.approx(60, rel=0.05), pytest.approx(90, rel=0.05))
    [total] = after["totals"]
    assert total["net_us"] == pytest.approx(90, rel=0.05)
    [opened] = after["regressions"]
    assert (opened["cases"], opened["case"], opened["revision"]) == (2, WIDE, slow), "one commit, one incident"
    assert opened["stake_us"] == pytest.approx(90, rel=0.05)
    assert after["counts"]["unassigned"] == 2
    assert badge(story, "status.json") == "2 regressions"

    ids = {one["case"]: one["id"] for one in story.api("GET", "/api/v1/regressions").json()["items"]}
    kernelwatch(f"regression acknowledge {ids[FAST]} --reason 'exact sums & <b>bold</b> | first' --as ada")
    kernelwatch(f"regression assign {ids[WIDE]} grace --as ada")
    assert badge(story, "status.json") == "1 regression"
    [accepted] = report()["regressions"]
    [decision] = accepted["decisions"]
    assert (decision["who"], decision["reason"]) == ("ada", "exact sums & <b>bold</b> | first")
    assert (accepted["cases"], decision["cases"], accepted["open"]) == (2, 1, 2), "accepted, and still slow"
    fixing = story.push("one pass again", wide=200.0)
    done = report()
    assert done["headline"].startswith("2 regressions opened, 1 fixed and 1 accepted")
    [incident] = done["regressions"]
    assert (incident["cases"], incident["open"]) == (2, 1), "the one that was accepted is still slow"
    assert [(one["state"], one["revision"]) for one in incident["decisions"]] == [
        ("acknowledged", None), ("fixed", fixing),
    ]  # fmt: skip
    assert [(one["revision"], one["case"]) for one in done["slower"]] == [(slow, WIDE)], "each revision has its step"
    assert [(one["revision"], one["case"]) for one in done["faster"]] == [(fixing, WIDE)]
    assert abs(done["totals"][0]["net_us"] - 30) < 5, "the wide rows moved forth and back"
    assert badge(story, "status.json") == "1 regression accepted"

    (story.repository / "broken").write_text("x")
    story.push("broken")
    [failed] = report()["failed"]
    assert failed["build"]
    assert badge(story, "status.json") == "build failed"

    markdown = kernelwatch("weekly --format md").stdout
    assert "<b>" not in markdown
    assert "<script>" not in markdown
    assert r"exact sums &amp; &lt;b&gt;bold&lt;/b&gt; \| first" in markdown
    page = story.api("GET", "/weekly").text
    assert "<script>alert" not in page
    assert "exact sums &amp; &lt;b&gt;bold" in page
    table = kernelwatch("weekly").stdout
    assert "Regressions: 2 opened, 1 fixed, 1 accepted" in table
    assert "one row for each" not in kernelwatch("weekly --format csv").stdout
    with Client(story.address) as client:
        assert client.weekly.get(target="norms").headline == done["headline"]
        assert client.weekly.markdown(target="norms", device="cpu").startswith("## Week ")

    entries = {one.category: one for one in feed(story).entries}
    assert entries["opened"].title.startswith("norms on cpu: 2 regressions opened at ")
    assert entries["fixed"].title == f"norms on cpu: 1 regression fixed by {fixing[:10]}"
    assert entries["accepted"].title == "norms on cpu: 1 regression accepted by ada"
    assert "failed" in entries["failed-run"].title
    assert "&lt;script&gt;" not in entries["opened"].summary
    assert "\x1b" not in entries["opened"].summary


def test_gaps_to_sota_open_and_close(story: Story) -> None:  # noqa: F811
    [gap] = report()["gaps_opened"]
    assert (gap["case"], gap["revision"], gap["ratio_before"]) == (WIDE, story.git("rev-parse", "main"), None)
    assert gap["ratio"] > 1.05
    assert gap["stake_us"] > 0
    behind = badge(story, "sota.json?dtype=fp32&device=cpu")
    assert " × time of inductor" in behind

    a_week_passes()
    assert report()["gaps_opened"] == []
    story.push("one pass, and vectors", wide=20.0)
    now = report()
    [closed] = now["gaps_closed"]
    assert closed["case"] == WIDE
    assert closed["ratio"] < 1 < closed["ratio_before"] == pytest.approx(gap["ratio"])
    assert closed["stake_us"] < 0
    assert now["headline"] == "1 gap to SOTA closed"
    assert report(f"--week {last_week()}")["gaps_opened"] == [gap | {"at": ANY}], "the week before is as it was"
    assert float(badge(story, "sota.json").split()[0]) < float(behind.split()[0])

    story.push("vectors are wrong at the end", wide=460.0)
    again = report()
    assert again["gaps_opened"] == again["gaps_closed"] == [], "behind as it was when the week began"


def last_week() -> str:
    with reading() as session:
        return str(Week.at(clock(session)).previous)


def test_a_finished_week_stays_as_it_was(story: Story) -> None:  # noqa: F811
    story.push("wide rows in two passes", wide=260.0)
    a_week_passes()
    before = report(f"--week {last_week()}")
    assert before["finished"]
    assert before["counts"]["open"] == 1

    story.push("one pass again", wide=200.0)
    assert report()["counts"]["fixed"] == 1
    after = report(f"--week {last_week()}")
    assert after == before, "it was still open on that Sunday"

    [entry] = [one for one in feed(story).entries if one.category == "weekly-report"]
    assert entry.title.endswith(before["headline"])
    assert entry.id == f"tag:127.0.0.1,{Week.parse(last_week()).next.monday}:weekly/{last_week()}/1"


def test_a_feed_is_fetched_again_only_if_it_changed(story: Story) -> None:  # noqa: F811
    story.push("wide rows in two passes", wide=260.0)
    answer = story.api("GET", "/feeds/norms.atom")
    root = ElementTree.fromstring(answer.content)
    atom = "{http://www.w3.org/2005/Atom}"
    ids = [one.text for one in root.iter(f"{atom}id")]
    assert len(ids) == len(set(ids)) == 2
    same = {"If-None-Match": answer.headers["etag"]}
    assert story.api("GET", "/feeds/norms.atom", headers=same).status_code == 304
    known = {"If-Modified-Since": answer.headers["last-modified"]}
    assert story.api("GET", "/feeds/norms.atom", headers=known).status_code == 304
    assert story.api("GET", "/feeds/norms.atom", headers={"If-Modified-Since": "yesterday"}).status_code == 200

    story.push("one pass again", wide=200.0)
    assert story.api("GET", "/feeds/norms.atom", headers=same).status_code == 200
    newer = [one.id for one in feed(story).entries]
    assert newer[-1] == ids[-1], "an entry keeps its id"
