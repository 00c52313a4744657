"""The audit log: who changed what, when and from where."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import AuditEntry
from service.db.paging import ResultPage, paged
from service.domain.access import Actor
from service.ledger.acting import acting


def record(
    session: Session,
    action: str,
    *,
    target: str | None = None,
    of: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Record what the actor of this moment changes, in the transaction of the change.

    `action` is a noun and a verb, as in `run.cancel`; `of` names the object: `run 12`.  `details` must hold no secret.
    """
    now = acting()
    session.add(
        AuditEntry(
            at=clock(session),
            actor_kind=now.actor.kind,
            actor=now.actor.name,
            actor_id=now.actor.id,
            action=action,
            target=target,
            object=of,
            details=dict(details or {}),
            address=now.address,
        )
    )


def is_recorded(
    session: Session, action: str, of: str, *, actor: Actor | None = None, target: str | None = None
) -> bool:
    """Whether this actor, or anybody, did that to the object before.  The name of its target makes that quick."""
    statement = select(AuditEntry.id).where(AuditEntry.action == action, AuditEntry.object == of)
    if actor is not None:
        by = (AuditEntry.actor_kind == actor.kind, AuditEntry.actor == actor.name, AuditEntry.actor_id == actor.id)
        statement = statement.where(*by)
    if target is not None:
        statement = statement.where(AuditEntry.target == target)
    return session.scalar(statement.limit(1)) is not None


def listed(
    session: Session,
    *,
    target: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    where: Collection[ColumnElement[bool]] = (),
    cursor: str | None = None,
    limit: int = 50,
) -> ResultPage[AuditEntry]:
    """Entries, the newest first; `action` may be a noun (`run`) or a noun and a verb (`run.cancel`)."""
    query = select(AuditEntry).where(*where)
    if target is not None:
        query = query.where(AuditEntry.target == target)
    if actor is not None:
        query = query.where(AuditEntry.actor == actor)
    if action is not None:
        query = query.where((AuditEntry.action == action) | AuditEntry.action.startswith(f"{action}.", autoescape=True))
    return paged(session, query, (AuditEntry.id,), cursor, limit)
