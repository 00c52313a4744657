"""API keys, people who have signed in, and the audit log: who may enter, and who changed what.

The text of a new key is in the response to its form and nowhere else: no address, log or stored response holds it.
"""

import hashlib
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy.orm import Session

from dashboards import forms
from dashboards.forms import ActionForm, Field, FieldKind, Sent, Verb
from dashboards.rendering import page, page_router
from service.api.access import Acting, Reading, needs, permit
from service.api.common import Cursor
from service.api.keys import check_own, owner_of_new, owner_to_list
from service.db.engine import clock, transaction
from service.db.models import Account, ApiKey, AuditEntry
from service.domain.access import OF_TARGETS, Actor, NamedGrant, Scope, read_grants
from service.domain.text import DAY_S
from service.errors import BadInput, NotFound
from service.ledger import audit
from service.ledger.access import accounts, keys, repeats
from service.ledger.acting import acting
from service.ledger.targets import all_targets

router = page_router()

_ONCE = "once"  # the field that tells a form which is sent twice from a second form
_OVERLAPS = {"0": "not at all", "3600": "an hour", "86400": "a day", "604800": "a week", "2592000": "30 days"}
_NO_STORE = {"Cache-Control": "no-store"}


ROTATE = Verb("rotate", "Rotate", "Its successor has the same name, scopes and lifetime, and is shown once.")
REVOKE = Verb("revoke", "Revoke", "The next request with it is refused. This cannot be undone.", "Revoke {0} ({1})?")


@dataclass(frozen=True)
class KeyLine:
    """A key as the page lists it, with the forms that its state allows."""

    row: ApiKey
    scopes: Sequence[NamedGrant]
    state: str
    valid: bool
    forms: Sequence[ActionForm]


@router.get("/keys")
@needs(Scope.READ)
def list_keys(session: Reading, actor: Acting, ended: Annotated[bool, Query()] = False) -> str:
    """Show API keys: all to administrators, their own to people who signed in."""
    found = keys.listed(session, account_id=owner_to_list(actor), ended=ended)
    now = clock(session)
    lines = [_line(session, row, now) for row in found]
    form = _form_of_new(session, actor)
    return page("keys.html", now=now, lines=lines, form=form, ended=ended, every=actor.may(Scope.ADMIN))


@router.get("/keys/create")
@needs(Scope.READ)
def form_of_new(session: Reading, actor: Acting) -> str:
    """Show the form of a new key alone."""
    owner_to_list(actor)
    return forms.shown(session, _form_of_new(session, actor))


@router.post("/keys/create", max_body_size=forms.MAX_FORM)
async def create(request: Request) -> Response:
    """Make a key, and show it once."""
    return await forms.submitted(request, lambda session: _form_of_new(session, acting().actor), _create)


def _line(session: Session, row: ApiKey, now: float) -> KeyLine:
    if row.revoked_at is not None:
        state = "revoked"
    else:
        state = "expired" if row.expires_at is not None and row.expires_at <= now else "valid"
    valid = state == "valid"
    offered = [_form_of_key(row, verb) for verb in (ROTATE, REVOKE)] if valid else []
    return KeyLine(row, keys.named_grants(session, row), state, valid, offered)


def _form_of_new(session: Session, actor: Actor) -> ActionForm:
    if actor.may(Scope.ADMIN):
        may_give = [scope.value for scope in Scope]
        hint = f"Any of {', '.join(may_give)}; {', '.join(OF_TARGETS)} may name a target, as in run:norms."
    else:
        may_give = [str(one) for one in keys.named(session, actor.grants)]
        hint = f"Any that you have: {', '.join(may_give)}." if may_give else "You have no scope to give."
    return ActionForm(
        address="/keys/create",
        title="New key",
        button="Make the key",
        back="/keys",
        scope=Scope.READ,
        command="kernelwatch key create NAME --scope SCOPE",
        anywhere=True,
        fields=(
            Field("name", "Name", required=True, hint="Who uses it, and for what.", max_length=keys.MAX_NAME),
            Field("scopes", "Scopes", required=True, hint=hint, suggestions=tuple(may_give)),
            Field("expires", "Expires", FieldKind.DAY, hint="At the start of the day, in UTC."),
            _once_field(),
        ),
        about="The key is shown once, after you sent this.",
    )


def _form_of_key(row: ApiKey, verb: Verb) -> ActionForm:
    form = verb.form(f"/keys/{row.id}", Scope.READ, f"kernelwatch key {verb.name} {row.prefix}", row.prefix, row.name)
    overlap = Field(
        "overlap", "The old key stays valid for", FieldKind.CHOICE, "86400", choices=tuple(_OVERLAPS.items())
    )
    fields = (overlap, _once_field()) if verb is ROTATE else ()
    return replace(form, title=f"{verb.title} {row.name}", back="/keys", anywhere=True, fields=fields)


def _once_field() -> Field:
    return Field(_ONCE, "Form", FieldKind.HIDDEN, secrets.token_urlsafe(16), required=True, max_length=40)


def _find_key(key_id: int, verb: Verb, session: Session) -> ActionForm:
    check_own(session, str(key_id), acting().actor)
    return _form_of_key(keys.one(session, str(key_id)), verb)


def _create(sent: Sent, actor: Actor) -> Response:
    grants = read_grants(re.split(r"[,\s]+", sent["scopes"].strip(", ")))
    account_id, expires_at = owner_of_new(actor), _start_of(sent["expires"])
    with transaction() as session:
        if not _is_first(session, sent, actor, "create"):
            return _shown_before(session)
        row, text = keys.create(session, sent["name"], grants, expires_at=expires_at, account_id=account_id)
        return _shown_once(session, row, text)


def _change_key(key_id: int, verb: Verb, sent: Sent, actor: Actor) -> str | Response:
    """Rotate a key, and show its successor once; or revoke it."""
    with transaction() as session:
        check_own(session, str(key_id), actor)
        if verb is REVOKE:
            return f"The key {keys.revoke(session, str(key_id)).prefix} is revoked."
        if not _is_first(session, sent, actor, f"rotate {key_id}"):
            return _shown_before(session)
        row, text = keys.rotate(session, str(key_id), overlap_s=float(sent["overlap"] or DAY_S))
        return _shown_once(session, row, text)


def _is_first(session: Session, sent: Sent, actor: Actor, what: str) -> bool:
    digest = hashlib.sha256(f"key {what}".encode()).hexdigest()
    return repeats.is_first(session, f"{actor.kind} {actor.id}", sent[_ONCE], digest)


def _shown_once(session: Session, row: ApiKey, text: str) -> Response:
    scopes = keys.named_grants(session, row)
    body = page("key.html", now=clock(session), row=row, scopes=scopes, text=text)
    return HTMLResponse(body, HTTPStatus.CREATED, headers=_NO_STORE)


def _shown_before(session: Session) -> Response:
    body = page("key.html", now=clock(session), row=None, scopes=(), text="")
    return HTMLResponse(body, HTTPStatus.OK, headers=_NO_STORE)


def _start_of(day: str) -> float | None:
    """The start of a day in UTC, in seconds since the epoch; None for no day.  Raises BadInput."""
    if not day:
        return None
    try:
        return datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise BadInput(f"{day} is no day. Write one such as 2026-12-31.") from None


forms.add_forms(router, "/keys", (ROTATE, REVOKE), _find_key, _change_key, reader=Scope.READ)


_LINES = 100


DISABLE = Verb("disable", "Disable", "Their sessions and keys are refused from the next request on.", "Disable {}?")
ENABLE = Verb("enable", "Enable", "They may sign in again, and their keys are valid again.")


@router.get("/people")
@needs(Scope.ADMIN)
def people(session: Reading, actor: Acting, cursor: Cursor = None) -> str:
    """Show people who have signed in, the newest first."""
    permit(actor, Scope.ADMIN)
    found = accounts.listed(session, cursor, _LINES)
    lines = [(one, _form(one, DISABLE if one.disabled_at is None else ENABLE)) for one in found.items]
    return page("people.html", now=clock(session), lines=lines, next=found.next, first=not cursor)


def _form(account: Account, verb: Verb) -> ActionForm:
    login = account.login
    form = verb.form(f"/people/{account.id}", Scope.ADMIN, f"kernelwatch person {verb.name} {login}", login)
    own = verb is DISABLE and account.id == acting().actor.id
    about = f"{verb.about} This is your own account: you are signed out." if own else verb.about
    return replace(form, back="/people", about=about)


def _find(account_id: int, verb: Verb, session: Session) -> ActionForm:
    permit(acting().actor, Scope.ADMIN)  # who has signed in is for administrators alone
    return _form(_account(session, account_id), verb)


def _account(session: Session, account_id: int) -> Account:
    account = session.get(Account, account_id)
    if account is None:
        raise NotFound("person", account_id)
    return account


def _change(account_id: int, verb: Verb, _sent: Sent, _actor: Actor) -> str:
    with transaction() as session:
        account = _account(session, account_id)
        accounts.set_disabled(session, account, disabled=verb is DISABLE)
        return f"{account.login} is {'kept out' if verb is DISABLE else 'let in again'}."


forms.add_forms(router, "/people", (DISABLE, ENABLE), _find, _change, reader=Scope.ADMIN)


_AUDIT_LINES = 50
_OBJECT = re.compile(r"(?P<noun>[a-z ]+) (?P<name>\S.*)")
# The page of a thing, by its noun; the thing is named by the rest of an entry's object.
_PAGES = {
    "run": "/runs/{}",
    "regression": "/regressions/{}",
    "incident": "/incidents/{}",
    "bisection": "/bisections/{}",
    "key": "/keys?ended=true#key-{}",
    "person": "/people",
    "worker": "/workers",
}


@router.get("/audit")
@needs(Scope.ADMIN)
def log(
    session: Reading,
    actor: Acting,
    target: Annotated[str, Query(max_length=80)] = "",
    by: Annotated[str, Query(max_length=120)] = "",
    action: Annotated[str, Query(max_length=40)] = "",
    cursor: Cursor = None,
) -> str:
    """Show what was changed, by whom and from where, the newest first."""
    permit(actor, Scope.ADMIN)
    filters = {"target": target.strip(), "by": by.strip(), "action": action.strip()}
    chosen = {name: value for name, value in filters.items() if value}
    found = audit.listed(
        session,
        target=chosen.get("target"),
        actor=chosen.get("by"),
        action=chosen.get("action"),
        cursor=cursor,
        limit=_AUDIT_LINES,
    )
    targets = [one.name for one in all_targets(session)]
    return page(
        "audit.html",
        now=clock(session),
        entries=[(one, address_of(one, targets)) for one in found.items],
        filters=filters,
        chosen=chosen,
        targets=targets,
        first="/audit?" + urlencode(chosen) if cursor else "",
        older="/audit?" + urlencode(chosen | {"cursor": found.next}) if found.next else "",
        json="/api/v1/audit?" + urlencode(chosen),
    )


def address_of(entry: AuditEntry, targets: Collection[str]) -> str:
    """The page of what an entry is about; empty where there is none."""
    found = _OBJECT.fullmatch(entry.object or "")
    noun, name = (found["noun"], found["name"]) if found else ("", "")
    if noun in _PAGES:
        return _PAGES[noun].format(quote(name, safe=""))
    target = name if noun == "target" else entry.target
    if target not in targets:  # removed
        return ""
    pull = f"/pulls/{name}" if noun == "pull request" and name.isdecimal() else ""
    return f"/targets/{quote(target or '', safe='')}{pull}"
