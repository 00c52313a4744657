"""Keys, people, the audit log, subscriptions and channels as commands print them."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

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
from service.commands.output.views import Column, Columns, Sentence, View, day, minute, text
from service.domain.states import NOT_MEASURED

KEYS = Columns(
    KeyItem,
    Column("id", lambda one: str(one.id), right=True),
    Column("key", lambda one: one.prefix, lambda _: "bold"),
    Column("name", lambda one: one.name, folds=True),
    Column("scopes", lambda one: " ".join(one.scopes), folds=True),
    Column("expires", lambda one: minute(one.expires_at) or "never", spare=2),
    Column("used", lambda one: minute(one.used_at) or "never", spare=1),
    Column("revoked", lambda one: f"{day(one.revoked_at)} by {one.revoked_by}" if one.revoked_at else ""),
    empty="No keys. Make one with `kernelwatch key create NAME --scope SCOPE`.",
)
PEOPLE = Columns(
    PersonItem,
    Column("login", lambda one: one.login, lambda _: "bold"),
    Column("issuer", lambda one: one.issuer, spare=2),
    Column("signed in", lambda one: minute(one.signed_in_at), spare=1),
    Column("admin", lambda one: "admin" if one.admin else ""),
    Column("state", lambda one: "disabled" if one.disabled_at else "", lambda _: "yellow"),
    empty="Nobody has signed in.",
)
CHANGES = Columns(
    AuditItem,
    Column("time", lambda one: minute(one.at)),
    Column("action", lambda one: one.action, lambda _: "bold"),
    Column("target", lambda one: one.target or "", spare=1),
    Column("object", lambda one: one.object or "", folds=True),
    Column("by", lambda one: one.actor),
    Column("from", lambda one: one.address or "", spare=2),
    empty="Nothing was changed.",
)


def logged_in(me: MeDocument, address: str, path: Path) -> View:
    """Who one is on a server, and where the key is stored."""
    scopes = " ".join(me.scopes) or "no scope"
    return View(me, [text(f"Logged in to {address} as ", (me.name, "bold"), f" ({scopes}); the key is in {path}.")])


def new_key(found: NewKeyDocument) -> View:
    """A key alone, so that a script can store it."""
    return View(found, [text(found.key)])


def revoked(found: KeyItem) -> View:
    """A key that was revoked."""
    return View(found, [text("Revoked the key ", (found.prefix, "bold"), f" of {found.name}.")])


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


SUBSCRIPTIONS = Columns(
    SubscriptionItem,
    Column("id", lambda one: str(one.id), right=True),
    Column("channel", lambda one: one.channel, lambda _: "bold"),
    Column("target", lambda one: one.target or "all"),
    Column("device", lambda one: one.device or "all"),
    Column("severity", lambda one: one.severity),
    Column("events", lambda one: " ".join(one.kinds) if one.kinds else "all", folds=True),
    Column("waiting", lambda one: str(one.waiting), right=True, spare=1),
    Column("sent", lambda one: minute(one.sent_at) or "never", spare=2),
    Column("by", lambda one: one.created_by, spare=3),
    empty="No subscriptions. Add one with `kernelwatch subscription create CHANNEL`.",
)
CHANNELS = Columns(
    ChannelItem,
    Column("channel", lambda one: one.name, lambda _: "bold"),
    Column("service", lambda one: one.service),
    Column("waiting", lambda one: str(one.waiting), right=True, spare=1),
    Column("sent", lambda one: minute(one.sent_at) or "never", spare=2),
    Column("problem", lambda one: one.trouble or one.error or "", lambda _: "red", below=True),
    empty="No channels. The operator names them in KERNELWATCH_CHANNELS.",
)


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


def failing(found: Sequence[ChannelItem]) -> list[Sentence]:
    """A line for each channel that does not work, for the status."""
    return [
        text("channel ", (one.name, "bold"), ": ", (one.trouble or f"the last message failed: {one.error}", "red"))
        for one in found
        if one.trouble or one.error
    ]
