"""Subscriptions to events, and the channels to which they are sent."""

from collections.abc import Sequence

from ..calls import Call, Listing, get_list, post, remove
from ..models import ChannelItem, SubscriptionItem, TrialDocument
from ..resources import Mode, Resource, endpoint, listing


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
