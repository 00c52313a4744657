"""People who have signed in: keep one out, or let them in again."""

from enum import StrEnum
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy.orm import Session

from dashboards.pages import forms
from dashboards.pages.forms import ActionForm, Sent
from dashboards.pages.rendering import page
from service.api.access import Acting, Reading, ReadingRoute, needs, permit
from service.api.common import Cursor, Key
from service.db.engine import clock, transaction
from service.db.models import Account
from service.domain.access import Actor, Scope
from service.errors import NotFound
from service.ledger.access import accounts
from service.ledger.access.acting import acting

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)
_LINES = 100


class PersonVerb(StrEnum):
    """What an administrator may do to a person, as the last part of an address."""

    DISABLE = "disable"
    ENABLE = "enable"


@router.get("/people")
@needs(Scope.ADMIN)
def people(session: Reading, actor: Acting, cursor: Cursor = None) -> str:
    """Show people who have signed in, the newest first."""
    permit(actor, Scope.ADMIN)
    found = accounts.listed(session, cursor, _LINES)
    lines = [(one, _form(one, _offered(one))) for one in found.items]
    return page("people.html", now=clock(session), lines=lines, next=found.next, first=cursor is None)


@router.get("/people/{account_id}/{verb}")
@needs(Scope.ADMIN)
def person_form(account_id: Key, verb: PersonVerb, session: Reading) -> str:
    """Show one form of a person."""
    return forms.shown(session, _find(account_id, verb, session))


@router.post("/people/{account_id}/{verb}", max_body_size=forms.MAX_FORM)
async def change_person(request: Request, account_id: Key, verb: PersonVerb) -> Response:
    """Keep a person out, or let them in again."""
    return await forms.submitted(request, partial(_find, account_id, verb), partial(_change, account_id, verb))


def _offered(account: Account) -> PersonVerb:
    return PersonVerb.DISABLE if account.disabled_at is None else PersonVerb.ENABLE


def _form(account: Account, verb: PersonVerb) -> ActionForm:
    disables = verb is PersonVerb.DISABLE
    own = " This is your own account: you are signed out." if account.id == acting().actor.id else ""
    return ActionForm(
        address=f"/people/{account.id}/{verb}",
        title="Disable" if disables else "Enable",
        button="Disable" if disables else "Enable",
        back="/people",
        scope=Scope.ADMIN,
        command=f"kernelwatch person {verb} {account.login}",
        about=f"Their sessions and keys are refused from the next request on.{own}"
        if disables
        else "They may sign in again, and their keys are valid again.",
        question=f"Disable {account.login}?" if disables else "",
    )


def _find(account_id: int, verb: PersonVerb, session: Session) -> ActionForm:
    permit(acting().actor, Scope.ADMIN)  # who has signed in is for administrators alone
    return _form(_account(session, account_id), verb)


def _account(session: Session, account_id: int) -> Account:
    account = session.get(Account, account_id)
    if account is None:
        raise NotFound("person", account_id)
    return account


def _change(account_id: int, verb: PersonVerb, _sent: Sent, _actor: Actor) -> str:
    with transaction() as session:
        account = _account(session, account_id)
        accounts.set_disabled(session, account, disabled=verb is PersonVerb.DISABLE)
        return f"{account.login} is {'kept out' if verb is PersonVerb.DISABLE else 'let in again'}."
