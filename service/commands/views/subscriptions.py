"""Subscriptions and channels as commands print them."""

from collections.abc import Sequence

from kernelwatch.client import Page
from kernelwatch.client.models import ChannelItem, SubscriptionItem, TrialDocument
from service.commands.output.views import Column, Sentence, Table, View, text
from service.commands.output.wording import minute, more
from service.domain.states import NOT_MEASURED

SUBSCRIPTIONS = (
    Column[SubscriptionItem]("id", lambda one: str(one.id), right=True),
    Column[SubscriptionItem]("channel", lambda one: one.channel, lambda _: "bold"),
    Column[SubscriptionItem]("target", lambda one: one.target or "all"),
    Column[SubscriptionItem]("device", lambda one: one.device or "all"),
    Column[SubscriptionItem]("severity", lambda one: one.severity),
    Column[SubscriptionItem]("events", lambda one: " ".join(one.kinds) if one.kinds else "all", folds=True),
    Column[SubscriptionItem]("waiting", lambda one: str(one.waiting), right=True, spare=1),
    Column[SubscriptionItem]("sent", lambda one: minute(one.sent_at) or "never", spare=2),
    Column[SubscriptionItem]("by", lambda one: one.created_by, spare=3),
)
CHANNELS = (
    Column[ChannelItem]("channel", lambda one: one.name, lambda _: "bold"),
    Column[ChannelItem]("service", lambda one: one.service),
    Column[ChannelItem]("waiting", lambda one: str(one.waiting), right=True, spare=1),
    Column[ChannelItem]("sent", lambda one: minute(one.sent_at) or "never", spare=2),
    Column[ChannelItem]("problem", lambda one: one.trouble or one.error or "", lambda _: "red", below=True),
)


def listed(page: Page[SubscriptionItem], limit: int) -> View:
    """Subscriptions, the newest first."""
    none = "No subscriptions. Add one with `kernelwatch subscription create CHANNEL`."
    notes = more(limit, page.next) if page.items else [none]
    return View(page, (Table(SubscriptionItem, page.items, SUBSCRIPTIONS), *map(text, notes)))


def created(made: SubscriptionItem) -> View:
    """A subscription that was made."""
    what = f"{made.target or 'all targets'} on {made.device or 'all devices'}"
    said = f" sends events of {what} to {made.channel}. Try it: `kernelwatch subscription test {made.id}`."
    return View(made, [text((f"Subscription {made.id}", "bold"), said)])


def tried(found: TrialDocument) -> View:
    """Whether a test arrived."""
    if found.arrived:
        return View(found, [text(("The test arrived", "green"), f" after {found.took_s:.1f} s.")])
    return View(found, [text(("The test did not arrive: ", "red"), found.error or "")], code=NOT_MEASURED)


def channels(page: Page[ChannelItem]) -> View:
    """The channels of the settings."""
    empty = [] if page.items else [text("No channels. The operator names them in KERNELWATCH_CHANNELS.")]
    return View(page, (Table(ChannelItem, page.items, CHANNELS), *empty))


def failing(found: Sequence[ChannelItem]) -> list[Sentence]:
    """A line for each channel that does not work, for the status."""
    return [
        text("channel ", (one.name, "bold"), ": ", (one.trouble or f"the last message failed: {one.error}", "red"))
        for one in found
        if one.trouble or one.error
    ]
