"""Webhooks of forges: verify the signature of the raw body, store the delivery, respond.  Control processes it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

from fastapi import APIRouter, Header, Request
from pydantic import BaseModel

from service.api.common import in_thread_of
from service.db.engine import transaction
from service.errors import BadInput, Refused, TooLarge, Unsigned
from service.forge.signature import signed
from service.ledger.intake.deliveries import store_delivery
from service.settings import settings

router = APIRouter(prefix="/webhooks", tags=["webhooks"])

_MAX_GUID, _MAX_EVENT = 80, 40
_THREADS = ThreadPoolExecutor(2, "webhooks")  # readers must not delay a delivery: GitHub waits for 10 s


class Accepted(BaseModel):
    """`new` is false for a delivery that was stored before."""

    delivery: int
    new: bool


@router.post("/github", status_code=202)
async def github(
    request: Request,
    x_hub_signature_256: Annotated[str | None, Header()] = None,
    x_github_delivery: Annotated[str, Header()] = "",
    x_github_event: Annotated[str, Header()] = "",
) -> Accepted:
    """Store a delivery of GitHub.  The response follows the commit; a repeated delivery is harmless."""
    secrets = [one.get_secret_value() for one in (settings().webhook_secret, settings().webhook_secret_old) if one]
    if not any(secrets):
        raise Refused("Webhooks are off: set KERNELWATCH_WEBHOOK_SECRET to the webhook's secret.")
    if x_hub_signature_256 is None:  # without a signature the body is not read
        raise Unsigned("The delivery is not signed: set a secret for the webhook at GitHub.")
    body = await _body(request, settings().body_limit)
    if not signed(body, x_hub_signature_256, secrets):
        raise Unsigned("X-Hub-Signature-256 does not match the body: GitHub and this server have different secrets.")
    if not (0 < len(x_github_delivery) <= _MAX_GUID and 0 < len(x_github_event) <= _MAX_EVENT):
        raise BadInput("X-GitHub-Delivery or X-GitHub-Event is missing, or too long.")
    return await in_thread_of(_THREADS, _stored, x_github_delivery, x_github_event, body)


async def _body(request: Request, limit: int) -> bytes:
    """Read the raw body up to the limit.  The declared length may be wrong or missing."""
    too_large = TooLarge(f"The body is longer than {limit} bytes.")
    if int(request.headers.get("content-length", "0")) > limit:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_large
    return bytes(body)


def _stored(guid: str, event: str, body: bytes) -> Accepted:
    with transaction() as session:
        delivery_id, new = store_delivery(session, guid, event, body)
        return Accepted(delivery=delivery_id, new=new)
