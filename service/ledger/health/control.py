"""When control last ran its periodic tasks."""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, transaction
from service.db.models import WriteProbe
from service.ledger.locking import insert_if_absent

_ROW = 2  # /readyz has the first


def note_tick() -> None:
    with transaction() as session:
        now = clock(session)
        if insert_if_absent(session, WriteProbe, "id", {"id": _ROW, "written_at": now}) is None:
            session.execute(update(WriteProbe).where(WriteProbe.id == _ROW).values(written_at=now))


def ticked_at(session: Session) -> float | None:
    """Seconds since the epoch; None if it never ran."""
    return session.scalar(select(WriteProbe.written_at).where(WriteProbe.id == _ROW))
