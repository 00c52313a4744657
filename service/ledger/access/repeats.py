"""Requests that are repeated after a lost response: handled once, answered the same each time."""

from dataclasses import dataclass

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, transaction
from service.db.models import RepeatableRequest
from service.errors import BadInput, StillHandled
from service.ledger.locking import insert_if_absent

MAX_KEY = 200
_KEPT_S = 86_400.0
_ABANDONED_S = 600.0  # longer than any request takes; its process must have died


@dataclass(frozen=True)
class Stored:
    """The response to a request that was handled before."""

    status: int
    body: str


def begin(owner: str, key: str, digest: str) -> Stored | None:
    """The stored response, or None if the request is to be handled now.

    Raises BadInput if the key belongs to another request, and StillHandled while the first one is handled.
    """
    with transaction() as session:
        now = clock(session)
        session.execute(delete(RepeatableRequest).where(RepeatableRequest.begun_at < now - _KEPT_S))
        values = {"owner": owner, "key": key, "digest": digest, "begun_at": now}
        if insert_if_absent(session, RepeatableRequest, ("owner", "key"), values) is not None:
            return None
        mine = (RepeatableRequest.owner == owner, RepeatableRequest.key == key)
        row = session.execute(select(RepeatableRequest).where(*mine).with_for_update()).scalar_one()
        if row.digest != digest:
            raise BadInput(f"The Idempotency-Key {key!r} was used for another request; use a new one for each request.")
        if row.status is not None:
            return Stored(row.status, row.body or "")
        if now - row.begun_at < _ABANDONED_S:
            raise StillHandled("The first request with this Idempotency-Key is still handled; repeat it in a moment.")
        row.begun_at = now
        return None


def is_first(session: Session, owner: str, key: str, digest: str) -> bool:
    """Whether the request is to be handled now, in this transaction: a repeat waits until that has committed.

    Its response is not stored, so that it may hold a secret.  Raises BadInput if the key belongs to another request.
    """
    values = {"owner": owner, "key": key, "digest": digest, "begun_at": clock(session), "status": 200}
    if insert_if_absent(session, RepeatableRequest, ("owner", "key"), values) is not None:
        return True
    mine = (RepeatableRequest.owner == owner, RepeatableRequest.key == key)
    if session.execute(select(RepeatableRequest.digest).where(*mine)).scalar_one() != digest:
        raise BadInput("This form was sent for something else before. Reload its page and send it again.")
    return False


def finish(owner: str, key: str, status: int, body: str) -> None:
    """Store the response."""
    mine = (RepeatableRequest.owner == owner, RepeatableRequest.key == key)
    with transaction() as session:
        session.execute(update(RepeatableRequest).where(*mine).values(status=status, body=body))


def abandon(owner: str, key: str) -> None:
    """Forget a request that failed, so that it can be tried again."""
    mine = (RepeatableRequest.owner == owner, RepeatableRequest.key == key)
    with transaction() as session:
        session.execute(delete(RepeatableRequest).where(*mine))
