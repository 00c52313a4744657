"""Keys and the audit log."""

from typing import Any

from pydantic import Field

from .base import ActorKind, Document, Moment

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
