"""Channels of a test: a fake Slack, a signed webhook and mail, all on this machine."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from apprise.plugins.slack import NotifySlack
from standardwebhooks import Webhook

from service.db.engine import transaction
from service.domain.access import local
from service.ledger.notices import deliver, subscriptions
from service.settings import settings
from tests.fakes.receivers import Mailbox, Receiver, mailing, receiving

SECRET, OLD_SECRET = "whsec_" + "QUJD" * 8, "whsec_" + "REVG" * 8


@dataclass
class Channels:
    """What the channels `chat` and `hook` got."""

    slack: Receiver
    hook: Receiver

    def verified(self, secret: str = SECRET) -> list[dict[str, Any]]:
        """The documents of the webhook, each checked by the library of Standard Webhooks."""
        return [Webhook(secret).verify(one.body, one.headers) for one in self.hook.received]


def subscribe(channel: str, target: Any = None, **options: Any) -> int:
    """Subscribe as the user of this machine."""
    with transaction() as session:
        return subscriptions.create(session, local("ada"), channel, target, **options).row.id


def send(now: float) -> int:
    """What control does at this time.  Returns how many messages arrived."""
    deliver.batch_due(now)
    return deliver.deliver_due(now)


@pytest.fixture
def channels(state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Channels]:
    with receiving() as slack, receiving() as hook:
        monkeypatch.setattr(NotifySlack, "webhook_url", f"{slack.address}/services")
        set_channels(monkeypatch, hook, secret=SECRET)
        yield Channels(slack, hook)


@pytest.fixture
def mailbox(channels: Channels, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    """The channel `mail` works, too."""
    with mailing() as found:
        set_channels(monkeypatch, channels.hook, found.port, secret=SECRET)
        yield found


def set_channels(monkeypatch: pytest.MonkeyPatch, hook: Receiver, mail_port: int = 9, **secrets: str) -> None:
    named = {
        "chat": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#kernels",
        "hook": {"url": f"{hook.address}/notices?token=t0p", **secrets},
        "mail": f"mailto://127.0.0.1:{mail_port}/?from=kernelwatch@example.org&to=ada@example.org&mode=insecure",
    }
    monkeypatch.setenv("KERNELWATCH_CHANNELS", json.dumps(named))
    settings.cache_clear()
