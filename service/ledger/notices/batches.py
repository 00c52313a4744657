"""Make messages of the events that wait: one for each subscription, once they have waited for others."""

from collections import defaultdict
from collections.abc import Sequence

import structlog
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import Notice, NoticeMessage, Subscription
from service.domain.notices.batching import DAY_S, HOUR_S, Pending, Rules, SentBefore, plan
from service.domain.notices.events import KINDS, EventKind, NotableEvent, SubjectChange
from service.domain.states import NoticeState, OutboxState
from service.ledger.notices import subscriptions
from service.reports.notices import message
from service.settings import settings

log = structlog.get_logger()

_KEPT_S = 30 * DAY_S  # what was sent is kept for so long, so that a fix is known to be one
_AT_ONCE = 500  # databases limit how many parameters a statement may have
_MAX_PENDING = 20_000  # events of one subscription in one message


def batch_due(now: float | None = None) -> int:
    """Make the messages that are due.  Returns how many were made.

    While a message of a subscription waits to be sent, its further events wait as well: a channel that comes back gets
    them in one message.
    """
    unsent = select(NoticeMessage.subscription_id).where(NoticeMessage.state == OutboxState.WAITING)
    waiting = select(Notice.subscription_id).where(Notice.state == NoticeState.WAITING)
    with reading() as session:
        ids = session.scalars(waiting.where(Notice.subscription_id.not_in(unsent)).distinct()).all()
    made = 0
    for subscription_id in sorted(ids):
        try:
            with transaction() as session:
                made += _batch(session, subscription_id, now)
        except Exception:  # one subscription must not hold up the others
            log.exception("no message could be made", subscription=subscription_id)
    return made


def _batch(session: Session, subscription_id: int, now: float | None) -> bool:
    """Make the message of a subscription, if it is due.  Of two processes the second finds it made."""
    of_it = select(Subscription).where(Subscription.id == subscription_id)
    subscription = session.scalar(of_it.with_for_update(skip_locked=True, key_share=True))  # events may be added
    unsent = (NoticeMessage.subscription_id == subscription_id, NoticeMessage.state == OutboxState.WAITING)
    if subscription is None or session.scalar(select(NoticeMessage.id).where(*unsent).limit(1)) is not None:
        return False
    now = clock(session) if now is None else now
    rows = _waiting(session, subscription)
    may_read = subscriptions.may_read(session, subscription)
    hidden = [row.id for row in rows if not may_read(row.target_id)]
    left = [row for row in rows if may_read(row.target_id)]
    pending = [Pending(row.id, row.kind, row.subject, row.series, row.at) for row in left]
    chosen = plan(pending, _sent(session, subscription_id, now), _rules(), now)
    _become(session, [*hidden, *chosen.cancel], NoticeState.CANCELLED)
    _become(session, chosen.drop, NoticeState.DROPPED)
    if not chosen.send:
        return False
    by_id = {row.id: row for row in left}
    events = [_event(by_id[one]) for one in chosen.send]
    made = NoticeMessage(
        subscription_id=subscription_id, channel=subscription.channel, state=OutboxState.WAITING, created_at=now
    )
    uncounted = _uncounted(session, subscription_id)
    found = message.document(
        events, subscription_id=subscription_id, address=settings().address, at=now, dropped=len(uncounted)
    )
    made.document = found.model_dump(mode="json")
    session.add(made)
    session.flush()
    _become(session, chosen.send, NoticeState.SENT, made.id)
    _become(session, uncounted, NoticeState.DROPPED, made.id)
    log.info("message made", subscription=subscription_id, channel=subscription.channel, events=len(events))
    return True


def _waiting(session: Session, subscription: Subscription) -> Sequence[Notice]:
    theirs = (Notice.subscription_id == subscription.id, Notice.state == NoticeState.WAITING)
    return session.scalars(select(Notice).where(*theirs).order_by(Notice.id).limit(_MAX_PENDING)).all()


def _rules() -> Rules:
    here = settings()
    return Rules(here.notices_wait_s, here.notices_urgent_wait_s, here.notices_per_hour)


def _sent(session: Session, subscription_id: int, now: float) -> SentBefore:
    """What the subscription was sent before: what is open since, and what changed during the last day."""
    sent = (Notice.subscription_id == subscription_id, Notice.state == NoticeState.SENT)
    rows = (
        select(Notice.subject, Notice.kind, Notice.series, NoticeMessage.created_at)
        .join(NoticeMessage, NoticeMessage.id == Notice.message_id)
        .where(*sent)
        .order_by(Notice.id)
    )
    open_subjects, changes = set[str](), defaultdict[str, list[float]](list)
    for subject, kind, series, at in session.execute(rows):
        change = KINDS[EventKind(kind)].change
        if change is SubjectChange.OPENS:
            open_subjects.add(subject)
        elif change is SubjectChange.CLOSES:
            open_subjects.discard(subject)
        if change is not SubjectChange.NOTES and at > now - DAY_S:
            changes[series].append(at)
    lately = (NoticeMessage.subscription_id == subscription_id, NoticeMessage.created_at > now - HOUR_S)
    messages = session.scalars(select(NoticeMessage.created_at).where(*lately)).all()
    return SentBefore(frozenset(open_subjects), changes, messages)


def _uncounted(session: Session, subscription_id: int) -> Sequence[int]:
    """The dropped events that no message has counted yet."""
    dropped = (Notice.subscription_id == subscription_id, Notice.state == NoticeState.DROPPED)
    return session.scalars(select(Notice.id).where(*dropped, Notice.message_id.is_(None))).all()


def _event(row: Notice) -> NotableEvent:
    return NotableEvent(**row.event | {"kind": EventKind(row.event["kind"])})


def _become(session: Session, ids: Sequence[int], state: NoticeState, message_id: int | None = None) -> None:
    for start in range(0, len(ids), _AT_ONCE):
        some = Notice.id.in_(ids[start : start + _AT_ONCE])
        values = {"state": state, "message_id": message_id}
        session.execute(update(Notice).where(some).values(values).execution_options(synchronize_session=False))


def forget_due() -> int:
    """Delete notices and messages of a month ago.  Returns how many messages were deleted."""
    with transaction() as session:
        before = clock(session) - _KEPT_S
        old = select(NoticeMessage.id).where(
            NoticeMessage.created_at < before, NoticeMessage.state != OutboxState.WAITING
        )
        count = session.scalar(select(func.count()).select_from(old.subquery())) or 0
        session.execute(delete(Notice).where(Notice.message_id.in_(old)).execution_options(synchronize_session=False))
        ended = (Notice.message_id.is_(None), Notice.state != NoticeState.WAITING, Notice.at < before)
        session.execute(delete(Notice).where(*ended).execution_options(synchronize_session=False))
        session.execute(
            delete(NoticeMessage).where(NoticeMessage.id.in_(old)).execution_options(synchronize_session=False)
        )
    return count
