"""Subscriptions and channels, and the body of a webhook that says what happened."""

from pydantic import Field

from .base import Document, GateAction, Moment

SEVERITY = "The smallest severity: `pass`, `warn` or `fail`."


class SubscriptionItem(Document):
    """A channel that is notified of events."""

    id: int
    channel: str
    target: str | None = Field(description="null for all targets, and for workers.")
    device: str | None = Field(description="Only devices of this pattern; null for all.")
    severity: GateAction = Field(description=SEVERITY)
    kinds: list[str] | None = Field(description="Only these kinds of events; null for all.")
    created_at: Moment
    created_by: str
    waiting: int = Field(description="Events that wait to be sent.")
    sent_at: Moment | None = Field(description="When its last message arrived.")


class TrialDocument(Document):
    """The result of a test."""

    arrived: bool = Field(description="Whether the channel took it.")
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
