"""Subscriptions and channels, and the body of a webhook that says what happened."""

from typing import Literal, Self

from pydantic import Field

from kernelwatch.documents.administration import SEVERITY, SubscriptionItem
from kernelwatch.documents.base import Document, Moment, Number
from service.domain.notices import EventKind, NotableEvent
from service.domain.states import GateAction
from service.reports.notices.titles import title
from service.reports.schema.base import columns, document_of
from service.reports.schema.requests import Name, RequestDocument, Word
from service.reports.views import SubscriptionView

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
