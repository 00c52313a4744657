"""The outbox: a message is a row of the transaction that decided it, and is sent after the commit.

A sender claims one message at a time by moving its `next_at` ahead, sends it with no transaction open, and stores the
result.  A claim of a sender that died expires; the next sender looks for what was posted already.

A failure delays its own message.  A rate limit, or credentials that the forge refuses, pause the targets that they are
about.
"""

import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from service.db.engine import clock, database_now, transaction, wake
from service.db.models import UNSENT, OutboxMessage, Run, Target
from service.db.wakeups import CONTROL
from service.domain.states import ForgeKind, OutboxState
from service.domain.text import is_due
from service.forge.clients import connect
from service.forge.forge import MAX_PAUSE_S, CheckRun, Forge, ForgeFailed
from service.ledger.locking import backoff, insert_if_absent
from service.reports.payloads import CheckPayload, CommentPayload, ReactionPayload

log = structlog.get_logger()

_CLAIM_S = 300.0  # longer than the slowest send: several requests of at most 20 s
_FIRST_RETRY_S, _MAX_RETRY_S = 10.0, 3600.0
_NEWS_S = 7 * 86400.0  # older messages are dropped: a token that was missing for a year must not flood a forge
_SENDING_S = 20.0  # of one call: a write takes a second or two, and the control worker has other tasks
# After three failures in a row, of any messages, this process sends nothing to a forge for a while: each request to one
# that is down takes up to 20 s.
_MAX_OUTAGE_S = 30.0
_TARGETS = 10  # of which one has a message that no other sender holds
_ORDER = OutboxMessage.next_at, OutboxMessage.id
_MARKER = re.compile(r"<!-- kernelwatch:[^<>]*? -->")


@dataclass(frozen=True)
class Sending:
    """A message as it was when it was claimed."""

    message_id: int
    version: int
    attempts: int
    kind: str
    target: str
    forge: str
    forge_kind: ForgeKind
    pull: int | None  # whose head the commit of a check is
    branch: str | None  # the mainline of the target, where it is not the default branch
    payload: dict[str, Any]
    remote_id: str | None


def enqueue(
    session: Session, key: str, kind: str, target: Target, run: Run | None, payload: dict[str, Any]
) -> OutboxMessage:
    """Send this once the transaction is committed.  The same key replaces an earlier message, sent or not."""
    run_id = run.id if run is not None else None
    begin = {"kind": kind, "target_id": target.id, "run_id": run_id, "payload": payload, "version": 0}
    begin |= {"created_at": database_now(session), "next_at": at_once(kind)}
    new = insert_if_absent(session, OutboxMessage, "key", {"key": key, "state": OutboxState.WAITING, **begin})
    row = (
        select(OutboxMessage)
        .where(OutboxMessage.key == key)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    message = session.execute(row).scalar_one()
    if new:
        pass
    elif message.payload == payload and message.state in (OutboxState.SENT, OutboxState.WAITING):
        return message
    elif message.state is not OutboxState.WAITING:
        message.next_at, message.attempts = at_once(kind), 0  # a waiting one may be in flight: its claim stays
    message.run_id, message.payload, message.error = run_id, payload, None
    message.version += 1
    message.state = OutboxState.WAITING if target.forge else OutboxState.PREVIEW
    session.flush()
    if message.state is OutboxState.WAITING:
        wake(session, CONTROL)
    return message


def at_once(kind: str) -> float:
    """When a message is due that waits for nothing: comments, which people read, go before checks."""
    return 1.0 if kind == "check" else 0.0


def is_known(session: Session, key: str) -> bool:
    """Whether a message with this key was ever enqueued, sent or not."""
    return session.scalar(select(OutboxMessage.id).where(OutboxMessage.key == key)) is not None


def deliver_due(client_factory: Callable[[ForgeKind], Forge] = connect, now: float | None = None) -> int:
    """Send waiting messages one after the other, for a bounded time.  Returns how many were sent."""
    sent, ends = 0, time.monotonic() + _SENDING_S
    clients = dict[ForgeKind, Forge]()
    while time.monotonic() < ends and (kinds := _reachable()) and (sending := _claim(now, kinds)) is not None:
        if not sending.forge:
            _preview(sending, "The target has no forge any more.")
            continue
        kind = sending.forge_kind
        try:
            if kind not in clients:
                clients[kind] = client_factory(kind)
            remote_id = _send(clients[kind], sending)
        except ForgeFailed as failure:
            if failure.outage:
                backoff.failed(_outage(kind), _MAX_OUTAGE_S)
            else:
                backoff.succeeded(_outage(kind))
            if failure.pause_s:
                _pause(failure, kind, now)
            _failed(sending, str(failure), passing=failure.passing, now=now)
        except Exception as error:  # a payload that cannot be sent must not hold up the others
            log.exception("message could not be sent", message=sending.message_id)
            _failed(sending, f"internal error: {type(error).__name__}: {error}", passing=False, now=now)
        else:
            backoff.succeeded(_outage(kind))
            _sent(sending, remote_id)
            sent += 1
    return sent


def _outage(kind: ForgeKind) -> str:
    """The name under which failures of a forge are counted."""
    return f"forge {kind}"


def _reachable() -> list[ForgeKind]:
    return [kind for kind in ForgeKind if not backoff.should_skip(_outage(kind))]


def _send(client: Forge, sending: Sending) -> str:
    if sending.kind == "reaction":
        reaction = ReactionPayload.model_validate(sending.payload)
        return client.react(sending.forge, reaction.pull, reaction.comment, reaction.content)
    if sending.kind in ("comment", "answer"):
        comment = CommentPayload.model_validate(sending.payload)
        marker = marker_of(sending.target, comment.pull, comment.body)
        return client.upsert_comment(sending.forge, comment.pull, marker, comment.body, sending.remote_id)
    check = CheckPayload.model_validate(sending.payload)
    run = CheckRun(**check.model_dump(), pull=sending.pull, branch=sending.branch)
    return client.put_check(sending.forge, run, sending.remote_id)


def marker_of(target: str, pull: int, body: str) -> str:
    """The hidden marker by which a comment is found: its own, on its first or last line, or the usual one."""
    lines = body.strip().splitlines() or [""]
    match = _MARKER.fullmatch(lines[0].strip()) or _MARKER.fullmatch(lines[-1].strip())
    return match[0] if match else f"<!-- kernelwatch:{target}:{pull} -->"


def _claim(now: float | None, kinds: Collection[ForgeKind]) -> Sending | None:
    with transaction() as session:
        here = clock(session) if now is None else now
        message = _next(session, here, kinds)
        if message is None:
            return None
        target = session.get_one(Target, message.target_id)
        run = session.get_one(Run, message.run_id) if message.run_id is not None else None
        message.next_at, message.attempts, message.claimed_at = here + _CLAIM_S, message.attempts + 1, here
        return Sending(
            message_id=message.id,
            version=message.version,
            attempts=message.attempts,
            kind=message.kind,
            target=target.name,
            forge=target.forge or "",
            forge_kind=target.forge_kind or ForgeKind.GITHUB,
            pull=run.pull if run is not None else None,
            branch=target.branch,
            payload=message.payload,
            remote_id=message.remote_id,
        )


def _next(session: Session, here: float, kinds: Collection[ForgeKind]) -> OutboxMessage | None:
    """The first message that is due, locked, unless another sender holds it."""
    due = (UNSENT, is_due(OutboxMessage.next_at, here, _MAX_RETRY_S))
    for target_id in session.scalars(_in_turn(here, kinds)).all():
        of_target = select(OutboxMessage).where(OutboxMessage.target_id == target_id, *due).order_by(*_ORDER)
        message = session.scalars(of_target.limit(1).with_for_update(skip_locked=True)).one_or_none()
        if message is not None:
            return message
    return None


def _in_turn(here: float, kinds: Collection[ForgeKind]) -> Select[int]:
    """The targets with a message that is due, by their turn.

    Targets take turns: a write to a forge takes a second, and one target may have thousands waiting.  So of each of
    them one message is read.
    """
    of_target = OutboxMessage.target_id == Target.id
    by_index = OutboxMessage.target_id, *_ORDER  # not of an index that has what was sent, too
    some_id = select(OutboxMessage.target_id).where(UNSENT).order_by(*by_index).limit(1)
    ids = select(some_id.scalar_subquery().label("id")).cte("ids", recursive=True)
    ids = ids.union_all(
        select(some_id.where(OutboxMessage.target_id > ids.c.id).scalar_subquery()).where(ids.c.id.is_not(None))
    )
    first = select(OutboxMessage.id).where(of_target, UNSENT).order_by(*_ORDER).limit(1)
    early = first.where(OutboxMessage.next_at <= here).scalar_subquery()
    set_back = first.where(OutboxMessage.next_at > here + _MAX_RETRY_S).scalar_subquery()
    turn = select(func.max(OutboxMessage.claimed_at)).where(of_target).scalar_subquery()
    each = (
        select(Target.id, turn.label("turn"), func.coalesce(early, set_back).label("first"))
        .where(Target.id.in_(select(ids.c.id)))
        .where(is_due(Target.forge_paused_until, here, MAX_PAUSE_S))
        .where(Target.forge_kind.in_(kinds) | Target.forge_kind.is_(None))
        .subquery()
    )
    return select(each.c.id).where(each.c.first.is_not(None)).order_by(each.c.turn, each.c.first).limit(_TARGETS)


def _sent(sending: Sending, remote_id: str) -> None:
    with transaction() as session:
        message = _row(session, sending)
        message.remote_id = remote_id
        if message.version == sending.version:
            message.state, message.attempts, message.error = OutboxState.SENT, 0, None
        else:
            # A newer version waits.  It may have been sent already, if this took longer than its claim: then the forge
            # shows the older text now, and the newer one is sent again.
            message.state, message.next_at, message.attempts = OutboxState.WAITING, at_once(sending.kind), 0


def _failed(sending: Sending, why: str, *, passing: bool, now: float | None) -> None:
    """Store the error and the time of the next attempt, if there is one."""
    with transaction() as session:
        message = _row(session, sending)
        here = clock(session) if now is None else now
        run = session.get_one(Run, message.run_id) if message.run_id is not None else None
        since = (run.finished_at or run.created_at) if run is not None else message.created_at
        newer = message.version != sending.version
        message.error = why
        if not newer and not (passing and here - since < _NEWS_S):
            message.state = OutboxState.FAILED
        message.next_at = here + min(_MAX_RETRY_S, _FIRST_RETRY_S * 2 ** min(sending.attempts - 1, 20))
    log.warning("message not sent", message=sending.message_id, why=why, attempts=sending.attempts)


def _pause(failure: ForgeFailed, kind: ForgeKind, now: float | None) -> None:
    """Send nothing to the repositories that the failure is about until the forge accepts requests again."""
    with transaction() as session:
        until = (clock(session) if now is None else now) + failure.pause_s
        if failure.repo:
            whose = Target.forge == failure.repo
        elif failure.owner:
            whose = Target.forge.startswith(f"{failure.owner}/", autoescape=True)
        else:
            whose = Target.forge.is_not(None)
        whose = whose & (Target.forge_kind == kind)
        # In one order, so that two senders cannot deadlock.
        for target in session.scalars(select(Target).where(whose).order_by(Target.id).with_for_update(key_share=True)):
            target.forge_paused_until, target.forge_error = until, str(failure)
    where = failure.repo or failure.owner or f"all of {kind}"
    log.warning("sending is paused", forge=where, seconds=failure.pause_s, why=str(failure))


def _preview(sending: Sending, why: str) -> None:
    with transaction() as session:
        message = _row(session, sending)
        message.state, message.error, message.attempts = OutboxState.PREVIEW, why, 0


def _row(session: Session, sending: Sending) -> OutboxMessage:
    return session.execute(
        select(OutboxMessage).where(OutboxMessage.id == sending.message_id).with_for_update()
    ).scalar_one()
