"""Notices: what happened as a sentence, the subject line and text of a message, its document, and subscriptions.

In the text of a message, names, reasons and errors from elsewhere are code spans, in which no service finds markup,
mentions or links.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Literal, Self

from pydantic import Field

from kernelwatch.documents.administration import SEVERITY, SubscriptionItem
from kernelwatch.documents.base import Document, Moment, Number
from service.domain import metrics
from service.domain.attribution.causes import Kind
from service.domain.notices import SEVERITIES, EventKind, NotableEvent, SubjectChange
from service.domain.states import GateAction
from service.domain.text import listed, one_line, short, span
from service.reports.schema.base import columns, document_of
from service.reports.schema.requests import Name, RequestDocument, Word
from service.reports.views import SubscriptionView

_MAX = 120  # characters of a subject line, and of a name in it
_MAX_NAMES = 3  # of targets or devices in a subject line
_SYMBOLS = {GateAction.FAIL: "✗", GateAction.WARN: "!", GateAction.PASS: "·"}
_GOOD = "✓"  # everything is news that something is over

# Of each kind its sentence, and what a subject line counts, in the order of the line.
_WORDS = {
    EventKind.CASE_INVALID: ("{case}: wrong result{since}{why}", "wrong result{s}"),
    EventKind.REGRESSION_OPENED: ("{case}: {size}{since}", "regression{s}"),
    EventKind.REGRESSION_WORSE: ("{case}: {size} once more{since}", "regression{s} got worse"),
    EventKind.REGRESSION_REOPENED: ("{case}: {size}{since}, reopened{by}", "regression{s} reopened"),
    EventKind.RUN_FAILED: ("Run {event.run_id} of {event.target} on {event.device} failed{at}{why}", "run{s} failed"),
    EventKind.TARGET_UNREACHABLE: ("The source of {event.target} cannot be polled{why}", "source{s} unreachable"),
    EventKind.WORKER_LOST: ("Worker {event.by} does not answer", "worker{s} lost"),
    EventKind.WORKER_STARTS: (
        "Worker {event.by} spent most of a day's runs starting processes{why}",
        "worker{s} mostly starting processes",
    ),
    EventKind.GAP_OPENED: ("{case}: fell behind SOTA{at}{by_size}", "case{s} fell behind SOTA"),
    EventKind.CASE_QUARANTINED: ("{case}: quarantined{why}", "case{s} quarantined"),
    EventKind.CONFIGURATION_DRIFTED: (
        "{case}: the configuration changed without a commit{at}{why}",
        "configuration{s} changed without a commit",
    ),
    EventKind.CONFIGURATION_CHANGED: (
        "{case}: the configuration changed with the {cause}{at}{why}",
        "configuration{s} changed",
    ),
    EventKind.REGRESSION_BLAMED: ("{case}: {size}, caused by {culprit}", "culprit{s} found"),
    EventKind.REGRESSION_ACCEPTED: ("{case}: {size}, accepted{by}{why}", "regression{s} accepted"),
    EventKind.REGRESSION_FIXED: ("{case}: regression fixed{at}", "regression{s} fixed"),
    EventKind.REGRESSION_CLOSED: ("{case}: regression closed{by}{why}", "regression{s} closed"),
    EventKind.GAP_CLOSED: ("{case}: caught up with SOTA{at}", "case{s} caught up with SOTA"),
    EventKind.CASE_RELEASED: ("{case}: no longer quarantined{why}", "case{s} released"),
    EventKind.TARGET_REACHABLE: ("The source of {event.target} can be polled again", "source{s} reachable again"),
    EventKind.WORKER_BACK: ("Worker {event.by} answers again", "worker{s} back"),
}
_SIZED = (EventKind.REGRESSION_OPENED, EventKind.REGRESSION_WORSE, EventKind.REGRESSION_REOPENED)


def title(event: NotableEvent) -> str:
    """One event in one sentence without a full stop: `rmsnorm.fwd.64x4096.bf16 of norms on h200: 10.2 % slower`."""
    size = _size(event)
    line = _WORDS[event.kind][0].format(
        event=event,
        case=f"{event.case or 'a case'} of {event.target} on {event.device}",
        size=size,
        by_size=f", {size}" if event.ratio else "",
        since=f" since {short(event.revision)}" if event.revision else "",
        at=f" at {short(event.revision)}" if event.revision else "",
        culprit=short(event.revision or "an unknown revision"),
        cause="stack" if event.cause == Kind.STACK else "commit",
        why=f": {event.text}" if event.text else "",
        by=f" by {event.by}" if event.by else "",
    )
    return one_line(line)


def subject(events: Sequence[NotableEvent]) -> str:
    """Several events in one line: `✗ norms on h200: 2 regressions, up to 10.2 % slower, since 35e8049abc`."""
    counts = Counter(event.kind for event in events)
    found = [(counts[kind], noun) for kind, (_, noun) in _WORDS.items() if counts[kind]]
    parts = [f"{count} {noun.format(s='s' * (count > 1))}" for count, noun in found]
    about = [event for event in events if event.kind in _SIZED]
    if about:
        parts[1 if EventKind.CASE_INVALID in counts else 0] += _worst(about)
    where = _names([event.target for event in events])
    devices = _names([event.device for event in events])
    if where and devices:
        where += f" on {devices}"
    return one_line(f"{symbol(events)} {where or devices or 'kernelwatch'}: {', '.join(parts)}", _MAX)


def symbol(events: Sequence[NotableEvent]) -> str:
    """The severity of the worst event as a symbol; a tick where all of them close something."""
    opening = [event for event in events if event.change is not SubjectChange.CLOSES]
    return _SYMBOLS[max((event.severity for event in opening), key=SEVERITIES.index)] if opening else _GOOD


def _worst(events: Sequence[NotableEvent]) -> str:
    """The size of the largest, and the revision if it is the same for all."""
    worst = max(events, key=lambda event: event.ratio or 0.0)
    revisions = {event.revision for event in events}
    since = f", since {short(worst.revision)}" if len(revisions) == 1 and worst.revision else ""
    return f", {'up to ' if len(events) > 1 else ''}{_size(worst)}{since}"


def _size(event: NotableEvent) -> str:
    """`10.2 % slower`, `3.0 % more memory`."""
    return metrics.percent(event.ratio, metrics.metric_of(event.case or ""))


def _names(found: Sequence[str | None]) -> str:
    """The names of targets or devices, each once; of many only their number."""
    names = list(dict.fromkeys(name for name in found if name))
    if len(names) > _MAX_NAMES:
        return f"{len(names)} of them"
    return one_line(listed(names), _MAX) if names else ""


_KINDS = "Kinds of events (`regression.opened`), or nouns for all of theirs (`regression`); by default all."


def subscription_item(found: SubscriptionView) -> SubscriptionItem:
    named = {"target": found.target, "waiting": found.waiting, "sent_at": found.sent_at}
    return document_of(SubscriptionItem, columns(found.row) | named)


class SubscriptionRequest(RequestDocument):
    """A subscription to be made."""

    channel: Name = Field(description="A channel of the settings.", examples=["kernels"])
    target: Name | None = Field(None, description="By default all targets, which needs `triage` on all.")
    device: Name | None = Field(None, description="A device, or a pattern with `*` and `?`.", examples=["h*"])
    severity: GateAction = Field(GateAction.WARN, description=SEVERITY)
    kinds: list[Word] | None = Field(None, description=_KINDS, max_length=40, examples=[["regression"]])


MAX_EVENTS = 200  # of one document; the rest is counted


class NoticeItem(Document):
    """One event."""

    kind: EventKind
    severity: GateAction
    at: Moment
    title: str = Field(description="The event in one sentence.")
    url: str = Field(description="The page about it.")
    target: str | None = Field(description="null for workers.")
    device: str | None
    provider: str | None
    case: str | None = Field(description="With its metric.")
    ratio: Number = Field(description="Of a regression, against its baseline; of a gap, against SOTA.")
    revision: str | None = Field(description="That did it, or at which it was seen.")
    cause: str | None = Field(description="The kind of cause: code, baseline, stack, machine, noise or unknown.")
    text: str | None = Field(description="A reason or an error, for people.")
    by: str | None = Field(description="The person who did it, or the worker.")
    regression_id: int | None
    incident_id: int | None
    run_id: int | None

    @classmethod
    def of(cls, event: NotableEvent, address: str) -> Self:
        shown = {name: getattr(event, name) for name in cls.model_fields if name not in ("title", "url")}
        return cls.model_validate({**shown, "title": title(event), "url": url_of(event, address)})


class NoticeData(Document):
    """What a message says."""

    subscription_id: int
    title: str = Field(description="The subject line.")
    severity: GateAction = Field(description="The highest of the events.")
    url: str
    counts: dict[EventKind, int] = Field(description="Events by kind, with those that are left out.")
    events: list[NoticeItem] = Field(description=f"At most {MAX_EVENTS}, grouped by incident, the most severe first.")
    left_out: int = Field(description="Further events, which `events` does not have.")
    dropped: int = Field(description="Events that were older than a week before they could be sent.")


class NoticeDocument(Document):
    """The body of a webhook, in the form of Standard Webhooks."""

    type: Literal["notice", "notice.test"]
    timestamp: Moment = Field(description="When the message was made.")
    data: NoticeData


def url_of(event: NotableEvent, address: str) -> str:
    """The page about an event."""
    if event.regression_id is not None:
        return f"{address}/regressions/{event.regression_id}"
    if event.run_id is not None:
        return f"{address}/runs/{event.run_id}"
    if event.target is not None:
        return f"{address}/targets/{event.target}"
    return f"{address}/workers"


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
    opening = [one.severity for one in found.data.events if _event_of(one).change is not SubjectChange.CLOSES]
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
