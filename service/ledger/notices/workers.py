"""Notice workers that do not answer any more, and those that are back."""

from sqlalchemy import select

from service.db.engine import clock, transaction
from service.db.models import Worker
from service.domain.notices.events import EventKind, NotableEvent
from service.domain.times import is_recent
from service.ledger.notices.record import record

LOST_S = 300.0  # a restart takes less
_MAX_S = 86_400.0  # what was silent for longer before anybody looked is no news


def note_lost() -> int:
    """Record the workers that were lost or came back since the last call.  Returns how many there were.

    A paused worker may be switched off.
    """
    changed = 0
    with transaction() as session:
        now = clock(session)
        for row in session.scalars(select(Worker).order_by(Worker.id).with_for_update(skip_locked=True)):
            silent = not is_recent(row.seen_at, now, LOST_S)
            expected = row.paused_at is not None or now - row.seen_at > _MAX_S
            if silent is (row.lost_at is not None) or (silent and expected):
                continue
            kind = EventKind.WORKER_LOST if silent else EventKind.WORKER_BACK
            key = f"{kind}:{row.id}:{row.seen_at if silent else row.lost_at:.3f}"
            row.lost_at = now if silent else None
            event = NotableEvent(kind, now, device=row.device, by=row.name)
            record(session, event, target_id=None, subject=f"worker {row.id}", key=key)
            changed += 1
    return changed
