"""The picture in a comment: a forge's proxy fetches it without a key, and finds the same for ever, or nothing."""

import html
import re
from urllib.parse import urlsplit
from xml.etree import ElementTree

import httpx
import pytest
from sqlalchemy import update

from service.db.engine import transaction
from service.db.models import Target
from service.settings import settings
from tests.stories.forge.forges import story  # noqa: F401  (a fixture)
from tests.stories.test_story import FAST, WIDE, Story

PICTURE = re.compile(r"\[!\[(?P<alt>[^\n]+)\]\((?P<address>\S+)\)\]\((?P<page>\S+)\)")


@pytest.fixture
def reachable(story: Story, monkeypatch: pytest.MonkeyPatch) -> Story:  # noqa: F811
    """A story whose forge can fetch from the service."""
    monkeypatch.setenv("KERNELWATCH_PUBLIC_URL", story.address)
    settings.cache_clear()
    return story


def picture_of(told: Story) -> re.Match[str]:
    [comment] = told.said(7)
    found = PICTURE.search(comment)
    assert found is not None, comment
    return found


def test_a_comment_has_a_picture_for_each_push_that_changed_something(reachable: Story) -> None:
    reachable.pull(7, action="opened", wide=300.0, fast=150.0)
    first = picture_of(reachable)
    assert WIDE in first["alt"]
    assert " % slower" in first["alt"]
    assert first["address"].startswith(f"{first['page']}/changes.svg?v=")

    answer = httpx.get(first["address"])
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml; charset=utf-8")
    assert answer.headers["cache-control"] == "public, max-age=86400, immutable"
    svg = ElementTree.fromstring(answer.text)
    assert html.unescape(svg.get("aria-label", "")) in first["alt"].replace("\u200b", "").replace("\\", "")
    again = httpx.get(first["address"], headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304

    reachable.pull(7, wide=100.0, fast=150.0)
    second = picture_of(reachable)
    assert second["address"] != first["address"]
    assert FAST in second["alt"]
    assert httpx.get(first["address"]).text == answer.text
    other = httpx.get(first["address"].partition("?")[0])
    assert (other.text, other.headers["cache-control"]) == (answer.text, "private, no-cache")

    reachable.pull(7, wide=200.0, fast=100.0)
    assert "![" not in reachable.said(7)[0]


def test_the_page_of_the_run_shows_the_picture_from_its_own_address(reachable: Story) -> None:
    head = reachable.pull(7, action="opened", wide=300.0, fast=150.0)
    picture = picture_of(reachable)
    page = reachable.api("GET", f"/runs/{reachable.run_of(head).id}/comment").text
    [shown] = re.findall(r'<img src="([^"]+)" alt="([^"]+)">', page)
    parts = urlsplit(picture["address"])
    assert html.unescape(shown[0]) == f"{parts.path}?{parts.query}"
    assert WIDE in shown[1]


def test_a_private_target_has_no_picture_because_a_proxy_has_no_key(reachable: Story) -> None:
    reachable.pull(7, action="opened", wide=300.0, fast=150.0)
    picture = picture_of(reachable)
    with transaction() as session:
        session.execute(update(Target).values(private=True))
    assert httpx.get(picture["address"]).status_code == 404

    reachable.pull(7, wide=400.0, fast=200.0)
    [comment] = reachable.said(7)
    assert " % slower" in comment
    assert "![" not in comment


def test_a_service_without_a_public_address_offers_no_picture(story: Story) -> None:  # noqa: F811
    story.pull(7, action="opened", wide=300.0, fast=150.0)
    assert "![" not in story.said(7)[0]
