"""Keys, people and the audit log; channels and their subscriptions."""

from typing import Any

from pydantic import Field

from .base import ActorKind, Document, GateAction, Moment

SCOPES = (
    "`read`, `ingest`, `run`, `triage` (with `:TARGET` for one target only), `worker` or `admin`; every scope on a "
    "target includes reading it."
)


class KeyItem(Document):
    """An API key, without its secret."""

    id: int
    name: str
    prefix: str = Field(description="The beginning of the key, to recognise it.", examples=["kw_1f3a9c20bd"])
    scopes: list[str] = Field(description=SCOPES, examples=[["run:norms", "triage:norms"]])
    created_at: Moment
    created_by: str
    expires_at: Moment | None
    used_at: Moment | None = Field(description="The last use, to the minute.")
    revoked_at: Moment | None
    revoked_by: str | None
    rotated_from: int | None = Field(description="The key that it replaces.")


class NewKeyDocument(KeyItem):
    """A key that was made just now."""

    key: str = Field(description="The whole key.  It is shown once: store it now.")


class AuditItem(Document):
    """Something that somebody changed."""

    id: int
    at: Moment
    actor_kind: ActorKind
    actor: str
    action: str = Field(examples=["run.cancel"])
    target: str | None
    object: str | None = Field(examples=["run 12"])
    details: dict[str, Any]
    address: str | None = Field(description="Where the request came from; null for a command on the server.")


class MeDocument(Document):
    """Who sent the request."""

    kind: ActorKind
    name: str
    scopes: list[str] = Field(description=SCOPES)
    csrf_token: str | None = Field(description="For people who signed in: what changes must carry as `X-CSRF-Token`.")


class PersonItem(Document):
    """A person who has signed in."""

    id: int
    login: str
    issuer: str
    admin: bool
    created_at: Moment
    signed_in_at: Moment
    disabled_at: Moment | None


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
