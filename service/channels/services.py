"""Chats, mail and the other services that Apprise knows."""

import logging
from typing import Any

from service.channels.channel import Channel, ChannelFailed
from service.domain.states import GateAction
from service.domain.text import one_line
from service.settings import settings, without_secrets

_TYPES = {GateAction.FAIL: "failure", GateAction.WARN: "warning", GateAction.PASS: "info", None: "success"}
_MAX_ERROR = 300
_TIMEOUT_S = 15.0  # of all requests of one message


def understands(channel: Channel) -> bool:
    """Whether Apprise knows such a URL.  Nothing is sent."""
    return bool(_sender(channel))


def send(channel: Channel, subject: str, body: str, severity: GateAction | None) -> None:
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
        said = " ".join(log.message for one in result.results for attempt in one.attempts for log in attempt.logs)
        raise ChannelFailed(one_line(without_secrets(said), _MAX_ERROR) or "the service did not take the message")


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
