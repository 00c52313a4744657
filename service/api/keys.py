"""API keys and the audit log: for administrators, and for people their own keys."""

from enum import StrEnum
from typing import Annotated

from fastapi import Path, Query
from pydantic import Field, WithJsonSchema
from sqlalchemy.orm import Session

from kernelwatch.documents.administration import SCOPES, AuditItem, KeyItem, MeDocument, NewKeyDocument, PersonItem
from kernelwatch.documents.base import Page
from service.api.access import Acting, Reading, api_router, needs, permit
from service.api.common import Cursor, Limit
from service.db.engine import transaction
from service.db.models import ApiKey
from service.domain.access import GRANT_PATTERN, Actor, NamedGrant, Scope, read_grants
from service.domain.states import ActorKind
from service.ledger import audit
from service.ledger.access import accounts, keys
from service.ledger.acting import acting
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


class PersonChange(StrEnum):
    DISABLE = "disable"
    ENABLE = "enable"


router = api_router("keys")
Login = Annotated[str, Path(max_length=120, description="As the provider names the person.")]
Which = Annotated[str, Path(max_length=40, description="An id, or the prefix of the key.")]


@router.get("/keys", response_model=Page[KeyItem])
@needs(Scope.READ)
def list_keys(
    session: Reading,
    actor: Acting,
    ended: Annotated[bool, Query(description="Include expired and revoked keys.")] = False,
) -> Page[KeyItem]:
    """List API keys, the newest first: all for administrators, their own for people who signed in."""
    found = keys.listed(session, account_id=owner_to_list(actor), ended=ended)
    return Page(items=[key_item(row, keys.named_grants(session, row)) for row in found])


@router.get("/me", response_model=MeDocument)
def get_me(session: Reading, actor: Acting) -> MeDocument:
    """Get who sends the request, and what they may do."""
    scopes = [str(one) for one in keys.named(session, actor.grants)]
    return MeDocument(kind=actor.kind, name=actor.name, scopes=scopes, csrf_token=acting().csrf_token)


@router.get("/people", response_model=Page[PersonItem], tags=["people"])
@needs(Scope.ADMIN)
def list_people(session: Reading, actor: Acting, cursor: Cursor = None, limit: Limit = 50) -> Page[PersonItem]:
    """List people who have signed in, the newest first."""
    permit(actor, Scope.ADMIN)
    page = accounts.listed(session, cursor, limit)
    return Page(items=[PersonItem.model_validate(row) for row in page.items], next=page.next)


@router.post("/people/{login}/{change}", response_model=PersonItem, tags=["people"])
@needs(Scope.ADMIN)
def change_person(
    login: Login, change: Annotated[PersonChange, Path(description="What is done.")], actor: Acting
) -> PersonItem:
    """Keep a person out, from their next request on, or let them in again."""
    permit(actor, Scope.ADMIN)
    with transaction() as session:
        return PersonItem.model_validate(accounts.disable(session, login, disabled=change is PersonChange.DISABLE))


@router.post("/keys", response_model=NewKeyDocument, status_code=201)
@needs(Scope.READ, secret=True)
def create_key(body: KeyRequest, actor: Acting) -> NewKeyDocument:
    """Make an API key.  The response is the only place that ever shows it.

    People who signed in may make keys for themselves, with scopes that they have; a key itself needs `admin`.
    """
    account_id = owner_of_new(actor)
    grants = read_grants(body.scopes)
    expires_at = body.expires_at.timestamp() if body.expires_at else None
    with transaction() as session:
        row, text = keys.create(session, body.name, grants, expires_at=expires_at, account_id=account_id)
        return new_key_document(row, grants, text)


@router.post("/keys/{which}/rotate", response_model=NewKeyDocument, status_code=201)
@needs(Scope.READ, secret=True)
def rotate_key(which: Which, body: RotateRequest, actor: Acting) -> NewKeyDocument:
    """Replace a key by a new one; the old one stays valid for a while."""
    with transaction() as session:
        check_own(session, which, actor)
        row, text = keys.rotate(session, which, overlap_s=body.overlap_s)
        return new_key_document(row, keys.named_grants(session, row), text)


@router.post("/keys/{which}/revoke", response_model=KeyItem)
@needs(Scope.READ)
def revoke_key(which: Which, actor: Acting) -> KeyItem:
    """Revoke a key: the next request with it is refused."""
    with transaction() as session:
        check_own(session, which, actor)
        row = keys.revoke(session, which)
        return key_item(row, keys.named_grants(session, row))


@router.get("/audit", response_model=Page[AuditItem], tags=["audit"])
@needs(Scope.ADMIN)
def list_audit(
    session: Reading,
    actor: Acting,
    target: Annotated[str | None, Query(max_length=80, description="Only this target.")] = None,
    by: Annotated[str | None, Query(max_length=120, description="Only this actor.")] = None,
    action: Annotated[
        str | None, Query(max_length=40, description="A noun (`run`), or a noun and a verb (`run.cancel`).")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[AuditItem]:
    """List what was changed, by whom and from where, the newest first."""
    permit(actor, Scope.ADMIN)
    page = audit.listed(session, target=target, actor=by, action=action, cursor=cursor, limit=limit)
    return Page(items=[AuditItem.model_validate(row) for row in page.items], next=page.next)


def owner_to_list(actor: Actor) -> int | None:
    """The account whose keys the actor may see; None for all keys.  Raises Refused."""
    if actor.kind is ActorKind.PERSON and not actor.may(Scope.ADMIN):
        return actor.id
    permit(actor, Scope.ADMIN)
    return None


def owner_of_new(actor: Actor) -> int | None:
    """The account to which a key that the actor makes belongs; None for a key of the service.  Raises Refused."""
    if actor.kind is ActorKind.PERSON:
        return actor.id
    permit(actor, Scope.ADMIN)
    return None


def check_own(session: Session, which: str, actor: Actor) -> None:
    """Raise unless it is the actor's own key, or the actor is an administrator."""
    if not actor.may(Scope.ADMIN):
        own = actor.kind is ActorKind.PERSON and keys.one(session, which).account_id == actor.id
        if not own:
            permit(actor, Scope.ADMIN)
