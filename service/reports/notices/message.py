"""A message about several events: its document, and its text in Markdown.

Names, reasons and errors come from elsewhere.  In the text they are code spans, in which no service finds markup,
mentions or links.
"""

from collections.abc import Sequence
from itertools import groupby

from service.domain.notices import SEVERITIES, NotableEvent, SubjectChange
from service.domain.states import GateAction
from service.domain.text import one_line, span
from service.reports.notices.subscriptions import MAX_EVENTS, NoticeData, NoticeDocument, NoticeItem
from service.reports.notices.titles import subject

MAX_ROWS = 10  # of the text; the rest is counted


def document(
    events: Sequence[NotableEvent], *, subscription_id: int, address: str, at: float, dropped: int = 0
) -> NoticeDocument:
    """The document of a message; events of one incident are next to each other, the most severe first."""
    ordered = sorted(events, key=_place)
    counts = {kind: sum(one.kind is kind for one in ordered) for kind in dict.fromkeys(one.kind for one in ordered)}
    data = NoticeData(
        subscription_id=subscription_id,
        title=inert(subject(ordered)) if ordered else f"! kernelwatch: {dropped} events dropped",
        severity=max((one.severity for one in ordered), key=SEVERITIES.index, default=GateAction.WARN),
        url=f"{address}/regressions",
        counts=counts,
        events=[NoticeItem.of(one, address) for one in ordered[:MAX_EVENTS]],
        left_out=max(0, len(ordered) - MAX_EVENTS),
        dropped=dropped,
    )
    return NoticeDocument.model_validate({"type": "notice", "timestamp": at, "data": data})


def trial(subscription_id: int, address: str, at: float) -> NoticeDocument:
    """What a test of a subscription sends."""
    data = NoticeData(
        subscription_id=subscription_id,
        title=f"· kernelwatch: test of subscription {subscription_id}",
        severity=GateAction.PASS,
        url=address,
        counts={},
        events=[],
        left_out=0,
        dropped=0,
    )
    return NoticeDocument.model_validate({"type": "notice.test", "timestamp": at, "data": data})


def body(found: NoticeDocument) -> str:
    """The text of a message: a row for each incident and each other event, worst first; of many only the first."""
    data = found.data
    if found.type == "notice.test":
        return f"This channel works. <{data.url}>"
    groups = [list(group) for _, group in groupby(data.events, key=_group_of)]
    rows = [_row(group) for group in groups[:MAX_ROWS]]
    rest = sum(map(len, groups[MAX_ROWS:])) + data.left_out
    if rest:
        rows.append(f"and {rest} more")
    if data.dropped:
        rows.append(f"{data.dropped} events were dropped, because they were older than a week")
    return "\n\n".join([*rows, f"All regressions: <{data.url}>"])


def severity(found: NoticeDocument) -> GateAction | None:
    """The highest severity of what is not over; None where everything is good news."""
    opening = [one.severity for one in found.data.events if _change_of(one) is not SubjectChange.CLOSES]
    if not opening and found.data.events:
        return None
    return max(opening, key=SEVERITIES.index, default=found.data.severity)


def inert(text: str) -> str:
    """A line in which no service finds a mention."""
    return text.replace("@", "@\u200b").replace("<!", "<\u200b!")


def _row(group: Sequence[NoticeItem]) -> str:
    worst = group[0]
    said = worst.title if len(group) == 1 else subject([_event_of(one) for one in group])
    cause = f" ({worst.text})" if len(group) > 1 and worst.text else ""
    return f"{span(one_line(said + cause))} <{worst.url}>"


def _group_of(one: NoticeItem) -> tuple[object, ...]:
    """Regressions of one incident, and what one run showed."""
    if one.incident_id is not None:
        return "incident", one.incident_id
    return one.kind, one.target, one.device, one.run_id


def _place(event: NotableEvent) -> tuple[object, ...]:
    severe = -SEVERITIES.index(event.severity)
    return (
        severe,
        event.incident_id or 0,
        event.kind,
        event.target or "",
        event.device or "",
        event.run_id or 0,
        -(event.ratio or 0),
    )


def _event_of(one: NoticeItem) -> NotableEvent:
    columns = one.model_dump(exclude={"title", "url", "severity", "at"})
    return NotableEvent(at=one.at.timestamp(), **columns)


def _change_of(one: NoticeItem) -> SubjectChange:
    return _event_of(one).change
