"""The channels of the settings.  Their addresses are credentials: they are never shown, stored or logged."""

import base64
import binascii
import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from service.errors import NotFound, ServiceError
from service.settings import settings

SECRET_PREFIX = "whsec_"  # noqa: S105
MIN_KEY, MAX_KEY = 24, 64  # bytes of a secret, as Standard Webhooks asks
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,79}")


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
        known = ", ".join(sorted(settings().channels)) or "none"
        raise NotFound("channel", name, f"Known channels: {known}. The operator names them in KERNELWATCH_CHANNELS.")
    secrets = [one.get_secret_value() for one in (setting.secret, setting.secret_old) if one is not None]
    return Channel(name, setting.url.get_secret_value(), tuple(secrets))


def key_of(secret: str) -> bytes | None:
    """The bytes of a secret of Standard Webhooks; None if it is none."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if secret.startswith(SECRET_PREFIX) and MIN_KEY <= len(key) <= MAX_KEY else None
