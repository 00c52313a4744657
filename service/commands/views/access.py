"""Keys, people, the audit log, subscriptions and channels as commands print them."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from kernelwatch.client import Page
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
from service.commands.output.views import Column, Sentence, Table, View, text
from service.commands.output.wording import day, minute, more
from service.domain.states import NOT_MEASURED

KEYS = (
    Column[KeyItem]("id", lambda one: str(one.id), right=True),
    Column[KeyItem]("key", lambda one: one.prefix, lambda _: "bold"),
    Column[KeyItem]("name", lambda one: one.name, folds=True),
    Column[KeyItem]("scopes", lambda one: " ".join(one.scopes), folds=True),
    Column[KeyItem]("expires", lambda one: minute(one.expires_at) or "never", spare=2),
    Column[KeyItem]("used", lambda one: minute(one.used_at) or "never", spare=1),
    Column[KeyItem]("revoked", lambda one: f"{day(one.revoked_at)} by {one.revoked_by}" if one.revoked_at else ""),
)
PEOPLE = (
    Column[PersonItem]("login", lambda one: one.login, lambda _: "bold"),
    Column[PersonItem]("issuer", lambda one: one.issuer, spare=2),
    Column[PersonItem]("signed in", lambda one: minute(one.signed_in_at), spare=1),
    Column[PersonItem]("admin", lambda one: "admin" if one.admin else ""),
    Column[PersonItem]("state", lambda one: "disabled" if one.disabled_at else "", lambda _: "yellow"),
)
CHANGES = (
    Column[AuditItem]("time", lambda one: minute(one.at)),
    Column[AuditItem]("action", lambda one: one.action, lambda _: "bold"),
    Column[AuditItem]("target", lambda one: one.target or "", spare=1),
    Column[AuditItem]("object", lambda one: one.object or "", folds=True),
    Column[AuditItem]("by", lambda one: one.actor),
    Column[AuditItem]("from", lambda one: one.address or "", spare=2),
)


def logged_in(me: MeDocument, address: str, path: Path) -> View:
    """Who one is on a server, and where the key is stored."""
    scopes = " ".join(me.scopes) or "no scope"
    return View(me, [text(f"Logged in to {address} as ", (me.name, "bold"), f" ({scopes}); the key is in {path}.")])


def keys(page: Page[KeyItem]) -> View:
    """API keys, without their secrets."""
    empty = [] if page.items else [text("No keys. Make one with `kernelwatch key create NAME --scope SCOPE`.")]
    return View(page, (Table(KeyItem, page.items, KEYS), *empty))


def new_key(found: NewKeyDocument) -> View:
    """A key alone, so that a script can store it."""
    return View(found, [text(found.key)])


def revoked(found: KeyItem) -> View:
    """A key that was revoked."""
    return View(found, [text("Revoked the key ", (found.prefix, "bold"), f" of {found.name}.")])


def people(page: Page[PersonItem], limit: int) -> View:
    """People who have signed in."""
    notes = more(limit, page.next) if page.items else ["Nobody has signed in."]
    return View(page, (Table(PersonItem, page.items, PEOPLE), *map(text, notes)))


class SignInLink(BaseModel):
    """A link that begins a session."""

    url: str


def link(address: str, code: str) -> View:
    """A link alone, so that a script can open it."""
    found = SignInLink(url=f"{address}/sign-in/local?code={code}")
    return View(found, [text(found.url)])


def person(found: PersonItem) -> View:
    """A person who was kept out or let in."""
    said = " can no longer sign in, and has no session and no key." if found.disabled_at else " can sign in again."
    return View(found, [text((found.login, "bold"), said)])


def changes(page: Page[AuditItem], limit: int) -> View:
    """What was changed, the newest first."""
    notes = more(limit, page.next) if page.items else ["Nothing was changed."]
    return View(page, (Table(AuditItem, page.items, CHANGES), *map(text, notes)))


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
