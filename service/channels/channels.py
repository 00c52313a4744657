"""How notices leave: signed webhooks (https://www.standardwebhooks.com), and Apprise for chats and mail.

The addresses of channels are credentials: they are never shown, stored or logged.
"""

import base64
import binascii
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx

from service.domain.states import GateAction
from service.domain.text import one_line
from service.errors import NotFound, ServiceError
from service.settings import settings, without_secrets

SECRET_PREFIX = "whsec_"  # noqa: S105
MIN_KEY, MAX_KEY = 24, 64  # bytes of a secret, as Standard Webhooks asks
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,79}")
_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
_MAX_PAUSE_S = 3600.0
# The receiver refuses this message, and would refuse it again; other 4xx are about the address or the credentials.
_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
_TYPES = {GateAction.FAIL: "failure", GateAction.WARN: "warning", GateAction.PASS: "info", None: "success"}
_MAX_ERROR = 300
_TIMEOUT_S = 15.0  # of all requests of one message


class ChannelFailed(ServiceError):
    """A channel did not take a message.

    `refused` is true if it refused this message for what it is; all else is about the channel.  `pause_s` is the time
    for which the channel asked to be left alone.
    """

    status = 502

    def __init__(self, message: str, *, refused: bool = False, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.refused, self.pause_s = refused, pause_s


@dataclass(frozen=True)
class Channel:
    """A channel with its credentials."""

    name: str
    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)  # the current one first

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)

    @property
    def is_webhook(self) -> bool:
        return self.service in ("http", "https")

    @property
    def service(self) -> str:
        """What the URL begins with: `slack`, `mailto`, `https`."""
        return self.url.partition(":")[0].lower()


def channels() -> list[Channel]:
    """The channels by name."""
    return [named(name) for name in sorted(settings().channels)]


def named(name: str) -> Channel:
    """The channel of this name.  Raises NotFound."""
    setting = settings().channels.get(name)
    if setting is None:
        names = ", ".join(sorted(settings().channels)) or "none"
        raise NotFound("channel", name, f"Known channels: {names}. The operator names them in KERNELWATCH_CHANNELS.")
    secrets = [secret.get_secret_value() for secret in (setting.secret, setting.secret_old) if secret is not None]
    return Channel(name, setting.url.get_secret_value(), tuple(secrets))


def key_of(secret: str) -> bytes | None:
    """The bytes of a secret of Standard Webhooks; None if it is none."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if secret.startswith(SECRET_PREFIX) and MIN_KEY <= len(key) <= MAX_KEY else None


def send_webhook(channel: Channel, message_id: str, body: str) -> None:
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
            retry_after = answer.headers.get("retry-after", "")
            pause_s = (
                min(float(retry_after), _MAX_PAUSE_S) if retry_after.isascii() and retry_after.isdecimal() else 0.0
            )
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


def _hint(status: int) -> str:
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return "; redirects are not followed, so set the address that it leads to"
    return ""


def understands(channel: Channel) -> bool:
    """Whether Apprise knows such a URL.  Nothing is sent."""
    return bool(_sender(channel))


def send_by_apprise(channel: Channel, subject: str, body: str, severity: GateAction | None) -> None:
    """Send a message; `body` is Markdown, which Apprise converts to what the service shows.  Raises ChannelFailed."""
    import apprise

    sender = _sender(channel)
    if not sender:
        raise ChannelFailed("Apprise does not know such a URL")
    result = sender.notify(
        title=subject,
        body=body,
        notify_type=_TYPES[severity],
        body_format=apprise.NotifyFormat.MARKDOWN,
        timeout=_TIMEOUT_S,
        log_level=logging.WARNING,
    )
    if not result:
        messages = " ".join(
            log.message
            for result_of_service in result.results
            for attempt in result_of_service.attempts
            for log in attempt.logs
        )
        raise ChannelFailed(one_line(without_secrets(messages), _MAX_ERROR) or "the service did not take the message")


def _sender(channel: Channel) -> Any:
    """Apprise with this channel alone; it is false if Apprise does not understand the URL."""
    import apprise  # has a hundred services: only processes that send import it

    asset = apprise.AppriseAsset(
        app_id="kernelwatch",
        app_desc="kernelwatch",
        app_url=settings().address,
        image_url_mask=None,  # else Slack would load pictures from Apprise's repository
        async_mode=False,
        http_redirects=False,
    )
    sender = apprise.Apprise(asset=asset)
    # It would log a URL that it cannot parse, with its credentials.
    with apprise.LogCapture(level=logging.ERROR):  # type: ignore[no-untyped-call]
        sender.add(channel.url)
    return sender


def trouble(channel: Channel) -> str | None:
    """Why the channel cannot work as it is set, and the fix; None if nothing is wrong with it."""
    if not NAME.fullmatch(channel.name):
        return "the name must be of lower case letters, digits and `_.-`, at most 80 of them"
    if channel.is_webhook:
        return _trouble_of_webhook(channel)
    return None if understands(channel) else "Apprise does not know such a URL; see https://appriseit.com"


def _trouble_of_webhook(channel: Channel) -> str | None:
    try:
        host, _ = channel.parts.hostname, channel.parts.port
    except ValueError:
        host = None
    if not host:
        return "the URL has no host"
    if channel.service == "http" and not _is_near(channel.parts.netloc.rpartition("@")[2], host):
        return "plain http is for this machine and KERNELWATCH_PRIVATE_HOSTS only; use https"
    if not channel.secrets:
        return 'a webhook needs a secret: {"url": "https://…", "secret": "whsec_…"}'
    if any(key_of(secret) is None for secret in channel.secrets):
        return f"a secret is whsec_ and {MIN_KEY} to {MAX_KEY} random bytes in base64; see docs/notices.md"
    return None


def _is_near(place: str, host: str) -> bool:
    if {place, host} & {"localhost", *settings().private_hosts}:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
