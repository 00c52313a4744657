"""Make messages of the events that wait, one for each subscription, and send them at least once.

A sender claims one message at a time by moving its `next_at` ahead, sends it with no transaction open, and stores the
result; the claim of a sender that died expires.  A failure pauses its channel, for longer each time, and no other.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.channels import channels
from service.channels.channels import Channel, ChannelFailed
from service.db.engine import clock, reading, transaction
from service.db.models import ChannelHealth, Notice, NoticeMessage, Subscription
from service.domain.notices import (
    HOUR_S,
    KINDS,
    NEWS_S,
    EventKind,
    NotableEvent,
    Pending,
    Rules,
    SentBefore,
    SubjectChange,
    plan,
)
from service.domain.states import NoticeState, OutboxState
from service.domain.text import DAY_S, is_due
from service.errors import NotFound
from service.ledger.locking import insert_if_absent
from service.ledger.notices import subscriptions
from service.reports.feeds import notices
from service.reports.feeds.notices import NoticeDocument
from service.settings import settings

log = structlog.get_logger()

_CLAIM_S = 120.0  # longer than the slowest send
_FIRST_PAUSE_S, _MAX_PAUSE_S = 10.0, 3600.0
_SENDING_S = 20.0  # of one call: the control worker has other tasks
_MAX_REFUSALS = 5  # of one message, before it is given up

Send = Callable[[Channel, str, NoticeDocument], None]


@dataclass(frozen=True)
class ClaimedNotice:
    """A message as it was when it was claimed."""

    id: int
    channel: str
    public_id: str
    document: NoticeDocument


@dataclass(frozen=True)
class Attempted:
    """The result of a test: why it did not arrive, or None."""

    error: str | None
    took_s: float


def send(channel: Channel, public_id: str, document: NoticeDocument) -> None:
    """Send a message.  Raises ChannelFailed."""
    if why := channels.trouble(channel):
        raise ChannelFailed(why)
    if channel.is_webhook:
        channels.send_webhook(channel, public_id, document.model_dump_json())
    else:
        channels.send_by_apprise(channel, document.data.title, notices.body(document), notices.severity(document))


def deliver_due(now: float | None = None) -> int:
    """Send waiting messages one after the other, for a bounded time.  Returns how many arrived."""
    _give_up_old(now)
    sent, ends = 0, time.monotonic() + _SENDING_S
    while time.monotonic() < ends and (claimed := _claim(now)) is not None:
        try:
            send(channels.named(claimed.channel), claimed.public_id, claimed.document)
        except ChannelFailed as failure:
            _failed(claimed, failure, now)
        except NotFound as missing:
            _failed(claimed, ChannelFailed(str(missing)), now)
        except Exception as error:  # a message that cannot be sent must not hold up the others
            log.exception("notice could not be sent", message=claimed.id)
            _failed(claimed, ChannelFailed(f"internal error: {type(error).__name__}", refused=True), now)
        else:
            _arrived(claimed, now)
            sent += 1
    return sent


def try_out(subscription_id: int, channel_name: str) -> Attempted:
    """Send a test now, whatever waits, and whether the channel is paused or not."""
    with reading() as session:
        at = clock(session)
    begun = time.monotonic()
    try:
        document = notices.trial(subscription_id, settings().address, at)
        send(channels.named(channel_name), f"test_{int(at * 1000)}_{subscription_id}", document)
    except ChannelFailed as failure:
        return Attempted(str(failure), time.monotonic() - begun)
    with transaction() as session:
        _healthy(session, channel_name, clock(session))
    return Attempted(None, time.monotonic() - begun)


def _claim(now: float | None) -> ClaimedNotice | None:
    with transaction() as session:
        here = clock(session) if now is None else now
        paused = select(ChannelHealth.channel).where(~is_due(ChannelHealth.paused_until, here, _MAX_PAUSE_S))
        first = (
            select(NoticeMessage)
            .where(NoticeMessage.state == OutboxState.WAITING, is_due(NoticeMessage.next_at, here, _MAX_PAUSE_S))
            .where(NoticeMessage.channel.not_in(paused))
            .order_by(NoticeMessage.next_at, NoticeMessage.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        row = session.scalar(first)
        if row is None:
            return None
        row.next_at = here + _CLAIM_S
        public_id = f"msg_{int(row.created_at * 1000)}_{row.id}"
        return ClaimedNotice(row.id, row.channel, public_id, NoticeDocument.model_validate(row.document))


def _arrived(claimed: ClaimedNotice, now: float | None) -> None:
    with transaction() as session:
        here = clock(session) if now is None else now
        values = {"state": OutboxState.SENT, "sent_at": here, "error": None}
        session.execute(update(NoticeMessage).where(NoticeMessage.id == claimed.id).values(values))
        _healthy(session, claimed.channel, here)


def _failed(claimed: ClaimedNotice, failure: ChannelFailed, now: float | None) -> None:
    """Store the error, and the time before which nothing is tried again."""
    with transaction() as session:
        here = clock(session) if now is None else now
        row = session.scalar(select(NoticeMessage).where(NoticeMessage.id == claimed.id).with_for_update())
        if row is None:  # its subscription was deleted meanwhile
            return
        row.error = str(failure)
        if failure.refused:
            # Other failures do not count: that the channel was away says nothing of the message.
            row.attempts += 1
            row.next_at = here + _pause_s(row.attempts)
            if row.attempts >= _MAX_REFUSALS:
                row.state = OutboxState.FAILED
        else:
            row.next_at = here
        health = _health(session, claimed.channel)
        health.failures += 1
        health.failing_since = health.failing_since if health.failing_since is not None else here
        health.error = str(failure)
        if not failure.refused:
            health.paused_until = here + max(failure.pause_s, _pause_s(health.failures))
    log.warning("notice not sent", message=claimed.id, channel=claimed.channel, why=str(failure))


def _pause_s(failures: int) -> float:
    return float(min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(failures - 1, 20)))


def _healthy(session: Session, channel: str, now: float) -> None:
    health = _health(session, channel)
    health.failures, health.failing_since, health.paused_until, health.error = 0, None, 0.0, None
    health.sent_at = now


def _health(session: Session, channel: str) -> ChannelHealth:
    values = {"channel": channel, "failures": 0, "paused_until": 0.0}
    insert_if_absent(session, ChannelHealth, "channel", values)
    of_it = select(ChannelHealth).where(ChannelHealth.channel == channel)
    return session.scalars(of_it.with_for_update().execution_options(populate_existing=True)).one()


def _give_up_old(now: float | None) -> None:
    """Give up messages of a week ago; the next message counts their events."""
    with reading() as session:
        here = clock(session) if now is None else now
        old = (NoticeMessage.state == OutboxState.WAITING, NoticeMessage.created_at < here - NEWS_S)
        ids = session.scalars(select(NoticeMessage.id).where(*old)).all()
    for message_id in ids:
        with transaction() as session:
            values = {"state": OutboxState.FAILED, "error": "older than a week"}
            session.execute(update(NoticeMessage).where(NoticeMessage.id == message_id, *old).values(values))
            its = (Notice.message_id == message_id,)
            session.execute(update(Notice).where(*its).values(state=NoticeState.DROPPED, message_id=None))


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
    theirs = (Notice.subscription_id == subscription.id, Notice.state == NoticeState.WAITING)
    rows = session.scalars(select(Notice).where(*theirs).order_by(Notice.id).limit(_MAX_PENDING)).all()
    may_read = subscriptions.may_read(session, subscription)
    hidden = [row.id for row in rows if not may_read(row.target_id)]
    left = [row for row in rows if may_read(row.target_id)]
    pending = [Pending(row.id, row.kind, row.subject, row.series, row.at) for row in left]
    here = settings()
    chosen = plan(
        pending,
        _sent(session, subscription_id, now),
        Rules(here.notices_wait_s, here.notices_urgent_wait_s, here.notices_per_hour),
        now,
    )
    _become(session, [*hidden, *chosen.cancel], NoticeState.CANCELLED)
    _become(session, chosen.drop, NoticeState.DROPPED)
    if not chosen.send:
        return False
    by_id = {row.id: row for row in left}
    sent = [by_id[notice_id].event for notice_id in chosen.send]
    events = [NotableEvent(**event | {"kind": EventKind(event["kind"])}) for event in sent]
    made = NoticeMessage(
        subscription_id=subscription_id, channel=subscription.channel, state=OutboxState.WAITING, created_at=now
    )
    dropped = (Notice.subscription_id == subscription_id, Notice.state == NoticeState.DROPPED)
    uncounted = session.scalars(select(Notice.id).where(*dropped, Notice.message_id.is_(None))).all()
    notice = notices.document(
        events, subscription_id=subscription_id, address=settings().address, at=now, dropped=len(uncounted)
    )
    made.document = notice.model_dump(mode="json")
    session.add(made)
    session.flush()
    _become(session, chosen.send, NoticeState.SENT, made.id)
    _become(session, uncounted, NoticeState.DROPPED, made.id)
    log.info("message made", subscription=subscription_id, channel=subscription.channel, events=len(events))
    return True


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
