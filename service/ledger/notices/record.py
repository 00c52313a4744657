"""Record a notable event for those who subscribed to it, in the transaction that decides it."""

from dataclasses import asdict
from fnmatch import fnmatchcase

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from service.db.models import Notice, Run, Subscription
from service.domain.notices.events import SEVERITIES, NotableEvent
from service.domain.states import NoticeState, Priority, Purpose
from service.ledger.locking import insert_if_absent

_CACHED = "subscriptions of a target"


def record(
    session: Session, event: NotableEvent, *, target_id: int | None, subject: str, key: str, series: str | None = None
) -> None:
    """Let the event wait for each subscription that wants it.

    Args:
        event: What happened.
        target_id: None for what belongs to no target.
        subject: What the event opens or closes: "regression 4".
        key: Names the event: it is recorded once for each subscription, also where a run is measured again.
        series: What changes back and forth if its subjects come and go; by default the subject.
    """
    for one in subscribers(session, target_id):
        if not wants(one, event):
            continue
        row = {
            "subscription_id": one.id,
            "key": key,
            "target_id": target_id,
            "kind": event.kind,
            "subject": subject,
            "series": series or subject,
            "event": asdict(event),
            "at": event.at,
            "state": NoticeState.WAITING,
        }
        insert_if_absent(session, Notice, ("subscription_id", "key"), row)


def subscribers(session: Session, target_id: int | None) -> list[Subscription]:
    """The subscriptions to a target or to all, read once in a transaction, at whose end they are still there."""
    known: dict[int | None, list[Subscription]] = session.info.setdefault(_CACHED, {})
    if target_id not in known:
        to_all = Subscription.target_id.is_(None)
        theirs = to_all if target_id is None else or_(to_all, Subscription.target_id == target_id)
        found = select(Subscription).where(theirs).order_by(Subscription.id)
        known[target_id] = list(session.scalars(found.with_for_update(read=True, key_share=True)))
    return known[target_id]


def wants(one: Subscription, event: NotableEvent) -> bool:
    """Whether a subscription to the target wants the event.  What has no device is of interest on all of them."""
    if SEVERITIES.index(event.severity) < SEVERITIES.index(one.severity):
        return False
    if one.kinds is not None and not any(_is_kind(event.kind, kind) for kind in one.kinds):
        return False
    return one.device is None or event.device is None or fnmatchcase(event.device, one.device)


def _is_kind(kind: str, wanted: str) -> bool:
    """`regression.opened` is of the kinds `regression.opened` and `regression`."""
    return kind == wanted or kind.partition(".")[0] == wanted


def is_silent(run: Run) -> bool:
    """Whether nothing is sent of what a run shows: only mainline runs are, and not those of a backfill."""
    return run.pull is not None or run.purpose is not Purpose.WATCH or run.priority == Priority.BACKFILL
