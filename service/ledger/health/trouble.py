"""What may need a person: failed runs, messages and webhooks that wait, and quarantines."""

from collections.abc import Collection

from sqlalchemy import bindparam, case, func, select
from sqlalchemy.orm import Session

from service.db.models import (
    Delivery,
    OutboxMessage,
    Quarantine,
    Revision,
    Run,
    Target,
)
from service.domain.states import OutboxState, Purpose, RunState
from service.reports.health.facts import FailedHead, GivenUp, UnsentMessages

LATE_S = 300.0  # messages and webhooks are processed within seconds


def failed_runs(session: Session, ids: Collection[int]) -> list[FailedHead]:
    """These runs with their reasons, the last first."""
    if not ids:
        return []
    rows = session.execute(
        select(
            Run.id,
            Target.name,
            Run.device,
            Revision.sha,
            Revision.author,
            Run.reason,
            Run.finished_at,
            Run.log.is_not(None),
        )
        .join(Target, Target.id == Run.target_id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.id.in_(ids))
        .order_by(Run.finished_at.desc(), Run.id.desc())
    )
    return [
        FailedHead(run_id, name, device, sha, author, reason or "", at, in_build)
        for run_id, name, device, sha, author, reason, at, in_build in rows
    ]


_GIVEN_UP = (
    select(func.count(), func.max(Run.id), func.max(Run.finished_at))
    .where(Run.state == RunState.FAILED, Run.finished_at >= bindparam("since"), Run.log.is_(None))
    .where(Run.purpose == Purpose.WATCH, Run.pull.is_not(None))
)


def given_up(session: Session, since: float) -> GivenUp | None:
    """Those that ended since a time."""
    count, last_run_id, last_at = session.execute(_GIVEN_UP, {"since": since}).one()
    return GivenUp(count, last_run_id, last_at or since) if count else None


_begun = func.coalesce(Run.finished_at, Run.created_at, OutboxMessage.created_at)
_UNSENT = (
    select(
        OutboxMessage.target_id,
        OutboxMessage.state,
        func.count(),
        func.min(_begun),
        func.max(OutboxMessage.error),
        func.max(OutboxMessage.run_id),
    )
    .outerjoin(Run, Run.id == OutboxMessage.run_id)
    .where(
        ((OutboxMessage.state == OutboxState.WAITING) & (_begun < bindparam("late")))
        | ((OutboxMessage.state == OutboxState.FAILED) & (_begun >= bindparam("since")))
    )
    .group_by(OutboxMessage.target_id, OutboxMessage.state)
)


def unsent_messages(session: Session, now: float, since: float) -> list[UnsentMessages]:
    """Messages that have waited for longer than `LATE_S`, and those of runs since a time that were given up."""
    return [UnsentMessages(*row) for row in session.execute(_UNSENT, {"late": now - LATE_S, "since": since})]


_OLDEST = select(func.min(Delivery.received_at)).where(
    Delivery.processed_at.is_(None), Delivery.received_at < bindparam("late")
)


def oldest_delivery(session: Session, now: float) -> float | None:
    """When the oldest webhook was received that has waited for longer than `LATE_S`."""
    return session.scalar(_OLDEST, {"late": now - LATE_S})


_QUARANTINED = (
    select(func.count(), func.sum(case((Quarantine.since >= bindparam("since"), 1), else_=0)))
    .select_from(Quarantine)
    .where(Quarantine.released_at.is_(None))
)


def quarantined(session: Session, since: float) -> tuple[int, int]:
    """The number of quarantined cases, and of those that were quarantined since a time."""
    row = session.execute(_QUARANTINED, {"since": since}).one()
    return row[0], row[1] or 0
