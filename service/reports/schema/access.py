"""Keys and the audit log."""

from typing import Annotated, Any, Self

from pydantic import Field, WithJsonSchema

from service.db.models import Account, ApiKey, AuditEntry
from service.domain.access import GRANT_PATTERN, NamedGrant
from service.domain.states import ActorKind
from service.reports.schema.base import Document, Instant, Moment, Real, columns
from service.reports.schema.requests import Name, RequestDocument

_SCOPES = (
    "`read`, `ingest`, `run`, `triage` (with `:TARGET` for one target only), `worker` or `admin`; every scope on a "
    "target includes reading it."
)
# `read_grants` checks it, with a message that names the scopes.
GrantText = Annotated[str, WithJsonSchema({"type": "string", "pattern": GRANT_PATTERN})]


class KeyItem(Document):
    """An API key, without its secret."""

    id: int
    name: str
    prefix: str = Field(description="The beginning of the key, to recognise it.", examples=["kw_1f3a9c20bd"])
    scopes: list[str] = Field(description=_SCOPES, examples=[["run:norms", "triage:norms"]])
    created_at: Moment
    created_by: str
    expires_at: Moment | None
    used_at: Moment | None = Field(description="The last use, to the minute.")
    revoked_at: Moment | None
    revoked_by: str | None
    rotated_from: int | None = Field(description="The key that it replaces.")

    @classmethod
    def of(cls, row: ApiKey, grants: tuple[NamedGrant, ...]) -> Self:
        return cls.model_validate(columns(row) | {"scopes": [str(one) for one in grants]})


class NewKeyDocument(KeyItem):
    """A key that was made just now."""

    key: str = Field(description="The whole key.  It is shown once: store it now.")

    @classmethod
    def made(cls, row: ApiKey, grants: tuple[NamedGrant, ...], key: str) -> Self:
        return cls.model_validate(columns(row) | {"scopes": [str(one) for one in grants], "key": key})


class KeyRequest(RequestDocument):
    """A key to be made."""

    name: Name = Field(description="Who uses it, and for what.", examples=["CI of norms"])
    scopes: list[GrantText] = Field(description=_SCOPES, min_length=1, max_length=50, examples=[["run:norms"]])
    expires_at: Instant | None = Field(None, description="By default it does not expire.")


class RotateRequest(RequestDocument):
    """How a key is replaced."""

    overlap_s: Real = Field(86_400, ge=0, le=30 * 86_400, description="For so long the old key stays valid.")


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

    @classmethod
    def of(cls, row: AuditEntry) -> Self:
        return cls.model_validate(columns(row))


class MeDocument(Document):
    """Who sent the request."""

    kind: ActorKind
    name: str
    scopes: list[str] = Field(description=_SCOPES)
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

    @classmethod
    def of(cls, row: Account) -> Self:
        return cls.model_validate(columns(row))
