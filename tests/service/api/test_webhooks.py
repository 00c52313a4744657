"""The door for forges: signed or turned away, stored before it is understood, never too large."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from service.api import webhooks
from service.app import create_app
from service.db import wakeups
from service.db.engine import engine, reading
from service.db.models import Delivery
from service.errors import BadInput
from service.forge.forge import signature
from service.ledger.intake import deliveries
from service.settings import settings

SECRET = "It's a Secret to Everybody"
PING = json.dumps({"zen": "Anything added dilutes everything else."}).encode()
LIMIT = 10_000
FORGED = {"x-github-event": "push", "x-github-delivery": "one", "x-hub-signature-256": "sha256=" + "0" * 64}

Post = Callable[..., httpx.Response]


@pytest.fixture
def post(state: Path, monkeypatch: pytest.MonkeyPatch) -> Post:
    """Post a webhook as GitHub does; headers given replace GitHub's, None leaves one out."""
    monkeypatch.setenv("KERNELWATCH_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("KERNELWATCH_BODY_LIMIT", str(LIMIT))
    settings.cache_clear()
    app = create_app()

    def send(
        body: bytes = PING, guid: str = "one", signed_body: bytes | None = None, **headers: str | None
    ) -> httpx.Response:
        told = {
            "x-github-event": "ping",
            "x-github-delivery": guid,
            "x-hub-signature-256": signature(signed_body or body, SECRET),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        kept = {name: value for name, value in told.items() if value is not None}
        return asyncio.run(_post(app, body, kept))

    return send


async def _post(app: Any, content: bytes | AsyncIterator[bytes], headers: dict[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        return await client.post("/webhooks/github", content=content, headers=headers)


def stored() -> list[Delivery]:
    with reading() as session:
        return list(session.execute(select(Delivery).order_by(Delivery.id)).scalars())


def test_a_delivery_is_stored_and_answered_before_it_is_understood(post: Post) -> None:
    answer = post(PING)

    [delivery] = stored()
    assert (answer.status_code, answer.json()) == (202, {"delivery": delivery.id, "new": True})
    assert (delivery.guid, delivery.event, delivery.body, delivery.processed_at) == ("one", "ping", PING, None)

    assert deliveries.process_due() == 1
    [delivery] = stored()
    assert delivery.outcome == "The webhook works."


def test_who_understands_is_woken_after_the_commit(post: Post) -> None:
    seen: list[tuple[str, int]] = []
    wakeups.send_with(lambda queue: seen.append((queue, len(stored()))))
    try:
        post(PING)
    finally:
        wakeups.send_with(None)
    assert seen == [("control", 1)]


def test_a_redelivery_is_the_same_delivery(post: Post) -> None:
    first, again, other = post(PING), post(PING), post(PING, guid="two")

    assert again.status_code == 202
    assert again.json() == {"delivery": first.json()["delivery"], "new": False}
    assert other.json()["new"]
    assert len(stored()) == 2


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"x_hub_signature_256": "sha256=" + "0" * 64}, 401),
        ({"x_hub_signature_256": signature(PING, "a guess")}, 401),
        ({"x_hub_signature_256": None}, 401),
        ({"x_hub_signature_256": None, "x_hub_signature": "sha1=" + "0" * 40}, 401),
        ({"body": PING + b" ", "signed_body": PING}, 401),
        ({"guid": ""}, 422),
        ({"guid": "x" * 81}, 422),
        ({"x_github_event": None}, 422),
        ({"body": b"x" * LIMIT}, 202),
        ({"body": b"x" * (LIMIT + 1)}, 413),
        ({"body": b"x" * (LIMIT + 1), "x_hub_signature_256": None}, 401),
        ({"body": b"x" * (LIMIT + 1), "x_hub_signature_256": "sha256=0"}, 401),
        ({"content_type": "application/json; charset=utf-8"}, 202),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": "text/xml"}, 415),
        ({"content_encoding": "gzip"}, 415),
    ],
)
def test_what_is_turned_away_is_not_stored(post: Post, change: dict[str, Any], status: int) -> None:
    answer = post(**change)
    assert answer.status_code == status
    assert bool(stored()) is (status == 202)


def test_a_body_without_end_is_given_up_at_the_limit(post: Post) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1000
            yield b"x" * 1000

    answer = asyncio.run(_post(create_app(), endless(), FORGED))

    assert answer.status_code == 413
    assert sent <= LIMIT + 2000
    assert not stored()


def test_deliveries_that_arrive_together_share_commits(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be stored does not take the others with it."""
    commits: list[object] = []
    event.listen(engine(), "commit", commits.append)
    store = webhooks.store_delivery

    def store_all_but_one(session: Session, guid: str, *delivery: Any) -> tuple[int, bool]:
        if guid == "guid-7":
            raise BadInput("This one cannot be stored.")
        return store(session, guid, *delivery)

    app = create_app()

    async def together(names: list[str]) -> list[int]:
        signed = {**FORGED, "x-hub-signature-256": signature(PING, SECRET)}
        answers = await asyncio.gather(*(_post(app, PING, {**signed, "x-github-delivery": name}) for name in names))
        return [answer.status_code for answer in answers]

    assert asyncio.run(together([f"first-{n}" for n in range(20)])) == [202] * 20
    assert len(commits) < 10
    monkeypatch.setattr(webhooks, "store_delivery", store_all_but_one)
    assert asyncio.run(together([f"guid-{n}" for n in range(20)])) == [202] * 7 + [422] + [202] * 12
    assert len(stored()) == 39


@pytest.mark.parametrize(
    "headers",
    [{"x-hub-signature-256": "sha256=0"}, {"x-github-event": ""}, {"content-type": "text/xml"}],
    ids=["signature", "event", "media"],
)
def test_what_the_head_refuses_is_not_read(post: Post, headers: dict[str, str]) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    answer = asyncio.run(_post(create_app(), body(), {**FORGED, **headers}))

    assert answer.status_code in (401, 415, 422)


def test_a_long_body_gives_its_place_to_the_next(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place for one long body: a body that never ends does not keep a delivery out."""
    monkeypatch.setenv("KERNELWATCH_BODIES_LIMIT", "1")
    monkeypatch.setenv("KERNELWATCH_BODY_LIMIT", "1000000")
    settings.cache_clear()
    app, long = create_app(), b" " * 200_000
    signed = {**FORGED, "x-hub-signature-256": signature(long, SECRET)}

    async def unfinished(sent: asyncio.Event) -> AsyncIterator[bytes]:
        yield long
        sent.set()
        await asyncio.Event().wait()

    async def both() -> tuple[httpx.Response, httpx.Response]:
        sent = asyncio.Event()
        held = asyncio.create_task(_post(app, unfinished(sent), FORGED))
        await sent.wait()
        return await _post(app, long, signed), await held

    accepted, lost = asyncio.run(both())
    assert (accepted.status_code, lost.status_code) == (202, 503)
    assert (lost.json()["type"], lost.headers["retry-after"]) == ("/problems/busy", "1")
    assert stored()[0].body == long


def test_the_body_that_arrives_for_the_longest_time_loses_its_place() -> None:
    """Not the newest: a client that opens one body after the other would keep every delivery out."""

    async def bodies() -> list[str]:
        places, events, tasks = webhooks.Places(2), list[str](), list[asyncio.Task[None]]()

        async def receive(name: str) -> None:
            try:
                async with asyncio.timeout(None) as deadline:
                    with places.one(deadline):
                        events.append(f"{name} begins")
                        await asyncio.Event().wait()
            except TimeoutError:
                events.append(f"{name} leaves")

        for name in ("first", "second", "third", "fourth"):
            tasks.append(asyncio.create_task(receive(name)))
            for _ in range(5):  # turns of the loop, in which who lost a place leaves
                await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return events

    begun = ["first begins", "second begins", "third begins", "first leaves", "fourth begins", "second leaves"]
    assert asyncio.run(bodies()) == begun


def test_both_secrets_open_the_door_during_a_rotation(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWATCH_WEBHOOK_SECRET", "the next secret")
    monkeypatch.setenv("KERNELWATCH_WEBHOOK_SECRET_OLD", SECRET)
    settings.cache_clear()
    assert post(guid="old").status_code == 202
    assert post(guid="new", x_hub_signature_256=signature(PING, "the next secret")).status_code == 202


@pytest.mark.parametrize("secret", [None, ""])
def test_without_a_secret_webhooks_are_off(post: Post, monkeypatch: pytest.MonkeyPatch, secret: str | None) -> None:
    monkeypatch.delenv("KERNELWATCH_WEBHOOK_SECRET")
    if secret is not None:
        monkeypatch.setenv("KERNELWATCH_WEBHOOK_SECRET", secret)
    settings.cache_clear()
    answer = post(x_hub_signature_256=signature(PING, ""))
    assert answer.status_code == 403
    assert "KERNELWATCH_WEBHOOK_SECRET" in answer.json()["detail"]
