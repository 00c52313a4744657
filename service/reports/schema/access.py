"""Keys and the audit log."""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from kernelwatch.documents.administration import SCOPES, KeyItem, NewKeyDocument
from service.db.models import ApiKey
from service.domain.access import GRANT_PATTERN, NamedGrant
from service.reports.schema.base import Instant, Real, columns, document_of
from service.reports.schema.requests import Name, RequestDocument

# `read_grants` checks it, with a message that names the scopes.
GrantText = Annotated[str, WithJsonSchema({"type": "string", "pattern": GRANT_PATTERN})]


def key_item(row: ApiKey, grants: tuple[NamedGrant, ...]) -> KeyItem:
    return document_of(KeyItem, columns(row) | {"scopes": [str(one) for one in grants]})


def new_key_document(row: ApiKey, grants: tuple[NamedGrant, ...], key: str) -> NewKeyDocument:
    return document_of(NewKeyDocument, columns(row) | {"scopes": [str(one) for one in grants], "key": key})


class KeyRequest(RequestDocument):
    """A key to be made."""

    name: Name = Field(description="Who uses it, and for what.", examples=["CI of norms"])
    scopes: list[GrantText] = Field(description=SCOPES, min_length=1, max_length=50, examples=[["run:norms"]])
    expires_at: Instant | None = Field(None, description="By default it does not expire.")


class RotateRequest(RequestDocument):
    """How a key is replaced."""

    overlap_s: Real = Field(86_400, ge=0, le=30 * 86_400, description="For so long the old key stays valid.")
