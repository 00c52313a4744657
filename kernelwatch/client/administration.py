"""Keys, people, the audit log, and subscriptions to events with their channels."""

from collections.abc import Sequence
from datetime import datetime

from kernelwatch.client.calls import Listing
from kernelwatch.client.resources import Mode, Resource, endpoint, listing

from . import models


class Keys(Resource[Mode]):
    """API keys.  `key` is an id, or the prefix by which people recognise a key."""

    @listing("/keys", paged=False)
    def list(self, *, ended: bool | None = None) -> Listing[models.KeyItem]:
        """Keys, the newest first; `ended` includes expired and revoked ones."""

    @endpoint("POST /keys", secret=True)
    def create(self, name: str, scopes: Sequence[str], *, expires_at: datetime | None = None) -> models.NewKeyDocument:
        """Make a key: its `key` is shown only here.  If the answer is lost, revoke the new key and make another."""

    @endpoint("POST /keys/{which}/rotate", secret=True)
    def rotate(self, key: str | int, *, overlap_s: float | None = None) -> models.NewKeyDocument:
        """Replace a key by a new one; the old one stays valid for `overlap_s`, a day by default."""

    @endpoint("POST /keys/{which}/revoke")
    def revoke(self, key: str | int) -> models.KeyItem:
        """Revoke a key: the next request with it is refused."""


class Me(Resource[Mode]):
    """Who makes the calls."""

    @endpoint("GET /me")
    def get(self) -> models.MeDocument:
        """The name behind the key, and its scopes."""


class People(Resource[Mode]):
    """People who have signed in."""

    @listing("/people")
    def list(self) -> Listing[models.PersonItem]:
        """People, the newest first."""

    @endpoint("POST /people/{login}/{change}", change="disable")
    def disable(self, login: str) -> models.PersonItem:
        """Keep a person out, from their next request on."""

    @endpoint("POST /people/{login}/{change}", change="enable")
    def enable(self, login: str) -> models.PersonItem:
        """Let a person in again."""


class Audit(Resource[Mode]):
    """What was changed, by whom."""

    @listing("/audit")
    def list(
        self, *, target: str | None = None, by: str | None = None, action: str | None = None
    ) -> Listing[models.AuditItem]:
        """Changes, the newest first.  `action` is a noun (`run`) or a noun and a verb (`run.cancel`)."""


class Subscriptions(Resource[Mode]):
    """Who is notified of what."""

    @listing("/subscriptions")
    def list(self, *, target: str | None = None) -> Listing[models.SubscriptionItem]:
        """Subscriptions to targets that you may triage, the newest first."""

    @endpoint("POST /subscriptions")
    def create(
        self,
        channel: str,
        *,
        target: str | None = None,
        device: str | None = None,
        severity: str | None = None,
        kinds: Sequence[str] | None = None,
    ) -> models.SubscriptionItem:
        """Subscribe a channel to a target, or to all targets and workers.

        `device` may be a pattern; `severity` is the smallest one: pass, warn or fail.
        """

    @endpoint("POST /subscriptions/{subscription_id}/test")
    def test(self, subscription_id: int) -> models.TrialDocument:
        """Send a test to its channel now."""

    @endpoint("DELETE /subscriptions/{subscription_id}")
    def delete(self, subscription_id: int) -> None:
        """Delete a subscription; what waits for it is not sent."""


class Channels(Resource[Mode]):
    """Where notices are sent."""

    @listing("/channels", paged=False)
    def list(self) -> Listing[models.ChannelItem]:
        """The channels that the operator named, without their addresses, and how they work."""
