"""Webhooks of forges: verify the signature of the raw body, store the delivery, respond.  Control processes it."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Annotated

import structlog
from fastapi import APIRouter, Header, Request
from pydantic import BaseModel

from service.api.access import BY_ANYBODY
from service.api.common import in_thread_of, problems
from service.db.engine import transaction
from service.domain.states import ForgeKind
from service.errors import BadInput, Busy, Refused, TooLarge, Unavailable, Unsigned, UnsupportedMedia
from service.forge.forge import Signatures, StandardSignatures, is_token, well_formed
from service.ledger.intake.deliveries import store_delivery
from service.settings import settings

log = structlog.get_logger()

_ERRORS = problems(
    {
        401: "The delivery is not signed with the webhook's secret.",
        403: "Webhooks are off: the server has no secret for them.",
        408: "The body did not arrive in time.",
        413: "The body is too long.",
        415: "The body is not plain JSON.",
        422: "A header of the delivery is missing or too long.",
        503: "Too many long bodies arrive at once, or there is no room for one.",
    }
)
_MAX_GUID, _MAX_EVENT = 80, 40
IN_MEMORY = 128 << 10  # bytes of a body; most deliveries are shorter
_AT_ONCE = 32  # deliveries of one transaction
_THREAD = ThreadPoolExecutor(1, "webhooks")  # readers must not delay a delivery: GitHub waits for 10 s


class Accepted(BaseModel):
    """`new` is false for a delivery that was stored before."""

    delivery: int
    new: bool


class Places:
    """Places for long bodies, which are written to disk until their signature is known.

    When all are taken, the body that arrives for the longest time gives its place to the next: bodies that never end
    must not keep deliveries out.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: list[asyncio.Timeout] = []

    @contextmanager
    def one(self, deadline: asyncio.Timeout) -> Iterator[None]:
        """Hold a place; `deadline` expires when it is lost."""
        if len(self._taken) >= self._limit:
            self._taken.pop(0).reschedule(asyncio.get_running_loop().time())
        self._taken.append(deadline)
        try:
            yield
        finally:
            if deadline in self._taken:
                self._taken.remove(deadline)


@dataclass(frozen=True)
class Signed:
    """A delivery whose signature fits."""

    kind: ForgeKind
    guid: str
    event: str
    body: IO[bytes]


class Stores:
    """Stores deliveries that arrive together in one transaction.

    A commit waits for the disk, for 10 ms or on a busy machine for 30: one for each of 67 deliveries a second takes
    longer than a second.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Signed, asyncio.Future[Accepted]]] = []
        self._task: asyncio.Task[None] | None = None

    async def store(self, delivery: Signed) -> Accepted:
        """Store it; return after the commit."""
        done: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        self._waiting.append((delivery, done))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await done

    async def _run(self) -> None:
        while self._waiting:
            part, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
            try:
                answers: list[Accepted | Exception] = list(await self._stored([one for one, _ in part]))
            except Exception:  # one of them may be at fault
                answers = [await self._alone(one) for one, _ in part]
            for (_, done), answer in zip(part, answers, strict=True):
                if done.cancelled():
                    continue
                if isinstance(answer, Exception):
                    done.set_exception(answer)
                else:
                    done.set_result(answer)
        self._task = None

    async def _alone(self, delivery: Signed) -> Accepted | Exception:
        try:
            [answer] = await self._stored([delivery])
        except Exception as error:
            return error
        return answer

    async def _stored(self, deliveries: list[Signed]) -> list[Accepted]:
        return await in_thread_of(_THREAD, _stored, deliveries)


def router() -> APIRouter:
    """The endpoint of an app, with its places for bodies."""
    routes = APIRouter(prefix="/webhooks", tags=["webhooks"])
    places, stores = Places(settings().bodies_limit), Stores()

    @routes.post(
        "/github",
        status_code=202,
        responses=_ERRORS,
        openapi_extra=BY_ANYBODY,
    )
    async def github(
        request: Request,
        x_hub_signature_256: Annotated[str | None, Header(description="The HMAC of the body.")] = None,
        x_github_delivery: Annotated[str, Header(description="The id of the delivery.")] = "",
        x_github_event: Annotated[str, Header(description="What the delivery is about.")] = "",
    ) -> Accepted:
        """Store a delivery of GitHub.  The response follows the commit; a repeated delivery is harmless."""
        secrets = [one.get_secret_value() for one in (settings().webhook_secret, settings().webhook_secret_old) if one]
        _check_head(request, secrets, x_hub_signature_256, x_github_delivery, x_github_event)
        signatures = Signatures(secrets)
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as body:
            await _receive(request, body, signatures.update, places)
            if not signatures.fit(x_hub_signature_256 or ""):
                raise Unsigned(
                    "X-Hub-Signature-256 does not match the body: GitHub and this server have different secrets."
                )
            return await stores.store(Signed(ForgeKind.GITHUB, x_github_delivery, x_github_event, body))

    @routes.post("/gitlab", status_code=202, responses=_ERRORS, openapi_extra=BY_ANYBODY)
    async def gitlab(
        request: Request,
        x_gitlab_event: Annotated[str, Header(description="What the delivery is about.")] = "",
        x_gitlab_token: Annotated[str, Header(description="The secret token, where one is set.")] = "",
        webhook_id: Annotated[str, Header(description="The id that is signed.")] = "",
        webhook_timestamp: Annotated[str, Header(description="The time that is signed.")] = "",
        webhook_signature: Annotated[str, Header(description="Signatures by the signing token.")] = "",
        idempotency_key: Annotated[str, Header(description="The same at each attempt to deliver.")] = "",
        x_gitlab_webhook_uuid: Annotated[str, Header(description="The id of the webhook.")] = "",
    ) -> Accepted:
        """Store a delivery of GitLab.  The response follows the commit; a repeated delivery is harmless."""
        secrets = _gitlab_secrets()
        # Retries have the same key; the UUID, which is all that there is before GitLab 17.4, is of one attempt.
        guid = webhook_id or idempotency_key or x_gitlab_webhook_uuid
        proved = is_token(x_gitlab_token, secrets)
        signatures = StandardSignatures(secrets, guid, webhook_timestamp)
        if not proved and not (webhook_id and signatures.can_fit(webhook_signature, time.time())):
            raise Unsigned(_why_unproved(x_gitlab_token, webhook_signature))
        stored_guid = guid and f"gitlab:{guid}"
        _check_delivery(request, stored_guid, x_gitlab_event, "Idempotency-Key or X-Gitlab-Event")
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as body:
            await _receive(request, body, signatures.update, places)
            if not proved and not signatures.fit(webhook_signature):
                raise Unsigned(
                    "webhook-signature does not match the body: GitLab and this server have different signing tokens."
                )
            return await stores.store(Signed(ForgeKind.GITLAB, stored_guid, x_gitlab_event, body))

    return routes


def _gitlab_secrets() -> list[str]:
    here = settings()
    secrets = [one.get_secret_value() for one in (here.gitlab_webhook_secret, here.gitlab_webhook_secret_old) if one]
    if not any(secrets):
        raise Refused("GitLab's webhooks are off: set KERNELWATCH_GITLAB_WEBHOOK_SECRET to the webhook's secret token.")
    return secrets


def _why_unproved(token: str, signature: str) -> str:
    if signature:
        return "webhook-signature does not fit: the server has no signing token, or its clock is minutes off."
    if token:
        return "X-Gitlab-Token is wrong: GitLab and this server have different secrets."
    return "The delivery has no secret: set a secret token or a signing token for the webhook at GitLab."


def _check_head(request: Request, secrets: list[str], signature: str | None, guid: str, event: str) -> None:
    """Refuse what can be refused before the body is read: nobody has proved to be the forge yet."""
    if not any(secrets):
        raise Refused("Webhooks are off: set KERNELWATCH_WEBHOOK_SECRET to the webhook's secret.")
    if signature is None:
        raise Unsigned("The delivery is not signed: set a secret for the webhook at GitHub.")
    if not well_formed(signature):
        raise Unsigned("X-Hub-Signature-256 is not `sha256=` and 64 hexadecimal digits.")
    _check_delivery(request, guid, event, "X-GitHub-Delivery or X-GitHub-Event")


def _check_delivery(request: Request, guid: str, event: str, headers: str) -> None:
    """Refuse a delivery that cannot be stored, by its headers."""
    if not (0 < len(guid) <= _MAX_GUID and 0 < len(event) <= _MAX_EVENT):
        raise BadInput(f"{headers} is missing, or too long.")
    media = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media != "application/json" or request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMedia("The body is not plain JSON: set the webhook's content type to application/json.")
    if int(request.headers.get("content-length", "0")) > settings().body_limit:
        raise TooLarge(settings().body_limit)


async def _receive(request: Request, body: IO[bytes], update: Callable[[bytes], None], places: Places) -> None:
    """Write the body to `body` up to the limit.  The declared length may be wrong or missing."""
    length = 0
    try:
        async with asyncio.timeout(None) as deadline:
            with ExitStack() as place:
                async for part in request.stream():
                    if length <= IN_MEMORY < length + len(part):
                        place.enter_context(places.one(deadline))
                    length += len(part)
                    if length > settings().body_limit:
                        raise TooLarge(settings().body_limit)
                    update(part)
                    body.write(part)
    except TimeoutError:
        raise Busy("Too many long bodies arrive at once; deliver this one again.") from None
    except OSError as error:
        log.error("no room for the body of a delivery", error=str(error))
        raise Unavailable("There is no room for the body; deliver it again later.") from None


def _stored(deliveries: list[Signed]) -> list[Accepted]:
    with transaction() as session:
        answers = []
        for one in deliveries:
            one.body.seek(0)
            delivery_id, new = store_delivery(session, one.guid, one.event, one.body.read(), one.kind)
            answers.append(Accepted(delivery=delivery_id, new=new))
        return answers
