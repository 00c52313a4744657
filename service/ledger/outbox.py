"""The outbox: what is to be said outside is a row of the transaction that decided it, and is sent after its commit.

A sender claims one effect at a time by moving its `next_at` ahead, sends with no transaction open, and writes down what
came of it.  One that dies in between leaves a claim that ends; whoever is next looks for what was posted already.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database import transaction, wake
from service.forge import github
from service.forge.github import ForgeFailed
from service.ledger.once import inserted
from service.ledger.queue import clock
from service.models import Effect, EffectState, Run, Target

log = structlog.get_logger()

NOTIFY = "control"  # the queue of those who send
_CLAIM_S = 300.0  # longer than the slowest send: several requests of at most 20 s
_FIRST_RETRY_S, _LONGEST_RETRY_S = 10.0, 3600.0
_ATTEMPTS = 30  # a day and more
_MARKER = re.compile(r"<!-- kernelwatch:[^<>]*? -->")


class Forge(Protocol):
    """What the outbox needs of a forge's client.  Its methods raise ForgeFailed."""

    def upsert_comment(self, repo: str, number: int, marker: str, body: str, known_id: str | None = None) -> str: ...

    def put_check(
        self,
        repo: str,
        sha: str,
        name: str,
        status: str,
        conclusion: str | None,
        title: str,
        summary: str,
        url: str | None,
        known_id: str | None = None,
    ) -> str: ...


@dataclass(frozen=True)
class Sending:
    """An effect as it was when it was claimed."""

    effect_id: int
    version: int
    attempts: int
    kind: str
    target: str
    forge: str
    payload: dict[str, Any]
    remote_id: str | None


def say(session: Session, key: str, kind: str, target: Target, run: Run, payload: dict[str, Any]) -> Effect:
    """Have this said once the transaction is committed.  The same key again replaces what was, or was to be, said."""
    begin = {"kind": kind, "target_id": target.id, "run_id": run.id, "payload": payload, "version": 0}
    new = inserted(session, Effect, "key", {"key": key, "state": EffectState.WAITING, **begin})
    row = select(Effect).where(Effect.key == key).with_for_update().execution_options(populate_existing=True)
    effect = session.execute(row).scalar_one()
    if new:
        pass
    elif effect.payload == payload and effect.state in (EffectState.SENT, EffectState.WAITING):
        return effect
    elif effect.state is not EffectState.WAITING:
        effect.next_at, effect.attempts = 0.0, 0  # one that waits may be on its way: its claim stays
    effect.run_id, effect.payload, effect.error = run.id, payload, None
    effect.version += 1
    effect.state = EffectState.WAITING if target.forge else EffectState.PREVIEW
    session.flush()
    if effect.state is EffectState.WAITING:
        wake(session, NOTIFY)
    return effect


def deliver_due(client_factory: Callable[[], Forge | None] = github.connect, now: float | None = None) -> int:
    """Send what waits, one after the other.  Returns how many were sent; stops early when the forge limits us."""
    sent, client = 0, None
    while (sending := _claim(now)) is not None:
        if not sending.forge:
            _preview(sending, "The target has no forge any more.")
            continue
        client = client or client_factory()
        if client is None:
            _preview(sending, "No GitHub credentials: set KERNELWATCH_GITHUB_TOKEN, or the id and key of an App.")
            continue
        try:
            remote_id = _send(client, sending)
        except ForgeFailed as failure:
            _failed(sending, str(failure), passing=failure.passing, wait_s=failure.wait_s, now=now)
            if failure.wait_s:
                break
        except Exception as error:  # a payload that cannot be sent must not hold up the others
            log.exception("an effect was not sent", effect=sending.effect_id)
            _failed(sending, f"kernelwatch broke on it: {type(error).__name__}: {error}", passing=False, now=now)
        else:
            _sent(sending, remote_id)
            sent += 1
    return sent


def _send(client: Forge, sending: Sending) -> str:
    said = sending.payload
    if sending.kind == "comment":
        marker = marker_of(sending.target, said["pull"], said["body"])
        return client.upsert_comment(sending.forge, said["pull"], marker, said["body"], sending.remote_id)
    return client.put_check(
        sending.forge,
        said["sha"],
        said["name"],
        said["status"],
        said["conclusion"],
        said["title"],
        said["summary"],
        said["url"],
        sending.remote_id,
    )


def marker_of(target: str, pull: int, body: str) -> str:
    """The hidden marker that a comment is found by: its own, on its first line or its last, or the usual one."""
    lines = body.strip().splitlines() or [""]
    found = _MARKER.fullmatch(lines[0].strip()) or _MARKER.fullmatch(lines[-1].strip())
    return found[0] if found else f"<!-- kernelwatch:{target}:{pull} -->"


def _claim(now: float | None) -> Sending | None:
    with transaction() as session:
        here = clock(session) if now is None else now
        due = (Effect.state == EffectState.WAITING, Effect.next_at <= here)
        first = select(Effect).where(*due).order_by(Effect.next_at, Effect.id).limit(1)
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
            effect.state, effect.attempts, effect.error = EffectState.SENT, 0, None
        else:  # something newer is to be said: it could not go while this was on its way
            effect.next_at, effect.attempts = 0.0, 0


def _failed(sending: Sending, why: str, *, passing: bool, wait_s: float = 0.0, now: float | None) -> None:
    with transaction() as session:
        effect = _row(session, sending)
        here = clock(session) if now is None else now
        effect.error = why
        if effect.version == sending.version and (not passing or sending.attempts >= _ATTEMPTS):
            effect.state = EffectState.FAILED
        wait = min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2 ** min(sending.attempts - 1, 20))
        effect.next_at = here + max(wait, wait_s)
    log.warning("effect not sent", effect=sending.effect_id, why=why, attempts=sending.attempts)


def _preview(sending: Sending, why: str) -> None:
    with transaction() as session:
        effect = _row(session, sending)
        effect.state, effect.error, effect.attempts = EffectState.PREVIEW, why, 0


def _row(session: Session, sending: Sending) -> Effect:
    return session.execute(select(Effect).where(Effect.id == sending.effect_id).with_for_update()).scalar_one()
