"""The entries of feeds: ids that last, and texts that XML can hold."""

import re
from dataclasses import replace

import pytest

from kernelwatch.documents.base import moment
from kernelwatch.documents.weekly import WeeklyFailureItem
from service.domain.regressions.lifecycle import Action
from service.reports.feeds.entries import RegressionsChanged, authority, feed_id, regressions_changed, run_failed

AT = 1_795_000_000.0
SHA = "3f2a7c1b22" * 4
CHANGED = RegressionsChanged(
    event_id=7, what=Action.OPEN, at=AT, who="ada", why=None, target="norms", device="h200", count=34,
    regression_id=3, case="rmsnorm.fwd.4096x1024.bf16", ratio=1.214, cause="slower because it spills", revision=SHA,
    subject="One block", shown_by=SHA,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "title"),
    [
        ({}, "norms on h200: 34 regressions opened at 3f2a7c1b22, the largest 21.4 % slower"),
        ({"count": 1}, "norms on h200: 1 regression opened at 3f2a7c1b22, 21.4 % slower"),
        ({"what": Action.FIX, "count": 2}, "norms on h200: 2 regressions fixed by 3f2a7c1b22"),
        ({"what": Action.FIX, "shown_by": None}, "norms on h200: 34 regressions fixed"),
        ({"what": Action.ACKNOWLEDGE, "count": 1}, "norms on h200: 1 regression accepted by ada"),
        ({"what": Action.DISMISS}, "norms on h200: 34 regressions dismissed by ada"),
        ({"what": Action.EXPIRE, "count": 1}, "norms on h200: 1 regression open again"),
    ],
)
def test_a_title_says_where_how_many_and_by_whom(changed: dict, title: str) -> None:
    assert regressions_changed("kw.example", replace(CHANGED, **changed)).title == title


def test_ids_are_tags_of_the_day_and_do_not_depend_on_names() -> None:
    one = regressions_changed("kw.example", CHANGED)
    renamed = regressions_changed("kw.example", replace(CHANGED, target="other", subject="x", count=3))
    assert one.id == renamed.id == "tag:kw.example,2026-11-18:regression-event/7"
    assert feed_id("kw.example", None) != feed_id("kw.example", 1)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("https://KW.example.org:8443/x", "kw.example.org"),
        ("http://127.0.0.1:8712", "127.0.0.1"),
        ("http://[::1]:8712", "kernelwatch.invalid"),
        ("not an address", "kernelwatch.invalid"),
    ],
)
def test_the_authority_of_a_tag_is_a_name_without_a_port(address: str, host: str) -> None:
    assert authority(address) == host


def test_texts_hold_nothing_that_xml_cannot() -> None:
    hostile = "a\x00\x08\x1b[31m\ud800\ufffe\uffff\u202eb</title>" + "x" * 2000
    named = {"target": "norms", "device": "h200", "revision": hostile, "subject": hostile, "reason": hostile}
    run = WeeklyFailureItem.model_construct(run_id=1, at=moment(AT), build=True, **named)
    entry = run_failed("kw.example", run)
    for text in (entry.title, entry.summary):
        assert not re.search("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
        assert len(text) <= 500
