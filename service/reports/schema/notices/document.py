"""The body of a webhook: what happened, for programs."""

from typing import Literal, Self

from pydantic import Field

from service.domain.notices.events import EventKind, NotableEvent
from service.domain.policy.policy import GateAction
from service.reports.notices.titles import title
from service.reports.schema.base import Document, Moment, Number

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
