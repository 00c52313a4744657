"""Which targets an actor may not know of."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Target
from service.domain.access import Actor, Scope
from service.settings import settings


def hidden_from(session: Session, actor: Actor) -> Sequence[int]:
    """The ids of targets that the actor may not read: private ones, or all if reading is not public."""
    if actor.may(Scope.READ):
        return ()
    query = select(Target.id).where(Target.id.not_in(actor.readable()))
    if settings().public_read:
        query = query.where(Target.private)
    return session.scalars(query).all()
