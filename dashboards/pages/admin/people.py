"""People who have signed in, and the audit log: who may enter, and who changed what."""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from dashboards import forms
from dashboards.forms import ActionForm, Sent, Verb
from dashboards.rendering import page
from service.api.access import Acting, Reading, ReadingRoute, needs, permit
from service.api.common import Cursor
from service.db.engine import clock, transaction
from service.db.models import Account, AuditEntry
from service.domain.access import Actor, Scope
from service.errors import NotFound
from service.ledger import audit
from service.ledger.access import accounts
from service.ledger.acting import acting
from service.ledger.targets import all_targets

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)
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
    return page("people.html", now=clock(session), lines=lines, next=found.next, first=cursor is None)


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
