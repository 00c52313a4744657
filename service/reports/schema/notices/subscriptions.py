"""Subscriptions and channels."""

from typing import Self

from pydantic import Field

from service.domain.policy.policy import GateAction
from service.reports.schema.base import Document, Flag, Moment, columns
from service.reports.schema.requests import Name, RequestDocument, Word
from service.reports.views import ChannelView, SubscriptionView

_KINDS = "Kinds of events (`regression.opened`), or nouns for all of theirs (`regression`); by default all."
_SEVERITY = "The smallest severity: `pass`, `warn` or `fail`."


class SubscriptionItem(Document):
    """A channel that is notified of events."""

    id: int
    channel: str
    target: str | None = Field(description="null for all targets, and for workers.")
    device: str | None = Field(description="Only devices of this pattern; null for all.")
    severity: GateAction = Field(description=_SEVERITY)
    kinds: list[str] | None = Field(description="Only these kinds of events; null for all.")
    created_at: Moment
    created_by: str
    waiting: int = Field(description="Events that wait to be sent.")
    sent_at: Moment | None = Field(description="When its last message arrived.")

    @classmethod
    def of(cls, found: SubscriptionView) -> Self:
        named = {"target": found.target, "waiting": found.waiting, "sent_at": found.sent_at}
        return cls.model_validate(columns(found.row) | named)


class SubscriptionRequest(RequestDocument):
    """A subscription to be made."""

    channel: Name = Field(description="A channel of the settings.", examples=["kernels"])
    target: Name | None = Field(None, description="By default all targets, which needs `triage` on all.")
    device: Name | None = Field(None, description="A device, or a pattern with `*` and `?`.", examples=["h*"])
    severity: GateAction = Field(GateAction.WARN, description=_SEVERITY)
    kinds: list[Word] | None = Field(None, description=_KINDS, max_length=40, examples=[["regression"]])


class TrialDocument(Document):
    """The result of a test."""

    arrived: Flag = Field(description="Whether the channel took it.")
    error: str | None = Field(description="Why it did not.")
    took_s: float


class ChannelItem(Document):
    """A channel of the settings, without its address."""

    name: str
    service: str = Field(description="What its URL begins with: `slack`, `mailto`, `https`.", examples=["slack"])
    trouble: str | None = Field(description="Why it cannot work as it is set, and the fix.")
    error: str | None = Field(description="Why the last message did not arrive.")
    failing_since: Moment | None
    paused_until: Moment | None = Field(description="Nothing is sent to it before this time.")
    sent_at: Moment | None = Field(description="When the last message arrived.")
    waiting: int = Field(description="Messages that wait to be sent.")

    @classmethod
    def of(cls, found: ChannelView) -> Self:
        return cls.model_validate(found)
