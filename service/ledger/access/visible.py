"""Which targets an actor may not know of."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Target
from service.domain.access import Actor, Scope
from service.settings import settings

# Statements are made once, and of columns: every request sends one of them.
_ALL = select(Target.__table__.c.id)
_PRIVATE = _ALL.where(Target.__table__.c.private)


def hidden_from(session: Session, actor: Actor) -> Sequence[int]:
    """The ids of targets that the actor may not read: private ones, or all if reading is not public."""
    if actor.may(Scope.READ):
        return ()
    readable = set(actor.readable())
    hidden = session.scalars(_PRIVATE if settings().public_read else _ALL)
    return [target_id for target_id in hidden if target_id not in readable]
