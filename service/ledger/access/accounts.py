"""People who signed in, and their roles: what the forge lets them do with the repository of a target."""

from collections.abc import Mapping

import structlog
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import Account, Role, Target
from service.db.paging import ResultPage, paged
from service.domain.access import Actor
from service.domain.states import ForgeKind
from service.errors import NotFound, Refused
from service.forge.clients import addresses, connect
from service.forge.forge import ForgeFailed
from service.forge.sign_in import Identity
from service.ledger import audit
from service.ledger.access import sign_ins
from service.ledger.acting import acting, as_actor
from service.ledger.locking import insert_if_absent
from service.settings import settings

log = structlog.get_logger()
FRESH_S = 60.0  # how old the permissions may be for a change
FRESH_TO_READ_S = 600.0


def signed_in(identity: Identity) -> tuple[Actor, str]:
    """Find or make the account of a person, ask the forge for their roles, and begin a session.

    Returns the person, and the secret for the cookie.
    """
    with transaction() as session:
        account_id = _account(session, identity).id
    refresh_roles(account_id, older_than_s=0.0)
    with transaction() as session:
        account = session.get_one(Account, account_id)
        secret = sign_ins.begin(session, account)
        person = sign_ins.person(session, account)
        with as_actor(person):
            audit.record(session, "person.sign_in", of=f"person {account.login}", details={"issuer": identity.issuer})
        return person, secret


def link_code(session: Session, person: str) -> str:
    """A code with which a user of the database's machine signs in to the pages; see `sign_ins.link_code`."""
    account = _account(session, Identity(sign_ins.LOCAL_ISSUER, person, person), admin=True)
    audit.record(session, "person.link", of=f"person {person}")
    return sign_ins.link_code(session, account)


def signed_in_with_code(session: Session, code: str) -> str:
    """Begin the session of a code.  Returns the secret for the cookie.  Raises Refused."""
    account = sign_ins.account_of_code(session, code)
    if account is None or account.disabled_at is not None:
        raise Refused("This link was used already or is too old. `kernelwatch person sign-in` prints another one.")
    account.signed_in_at = clock(session)
    with as_actor(sign_ins.person(session, account), acting().address):
        audit.record(session, "person.sign_in", of=f"person {account.login}", details={"issuer": account.issuer})
    return sign_ins.begin(session, account)


def _account(session: Session, identity: Identity, *, admin: bool = False) -> Account:
    now = clock(session)
    unique = {"issuer": identity.issuer, "subject": identity.subject}
    values = unique | {"login": identity.login, "admin": False, "created_at": now, "signed_in_at": now}
    insert_if_absent(session, Account, tuple(unique), values)
    row = session.execute(select(Account).filter_by(**unique)).scalar_one()
    if row.disabled_at is not None:
        raise Refused(f"The account {row.login} is disabled here. Ask an administrator.")
    row.login, row.signed_in_at = identity.login, now
    row.admin = admin or identity.login in settings().admins
    session.flush()
    return row


def refresh_roles(account_id: int, *, older_than_s: float) -> None:
    """Ask the forge again for permissions that are older than this, so that one that was taken away is lost here.

    If the forge does not answer, permissions that are too old are forgotten: nobody keeps a right by an outage.
    """
    with reading() as session:
        person = session.get_one(Account, account_id)
        due = _due(session, person, older_than_s)
    kind = _forge_of(person)
    if not due or kind is None:
        return
    roles = _asked(kind, due, person)
    with transaction() as session:
        # Several requests of a person may get here at once.  A DELETE that waits for another transaction does not see
        # the rows which that one has inserted, so they take turns before it.
        session.get_one(Account, account_id, with_for_update={"key_share": True})
        # A target may have been removed since it was asked about.  FOR KEY SHARE: none is from here on.
        there = select(Target.id).where(Target.id.in_(due)).order_by(Target.id)
        watched = set(session.scalars(there.with_for_update(read=True, key_share=True)))
        stored = select(Role.target_id, Role.checked_at).where(Role.account_id == account_id)
        checked_at = dict(session.execute(stored).all())
        fresh = [
            role
            for role in roles
            if role.target_id in watched and checked_at.get(role.target_id, 0.0) <= role.checked_at
        ]
        replaced = [role.target_id for role in fresh]
        session.execute(delete(Role).where(Role.account_id == account_id, Role.target_id.in_(replaced)))
        session.add_all(fresh)


def has_old_roles(session: Session, account_id: int) -> bool:
    """Whether some permissions are older than reading allows."""
    return bool(_due(session, session.get_one(Account, account_id), FRESH_TO_READ_S))


def _due(session: Session, account: Account, older_than_s: float) -> Mapping[int, str]:
    """Targets on the forge whose permission is too old, with their repositories, in a fixed order."""
    kind = _forge_of(account)
    if kind is None or account.admin:
        return {}
    fresh = select(Role.target_id).where(Role.account_id == account.id, Role.checked_at > clock(session) - older_than_s)
    query = select(Target.id, Target.forge).where(Target.forge_kind == kind, Target.id.not_in(fresh))
    return {target.id: target.forge for target in session.execute(query.order_by(Target.id))}


def _forge_of(person: Account) -> ForgeKind | None:
    """The forge on which a person has their account; None for another provider."""
    return next((kind for kind, address in addresses().items() if address == person.issuer), None)


def _asked(kind: ForgeKind, due: Mapping[int, str], person: Account) -> list[Role]:
    """What the forge lets a person do with these targets; nothing where it does not answer.

    It is not asked again after an outage: each request would wait for as long as the first.
    """
    roles, asked_at, away = list[Role](), 0.0, False
    for target_id, repo in due.items():
        permission = "none"
        if not away:
            with reading() as session:
                asked_at = clock(session)
            try:
                permission = connect(kind).permission(repo, person.login, _user_id(person))
            except ForgeFailed as failure:
                log.warning("no permission of a person", repo=repo, login=person.login, error=str(failure))
                away = failure.outage
        roles.append(Role(account_id=person.id, target_id=target_id, permission=permission, checked_at=asked_at))
    return roles


def _user_id(person: Account) -> int:
    """The person's id at the forge; 0, which nobody has, where the provider names people otherwise."""
    return int(person.subject) if person.subject.isdecimal() else 0


def disable(session: Session, login: str, *, disabled: bool = True) -> Account:
    """Keep a person out, from the next request on; or let them in again.  Raises NotFound."""
    row = session.scalar(select(Account).where(func.lower(Account.login) == login.lower()).order_by(Account.id.desc()))
    if row is None:
        raise NotFound("person", login, "`kernelwatch person list` lists those who have signed in.")
    set_disabled(session, row, disabled=disabled)
    return row


def set_disabled(session: Session, row: Account, *, disabled: bool) -> None:
    """Keep a person out, or let them in again.  Nothing is done, or recorded, where it is so already."""
    session.refresh(row, with_for_update=True)
    if (row.disabled_at is not None) is not disabled:
        row.disabled_at = clock(session) if disabled else None
        audit.record(session, "person.disable" if disabled else "person.enable", of=f"person {row.login}")


def listed(session: Session, cursor: str | None = None, limit: int = 50) -> ResultPage[Account]:
    """People who have signed in, the newest first."""
    return paged(session, select(Account), (Account.id,), cursor, limit)
