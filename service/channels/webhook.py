"""A webhook, signed as https://www.standardwebhooks.com says."""

import base64
import hashlib
import hmac
import time
from collections.abc import Sequence
from http import HTTPStatus

import httpx

from service.channels.channel import Channel, ChannelFailed, key_of

_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
_MAX_PAUSE_S = 3600.0
# The receiver refuses this message, and would refuse it again; other 4xx are about the address or the credentials.
_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)


def send(channel: Channel, message_id: str, body: str) -> None:
    """Send a document.  A repeat has the same id, so that the receiver can recognise it.

    Redirects are not followed: the new place is not what the operator named.  Raises ChannelFailed.
    """
    at = int(time.time())
    headers = {
        "content-type": "application/json",
        "user-agent": "kernelwatch",
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": signatures(channel.secrets, message_id, at, body),
    }
    try:
        with (
            httpx.Client(timeout=_TIMEOUT, follow_redirects=False) as client,
            client.stream("POST", channel.url, content=body.encode(), headers=headers) as answer,
        ):
            status = answer.status_code
            pause_s = _pause_s(answer.headers.get("retry-after", ""))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ChannelFailed(f"no answer: {type(error).__name__}") from None  # its text may have the address
    if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        raise ChannelFailed(
            f"the receiver answered {status}{_hint(status)}", refused=status in _REFUSED, pause_s=pause_s
        )


def signatures(secrets: Sequence[str], message_id: str, at: int, body: str) -> str:
    """The signature by each secret: while one is rotated, receivers know the old or the new one."""
    signed = f"{message_id}.{at}.{body}".encode()
    keys = [key for secret in secrets if (key := key_of(secret)) is not None]
    digests = [hmac.new(key, signed, hashlib.sha256).digest() for key in keys]
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def _pause_s(retry_after: str) -> float:
    return min(float(retry_after), _MAX_PAUSE_S) if retry_after.isascii() and retry_after.isdecimal() else 0.0


def _hint(status: int) -> str:
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return "; redirects are not followed, so set the address that it leads to"
    return ""
