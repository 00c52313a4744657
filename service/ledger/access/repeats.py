"""Requests that are repeated after a lost response: handled once, answered the same each time."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, transaction
from service.db.models import RepeatableRequest
from service.errors import BadInput, StillHandled
from service.ledger.locking import insert_if_absent

MAX_KEY = 200
_KEPT_S = 86_400.0
# Its process must have died.  A repository is fetched for at most 1800 s (`sources/git.py`), perhaps after waiting for
# another process that fetches it.  A repeat of a request that takes longer anyhow is handled as well.
_ABANDONED_S = 2 * 1800.0


@dataclass(frozen=True)
class Stored:
    """The response to a request that was handled before."""

    status: int
    body: str


@dataclass(frozen=True)
class Begun:
    """A request that is handled now."""

    owner: str
    key: str
    at: float

    @property
    def row(self) -> tuple[ColumnElement[bool], ...]:
        """Conditions for its row.  No row matches them once it counted as abandoned and a repeat has begun."""
        table = RepeatableRequest
        return table.owner == self.owner, table.key == self.key, table.begun_at == self.at


def begin(owner: str, key: str, digest: str) -> Stored | Begun:
    """The stored response, or the request if it is to be handled now.

    Raises BadInput if the key belongs to another request, and StillHandled while the first one is handled.
    """
    with transaction() as session:
        now = clock(session)
        session.execute(delete(RepeatableRequest).where(RepeatableRequest.begun_at < now - _KEPT_S))
        values = {"owner": owner, "key": key, "digest": digest, "begun_at": now}
        if insert_if_absent(session, RepeatableRequest, ("owner", "key"), values) is not None:
            return Begun(owner, key, now)
        mine = (RepeatableRequest.owner == owner, RepeatableRequest.key == key)
        row = session.execute(select(RepeatableRequest).where(*mine).with_for_update()).scalar_one()
        if row.digest != digest:
            raise BadInput(f"The Idempotency-Key {key!r} was used for another request; use a new one for each request.")
        if row.status is not None:
            return Stored(row.status, row.body or "")
        if now - row.begun_at < _ABANDONED_S:
            raise StillHandled("The first request with this Idempotency-Key is still handled; repeat it in a moment.")
        row.begun_at = now
        return Begun(owner, key, now)


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


def finish(begun: Begun, status: int, body: str) -> None:
    """Store the response."""
    with transaction() as session:
        session.execute(update(RepeatableRequest).where(*begun.row).values(status=status, body=body))


def abandon(begun: Begun) -> None:
    """Forget a request that failed, so that it can be tried again."""
    with transaction() as session:
        session.execute(delete(RepeatableRequest).where(*begun.row))
