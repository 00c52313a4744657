"""Messages: the document for programs and the text for people."""

from typing import Any

import pytest

from service.domain.notices import EventKind, NotableEvent
from service.domain.states import GateAction
from service.reports.feeds import notices
from service.reports.feeds.notices import NoticeDocument

HERE = "http://kernelwatch"
OPENED, FIXED, FAILED = EventKind.REGRESSION_OPENED, EventKind.REGRESSION_FIXED, EventKind.RUN_FAILED


def event(kind: EventKind, number: int, **columns: Any) -> NotableEvent:
    usual: dict[str, Any] = {"target": "norms", "device": "h200", "case": f"rmsnorm.fwd.{number}x64.bf16"}
    ids = {} if kind is FAILED else {"regression_id": number, "incident_id": 1, "ratio": 1 + number / 100}
    return NotableEvent(kind, 0.0, **usual | ids | columns)


def document(*events: NotableEvent, **options: Any) -> NoticeDocument:
    return notices.document(events, subscription_id=1, address=HERE, at=0.0, **options)


def rows(found: NoticeDocument) -> list[str]:
    return notices.body(found).split("\n\n")


def test_an_incident_is_one_row_with_its_cause_and_the_page_of_the_largest() -> None:
    found = document(
        event(OPENED, 3, incident_id=2, text=None),
        *(event(OPENED, n, text="the kernel spills", revision="c1") for n in (4, 5)),
        event(FAILED, 9, run_id=9, text="no such header"),
    )
    assert rows(found) == [
        f"`✗ norms on h200: 2 regressions, up to 5.0 % slower, since c1 (the kernel spills)` <{HERE}/regressions/5>",
        f"`rmsnorm.fwd.3x64.bf16 of norms on h200: 3.0 % slower` <{HERE}/regressions/3>",
        f"`Run 9 of norms on h200 failed: no such header` <{HERE}/runs/9>",
        f"All regressions: <{HERE}/regressions>",
    ]


def test_of_many_the_first_are_shown_and_the_rest_is_counted() -> None:
    found = document(*(event(OPENED, n, incident_id=n) for n in range(1, 251)), dropped=7)
    shown = rows(found)
    assert len(shown) == notices.MAX_ROWS + 3
    assert shown[-3:-1] == ["and 240 more", "7 events were dropped, because they were older than a week"]
    assert (len(found.data.events), found.data.left_out, found.data.counts) == (200, 50, {OPENED: 250})


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([event(FIXED, 1)], None),
        ([event(FIXED, 1), event(FAILED, 2)], GateAction.WARN),
        ([event(FAILED, 1), event(OPENED, 2)], GateAction.FAIL),
    ],
)
def test_good_news_has_no_severity_in_a_chat(events: list[NotableEvent], expected: GateAction | None) -> None:
    assert notices.severity(document(*events)) is expected


def test_a_title_mentions_nobody() -> None:
    found = document(event(OPENED, 1, target="@everyone <!channel>"))
    assert "@everyone" not in found.data.title
    assert "<!channel>" not in found.data.title
