"""Titles of events and subject lines."""

from typing import Any

import pytest

from service.domain.notices import KINDS, EventKind, NotableEvent
from service.reports.feeds.notices import subject, title

SHA = "35e8049abc" + 30 * "0"
CASE = "rmsnorm.fwd.64x4096.bf16"


def event(kind: EventKind, **columns: Any) -> NotableEvent:
    usual: dict[str, Any] = {"target": "norms", "device": "h200", "case": CASE, "ratio": 1.102, "revision": SHA}
    return NotableEvent(kind, 0.0, **usual | columns)


@pytest.mark.parametrize(
    ("kind", "columns", "expected"),
    [
        (EventKind.REGRESSION_OPENED, {}, f"{CASE} of norms on h200: 10.2 % slower since 35e8049abc"),
        (
            EventKind.REGRESSION_OPENED,
            {"case": f"{CASE}.memory"},
            f"{CASE}.memory of norms on h200: 10.2 % more memory since 35e8049abc",
        ),
        (EventKind.REGRESSION_FIXED, {}, f"{CASE} of norms on h200: regression fixed at 35e8049abc"),
        (
            EventKind.REGRESSION_ACCEPTED,
            {"by": "ada", "text": "exact sums"},
            f"{CASE} of norms on h200: 10.2 % slower, accepted by ada: exact sums",
        ),
        (
            EventKind.GAP_OPENED,
            {"ratio": 1.4},
            f"{CASE} of norms on h200: fell behind SOTA at 35e8049abc, 40.0 % slower",
        ),
        (
            EventKind.RUN_FAILED,
            {"run_id": 7, "text": "the build failed\nwith a log"},
            "Run 7 of norms on h200 failed at 35e8049abc: the build failed with a log",
        ),
        (EventKind.WORKER_LOST, {"by": "box/h200-0"}, "Worker box/h200-0 does not answer"),
    ],
)
def test_an_event_is_one_sentence(kind: EventKind, columns: dict[str, Any], expected: str) -> None:
    assert title(event(kind, **columns)) == expected


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_has_a_title_and_a_place_in_subject_lines(kind: EventKind) -> None:
    assert kind in KINDS
    bare = NotableEvent(kind, 0.0)
    assert title(bare)
    assert ": 1 " in subject([bare])


OPENED, FIXED = EventKind.REGRESSION_OPENED, EventKind.REGRESSION_FIXED


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([event(OPENED)], "✗ norms on h200: 1 regression, 10.2 % slower, since 35e8049abc"),
        (
            [event(OPENED, ratio=1 + n / 1000) for n in range(1, 201)],
            "✗ norms on h200: 200 regressions, up to 20.0 % slower, since 35e8049abc",
        ),
        (
            [event(OPENED), event(OPENED, revision="c1", target="softmax")],
            "✗ norms and softmax on h200: 2 regressions, up to 10.2 % slower",
        ),
        ([event(FIXED), event(FIXED)], "✓ norms on h200: 2 regressions fixed"),
        (
            [event(FIXED), event(EventKind.CASE_INVALID), event(OPENED)],
            "✗ norms on h200: 1 wrong result, 1 regression, 10.2 % slower, since 35e8049abc, 1 regression fixed",
        ),
        ([event(EventKind.TARGET_UNREACHABLE, device=None)], "! norms: 1 source unreachable"),
        ([event(EventKind.WORKER_LOST, target=None)], "! h200: 1 worker lost"),
        ([event(EventKind.REGRESSION_ACCEPTED)], "· norms on h200: 1 regression accepted"),
    ],
)
def test_several_events_are_one_subject_line(events: list[NotableEvent], expected: str) -> None:
    assert subject(events) == expected


def test_a_subject_line_cannot_add_a_header_or_a_second_line() -> None:
    hostile = event(OPENED, target="norms\r\nBcc: all@example.org", revision="c\n1")
    assert "\n" not in subject([hostile]) + title(hostile)
    assert "\r" not in subject([hostile]) + title(hostile)
