"""API keys: create, check, rotate and revoke them.  The database holds a hash; the secret is shown once."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session, selectinload

from service.db.engine import clock
from service.db.models import Account, ApiKey, KeyGrant, Target
from service.domain.access import Actor, Grant, NamedGrant, Scope
from service.domain.states import ActorKind
from service.domain.text import DAY_S
from service.errors import BadInput, NotFound, Refused, Unsigned
from service.ledger import audit
from service.ledger.access import sign_ins
from service.ledger.acting import acting
from service.ledger.targets import target_named

MAX_NAME = 80
USED_EVERY_S = 60.0  # how exact `used_at` is: a write for every request would cost more than the request
_MAX_OVERLAP_S = 30 * DAY_S
_MAX_DIGITS = 19  # of a 64-bit number
_START, _PREFIX_BYTES, _SECRET_BYTES = "kw_", 5, 32


def create(
    session: Session,
    name: str,
    grants: Sequence[NamedGrant],
    *,
    expires_at: float | None = None,
    account_id: int | None = None,
) -> tuple[ApiKey, str]:
    """Make a key for the actor of this moment.  Returns it and its text, which cannot be read again.

    Raises BadInput, NotFound for a target, and Refused for grants that the actor does not have: nobody can give more
    than they have.
    """
    name = name.strip()
    if not 0 < len(name) <= MAX_NAME:
        raise BadInput(f"The name of a key has 1 to {MAX_NAME} characters.")
    if expires_at is not None and expires_at <= clock(session):
        raise BadInput("The key would have expired already; name a later time.")
    resolved = [
        Grant(grant.scope, target_named(session, grant.target).id if grant.target else None) for grant in grants
    ]
    _check_may_give(acting().actor, grants, resolved)
    row, text = _stored(session, name, resolved, expires_at=expires_at, account_id=account_id)
    audit.record(
        session, "key.create", of=f"key {row.prefix}", details={"name": name, "scopes": list(map(str, grants))}
    )
    return row, text


def _check_may_give(actor: Actor, named: Iterable[NamedGrant], grants: Iterable[Grant]) -> None:
    for name, grant in zip(named, grants, strict=True):
        if not actor.may(grant.scope, grant.target_id):
            raise Refused(f"{actor.name} does not have the scope {name} and cannot give it to a key.")


def _stored(
    session: Session,
    name: str,
    grants: Iterable[Grant],
    *,
    expires_at: float | None,
    account_id: int | None,
    rotated_from: int | None = None,
) -> tuple[ApiKey, str]:
    prefix = _START + secrets.token_hex(_PREFIX_BYTES)
    text = f"{prefix}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    row = ApiKey(
        name=name,
        prefix=prefix,
        digest=_digest(text),
        account_id=account_id,
        rotated_from=rotated_from,
        created_at=clock(session),
        created_by=acting().actor.name,
        expires_at=expires_at,
    )
    row.grants = [KeyGrant(scope=grant.scope, target_id=grant.target_id) for grant in dict.fromkeys(grants)]
    session.add(row)
    session.flush()
    session.refresh(row)
    session.refresh(row, ["grants"])
    return row, text


def actor_with(session: Session, text: str) -> tuple[Actor, ApiKey]:
    """The actor of a key.  Raises Unsigned for a key that is unknown, expired or revoked."""
    prefix = text[: len(_START) + 2 * _PREFIX_BYTES]
    query = select(ApiKey).where(ApiKey.prefix == prefix).options(selectinload(ApiKey.grants))
    row = session.scalar(query)
    if row is None or not hmac.compare_digest(row.digest, _digest(text)):
        raise Unsigned("The key is unknown. Check that it was copied whole, or ask an administrator for one.")
    if row.revoked_at is not None:
        raise Unsigned(f"The key {row.prefix} was revoked. Ask an administrator for a new one.")
    if row.expires_at is not None and row.expires_at <= clock(session):
        raise Unsigned(f"The key {row.prefix} has expired. Ask an administrator for a new one.")
    return _actor(session, row), row


def actor_of(session: Session, key_id: int) -> Actor | None:
    """The actor of a key, or of the key that has replaced it, with what it may do now; None if it has ended."""
    newer = session.scalar(select(ApiKey.id).where(ApiKey.rotated_from == key_id).order_by(ApiKey.id.desc()).limit(1))
    if newer is not None:
        return actor_of(session, newer)
    row = session.scalar(select(ApiKey).where(ApiKey.id == key_id).options(selectinload(ApiKey.grants)))
    if row is None or row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= clock(session)):
        return None
    try:
        return _actor(session, row)
    except Unsigned:  # the person whose key it is was kept out
        return None


def _actor(session: Session, row: ApiKey) -> Actor:
    grants = frozenset(Grant(grant.scope, grant.target_id) for grant in row.grants)
    if row.account_id is not None:
        grants = _still_held(session, row, grants)
    return Actor(ActorKind.KEY, row.name, grants, row.id)


def _still_held(session: Session, row: ApiKey, grants: Iterable[Grant]) -> frozenset[Grant]:
    """The grants that the person whose key it is has now, too.  Raises Unsigned if they were kept out."""
    account = session.get_one(Account, row.account_id)
    if account.disabled_at is not None:
        raise Unsigned(f"The key {row.prefix} belongs to {account.login}, whose account is disabled.")
    owner = sign_ins.person(session, account)
    return frozenset(grant for grant in grants if owner.may(grant.scope, grant.target_id))


def note_use(session: Session, key_id: int) -> None:
    """Store that a key was used now."""
    session.execute(update(ApiKey).where(ApiKey.id == key_id).values(used_at=clock(session)))


def listed(session: Session, *, account_id: int | None = None, ended: bool = False) -> Sequence[ApiKey]:
    """Keys, the newest first; `ended` includes revoked and expired ones."""
    query = select(ApiKey).order_by(ApiKey.id.desc()).options(selectinload(ApiKey.grants))
    if account_id is not None:
        query = query.where(ApiKey.account_id == account_id)
    if not ended:
        now = clock(session)
        query = query.where(ApiKey.revoked_at.is_(None), ApiKey.expires_at.is_(None) | (ApiKey.expires_at > now))
    return session.scalars(query).all()


def one(session: Session, which: str) -> ApiKey:
    """The key of this id or prefix.  Raises NotFound."""
    named = ApiKey.id == int(which) if which.isdecimal() and len(which) < _MAX_DIGITS else ApiKey.prefix == which
    row = session.scalar(select(ApiKey).where(named).options(selectinload(ApiKey.grants)))
    if row is None:
        raise NotFound("key", which, "`kernelwatch key list` lists them.")
    return row


def _locked(session: Session, which: str) -> ApiKey:
    """The key as it is now, locked, so that one that is revoked at this moment gets no successor.  Raises NotFound."""
    row = one(session, which)
    session.refresh(row, ["revoked_at", "expires_at"], with_for_update=True)
    return row


def revoke(session: Session, which: str) -> ApiKey:
    """Revoke a key: the next request with it is refused.  A key that is revoked stays as it is."""
    row = _locked(session, which)
    if row.revoked_at is None:
        row.revoked_at, row.revoked_by = clock(session), acting().actor.name
        audit.record(session, "key.revoke", of=f"key {row.prefix}", details={"name": row.name})
    return row


def rotate(session: Session, which: str, *, overlap_s: float = DAY_S) -> tuple[ApiKey, str]:
    """Replace a key by one with the same name, scopes and lifetime; the old one is valid for `overlap_s` more.

    Raises Refused for a key that has ended: it would come to life again.
    """
    if not 0 <= overlap_s <= _MAX_OVERLAP_S:
        raise BadInput(f"The old key may be valid for 0 to {_MAX_OVERLAP_S / DAY_S:.0f} more days.")
    old, now = _locked(session, which), clock(session)
    if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
        raise Refused(f"The key {old.prefix} has ended. Create a new one.")
    lifetime = None if old.expires_at is None else old.expires_at - old.created_at
    grants = [Grant(grant.scope, grant.target_id) for grant in old.grants]
    row, text = _stored(
        session,
        old.name,
        grants,
        expires_at=None if lifetime is None else now + lifetime,
        account_id=old.account_id,
        rotated_from=old.id,
    )
    old.expires_at = now + overlap_s if old.expires_at is None else min(old.expires_at, now + overlap_s)
    audit.record(session, "key.rotate", of=f"key {old.prefix}", details={"name": old.name, "new": row.prefix})
    return row, text


def named_grants(session: Session, row: ApiKey) -> tuple[NamedGrant, ...]:
    """The scopes of a key as people write them."""
    return named(session, [Grant(grant.scope, grant.target_id) for grant in row.grants])


def named(session: Session, grants: Iterable[Grant]) -> tuple[NamedGrant, ...]:
    """Grants as people write them, in the order of the scopes."""
    ordered = sorted(grants, key=lambda grant: (list(Scope).index(grant.scope), grant.target_id or 0))
    wanted = {grant.target_id for grant in ordered} - {None}
    names = {
        target.id: target.name
        for target in session.execute(select(Target.id, Target.name).where(Target.id.in_(wanted)))
    }
    return tuple(
        NamedGrant(grant.scope, names[grant.target_id] if grant.target_id is not None else None)
        for grant in ordered
        if grant.target_id is None or grant.target_id in names
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
