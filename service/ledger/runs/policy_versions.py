"""Store the versions of policies: every verdict refers to the one that made it."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import PolicyRow
from service.db.paging import ResultPage, paged
from service.domain.policy.policy import Policy
from service.errors import NotFound
from service.ledger.locking import insert_if_absent


def version_of(session: Session, policy: Policy) -> PolicyRow:
    """The row of this version, inserted where it is new.  Another method with the same numbers is another version."""
    values = policy.model_dump(mode="json")
    insert_if_absent(
        session, PolicyRow, "digest", {"digest": policy.digest, "values": values, "created_at": clock(session)}
    )
    return session.execute(select(PolicyRow).where(PolicyRow.digest == policy.digest)).scalar_one()


def listed(session: Session, cursor: str | None = None, limit: int = 50) -> ResultPage[PolicyRow]:
    """The versions, the newest first."""
    return paged(session, select(PolicyRow), (PolicyRow.id,), cursor, limit)


def one(session: Session, digest: str) -> PolicyRow:
    """One version.  Raises NotFound."""
    row = session.execute(select(PolicyRow).where(PolicyRow.digest == digest)).scalar_one_or_none()
    if row is None:
        raise NotFound("policy", digest)
    return row
