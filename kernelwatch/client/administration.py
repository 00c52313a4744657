"""Keys, people, the audit log, and subscriptions to events with their channels."""

from collections.abc import Sequence
from datetime import datetime

from kernelwatch.client.calls import Call, Listing, get, get_list, post, remove
from kernelwatch.client.models import (
    AuditItem,
    ChannelItem,
    KeyItem,
    MeDocument,
    NewKeyDocument,
    PersonItem,
    SubscriptionItem,
    TrialDocument,
)
from kernelwatch.client.resources import Mode, Resource, endpoint, listing


class Keys(Resource[Mode]):
    """API keys.  `key` is an id, or the prefix by which people recognise a key."""

    @listing
    def list(self, *, ended: bool | None = None) -> Listing[KeyItem]:
        """Keys, the newest first; `ended` includes expired and revoked ones."""
        return get_list("/keys", KeyItem, {"ended": ended}, paged=False)

    @endpoint
    def create(self, name: str, scopes: Sequence[str], *, expires_at: datetime | None = None) -> Call[NewKeyDocument]:
        """Make a key: its `key` is shown only here.  If the answer is lost, revoke the new key and make another."""
        fields = {"name": name, "scopes": list(scopes), "expires_at": expires_at}
        return post("/keys", NewKeyDocument, fields, secret=True)

    @endpoint
    def rotate(self, key: str | int, *, overlap_s: float | None = None) -> Call[NewKeyDocument]:
        """Replace a key by a new one; the old one stays valid for `overlap_s`, a day by default."""
        return post("/keys/{which}/rotate", NewKeyDocument, {"overlap_s": overlap_s}, secret=True, which=key)

    @endpoint
    def revoke(self, key: str | int) -> Call[KeyItem]:
        """Revoke a key: the next request with it is refused."""
        return post("/keys/{which}/revoke", KeyItem, which=key)


class Me(Resource[Mode]):
    """Who makes the calls."""

    @endpoint
    def get(self) -> Call[MeDocument]:
        """The name behind the key, and its scopes."""
        return get("/me", MeDocument)


class People(Resource[Mode]):
    """People who have signed in."""

    @listing
    def list(self) -> Listing[PersonItem]:
        """People, the newest first."""
        return get_list("/people", PersonItem)

    @endpoint
    def disable(self, login: str) -> Call[PersonItem]:
        """Keep a person out, from their next request on."""
        return post("/people/{login}/{change}", PersonItem, login=login, change="disable")

    @endpoint
    def enable(self, login: str) -> Call[PersonItem]:
        """Let a person in again."""
        return post("/people/{login}/{change}", PersonItem, login=login, change="enable")


class Audit(Resource[Mode]):
    """What was changed, by whom."""

    @listing
    def list(
        self, *, target: str | None = None, by: str | None = None, action: str | None = None
    ) -> Listing[AuditItem]:
        """Changes, the newest first.  `action` is a noun (`run`) or a noun and a verb (`run.cancel`)."""
        return get_list("/audit", AuditItem, {"target": target, "by": by, "action": action})


class Subscriptions(Resource[Mode]):
    """Who is notified of what."""

    @listing
    def list(self, *, target: str | None = None) -> Listing[SubscriptionItem]:
        """Subscriptions to targets that you may triage, the newest first."""
        return get_list("/subscriptions", SubscriptionItem, {"target": target})

    @endpoint
    def create(
        self,
        channel: str,
        *,
        target: str | None = None,
        device: str | None = None,
        severity: str | None = None,
        kinds: Sequence[str] | None = None,
    ) -> Call[SubscriptionItem]:
        """Subscribe a channel to a target, or to all targets and workers.

        `device` may be a pattern; `severity` is the smallest one: pass, warn or fail.
        """
        fields = {"channel": channel, "target": target, "device": device, "severity": severity, "kinds": kinds}
        return post("/subscriptions", SubscriptionItem, fields)

    @endpoint
    def test(self, subscription_id: int) -> Call[TrialDocument]:
        """Send a test to its channel now."""
        return post("/subscriptions/{subscription_id}/test", TrialDocument, subscription_id=subscription_id)

    @endpoint
    def delete(self, subscription_id: int) -> Call[None]:
        """Delete a subscription; what waits for it is not sent."""
        return remove("/subscriptions/{subscription_id}", subscription_id=subscription_id)


class Channels(Resource[Mode]):
    """Where notices are sent."""

    @listing
    def list(self) -> Listing[ChannelItem]:
        """The channels that the operator named, without their addresses, and how they work."""
        return get_list("/channels", ChannelItem, paged=False)
