"""The outbox: what is to be said outside is a row of the transaction that decided it, and is sent after its commit.

A sender claims one effect at a time by moving its `next_at` ahead, sends with no transaction open, and writes down what
came of it.  One that dies in between leaves a claim that ends; whoever is next looks for what was posted already.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, transaction, wake
from service.db.models import OutboxMessage, Run, Target
from service.domain.states import OutboxState
from service.forge import github
from service.forge.github import Check, ForgeFailed, GitHub
from service.ledger.locking import insert_if_absent

log = structlog.get_logger()

NOTIFY = "control"  # the queue of those who send
_CLAIM_S = 300.0  # longer than the slowest send: several requests of at most 20 s
_FIRST_RETRY_S, _MAX_RETRY_S = 10.0, 3600.0
_NEWS_S = 7 * 86400.0  # what is older is no news: a token that was missing for a year must not flood a forge
_LOOK_S = 20.0  # a write takes a second or two, and the control worker has other duties
_MARKER = re.compile(r"<!-- kernelwatch:[^<>]*? -->")


@dataclass(frozen=True)
class Sending:
    """An effect as it was when it was claimed."""

    message_id: int
    version: int
    attempts: int
    kind: str
    target: str
    forge: str
    payload: dict[str, Any]
    remote_id: str | None


def enqueue(session: Session, key: str, kind: str, target: Target, run: Run, payload: dict[str, Any]) -> OutboxMessage:
    """Have this said once the transaction is committed.  The same key again replaces what was, or was to be, said."""
    begin = {"kind": kind, "target_id": target.id, "run_id": run.id, "payload": payload, "version": 0}
    new = insert_if_absent(session, OutboxMessage, "key", {"key": key, "state": OutboxState.WAITING, **begin})
    row = (
        select(OutboxMessage)
        .where(OutboxMessage.key == key)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    effect = session.execute(row).scalar_one()
    if new:
        pass
    elif effect.payload == payload and effect.state in (OutboxState.SENT, OutboxState.WAITING):
        return effect
    elif effect.state is not OutboxState.WAITING:
        effect.next_at, effect.attempts = 0.0, 0  # one that waits may be on its way: its claim stays
    effect.run_id, effect.payload, effect.error = run.id, payload, None
    effect.version += 1
    effect.state = OutboxState.WAITING if target.forge else OutboxState.PREVIEW
    session.flush()
    if effect.state is OutboxState.WAITING:
        wake(session, NOTIFY)
    return effect


def deliver_due(client_factory: Callable[[], GitHub] = github.connect, now: float | None = None) -> int:
    """Send what waits, one after the other, for a while.  Returns how many were sent.

    Stops early when the forge limits us, is down, or knows us no more; what waits for that keeps waiting.
    """
    sent, ends = 0, time.monotonic() + _LOOK_S
    client: GitHub | None = None
    while time.monotonic() < ends and (sending := _claim(now)) is not None:
        if not sending.forge:
            _preview(sending, "The target has no forge any more.")
            continue
        try:
            client = client or client_factory()
            remote_id = _send(client, sending)
        except ForgeFailed as failure:
            waits = _failed(sending, str(failure), passing=failure.passing, wait_s=failure.wait_s, now=now)
            if waits and failure.wait_s:
                break
        except Exception as error:  # a payload that cannot be sent must not hold up the others
            log.exception("an effect was not sent", effect=sending.message_id)
            _failed(sending, f"kernelwatch broke on it: {type(error).__name__}: {error}", passing=False, now=now)
        else:
            _sent(sending, remote_id)
            sent += 1
    return sent


def _send(client: GitHub, sending: Sending) -> str:
    said = sending.payload
    if sending.kind == "comment":
        marker = marker_of(sending.target, said["pull"], said["body"])
        return client.upsert_comment(sending.forge, said["pull"], marker, said["body"], sending.remote_id)
    return client.put_check(sending.forge, Check(**said), sending.remote_id)


def marker_of(target: str, pull: int, body: str) -> str:
    """The hidden marker that a comment is found by: its own, on its first line or its last, or the usual one."""
    lines = body.strip().splitlines() or [""]
    found = _MARKER.fullmatch(lines[0].strip()) or _MARKER.fullmatch(lines[-1].strip())
    return found[0] if found else f"<!-- kernelwatch:{target}:{pull} -->"


def _claim(now: float | None) -> Sending | None:
    with transaction() as session:
        here = clock(session) if now is None else now
        due = (OutboxMessage.state == OutboxState.WAITING, OutboxMessage.next_at <= here)
        first = select(OutboxMessage).where(*due).order_by(OutboxMessage.next_at, OutboxMessage.id).limit(1)
        effect = session.execute(first.with_for_update(skip_locked=True)).scalar_one_or_none()
        if effect is None:
            return None
        target = session.get_one(Target, effect.target_id)
        effect.next_at, effect.attempts = here + _CLAIM_S, effect.attempts + 1
        return Sending(
            effect.id,
            effect.version,
            effect.attempts,
            effect.kind,
            target.name,
            target.forge or "",
            effect.payload,
            effect.remote_id,
        )


def _sent(sending: Sending, remote_id: str) -> None:
    with transaction() as session:
        effect = _row(session, sending)
        effect.remote_id = remote_id
        if effect.version == sending.version:
            effect.state, effect.attempts, effect.error = OutboxState.SENT, 0, None
        else:
            # Something newer is to be said.  It may even have gone out, if this took longer than its claim: then the
            # forge shows the older words now, and the newer ones go again.
            effect.state, effect.next_at, effect.attempts = OutboxState.WAITING, 0.0, 0


def _failed(sending: Sending, why: str, *, passing: bool, wait_s: float = 0.0, now: float | None) -> bool:
    """Write down why, and when to try again; whether it is tried again at all."""
    with transaction() as session:
        effect = _row(session, sending)
        here = clock(session) if now is None else now
        run = session.get_one(Run, effect.run_id)
        newer = effect.version != sending.version
        waits = newer or (passing and here - (run.finished_at or run.created_at) < _NEWS_S)
        effect.error = why
        if not waits:
            effect.state = OutboxState.FAILED
        wait = min(_MAX_RETRY_S, _FIRST_RETRY_S * 2 ** min(sending.attempts - 1, 20))
        effect.next_at = here + max(wait, wait_s)
        if waits and wait_s:
            _hold_up(session, here + wait_s)
    log.warning("effect not sent", effect=sending.message_id, why=why, attempts=sending.attempts)
    return waits


def _hold_up(session: Session, until: float) -> None:
    """Nothing goes out before `until`."""
    # A row that is locked is being said anew.  Waiting for it could end in a deadlock with who locks several.
    free = (
        select(OutboxMessage.id)
        .where(OutboxMessage.state == OutboxState.WAITING, OutboxMessage.next_at < until)
        .with_for_update(skip_locked=True)
    )
    held = update(OutboxMessage).where(OutboxMessage.id.in_(free)).values(next_at=until)
    session.execute(held.execution_options(synchronize_session=False))


def _preview(sending: Sending, why: str) -> None:
    with transaction() as session:
        effect = _row(session, sending)
        effect.state, effect.error, effect.attempts = OutboxState.PREVIEW, why, 0


def _row(session: Session, sending: Sending) -> OutboxMessage:
    return session.execute(
        select(OutboxMessage).where(OutboxMessage.id == sending.message_id).with_for_update()
    ).scalar_one()
