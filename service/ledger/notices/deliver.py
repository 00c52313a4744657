"""Send messages to their channels, at least once.

A sender claims one message at a time by moving its `next_at` ahead, sends it with no transaction open, and stores the
result; the claim of a sender that died expires.  A failure pauses its channel, for longer each time, and no other.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.channels import channel as channels
from service.channels import checks, services, webhook
from service.channels.channel import Channel, ChannelFailed
from service.db.engine import clock, reading, transaction
from service.db.models import ChannelHealth, Notice, NoticeMessage
from service.domain.notices.batching import NEWS_S
from service.domain.states import NoticeState, OutboxState
from service.domain.times import is_due
from service.errors import NotFound
from service.ledger.locking import insert_if_absent
from service.reports.notices import message
from service.reports.schema.notices.document import NoticeDocument
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
    if why := checks.trouble(channel):
        raise ChannelFailed(why)
    if channel.is_webhook:
        webhook.send(channel, public_id, document.model_dump_json())
    else:
        services.send(channel, document.data.title, message.body(document), message.severity(document))


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
        document = message.trial(subscription_id, settings().address, at)
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
