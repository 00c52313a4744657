"""Sessions of people in a browser, and which targets an actor may not know of.

People who ask for something on the forge may do here what the forge says at that moment.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from itsdangerous import BadSignature, URLSafeTimedSerializer
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.db.engine import clock, reading
from service.db.models import Account, Role, SignIn, Target
from service.domain.access import Actor, Grant, NamedGrant, Scope, local, read_grants
from service.domain.states import ActorKind, ForgeKind
from service.domain.text import code, escaped
from service.errors import Refused
from service.forge.clients import addresses
from service.forge.forge import Forge
from service.settings import settings

LOCAL_ISSUER = "local"  # of accounts of people who use the machine of the database
_BYTES = 32
_DONE_S = 3600  # for which a page shows what was done
_LINK_S = 600

# What a permission on the forge's repository allows on its target.
SCOPES_OF: dict[str, tuple[Scope, ...]] = {
    "none": (),
    "read": (Scope.READ,),
    "triage": (Scope.READ, Scope.TRIAGE),
    "write": (Scope.READ, Scope.TRIAGE, Scope.RUN),
    "maintain": (Scope.READ, Scope.TRIAGE, Scope.RUN, Scope.INGEST),
    "admin": (Scope.READ, Scope.TRIAGE, Scope.RUN, Scope.INGEST),
}


def is_secure() -> bool:
    """Whether people reach the dashboard over https."""
    return urlsplit(settings().address).scheme == "https"


def cookie_name() -> str:
    """The name of the cookie; over https a prefix binds it to this host."""
    return "__Host-kernelwatch" if is_secure() else "kernelwatch"


def begin(session: Session, account: Account) -> str:
    """Begin a session.  Returns the secret for its cookie."""
    secret, now = secrets.token_urlsafe(_BYTES), clock(session)
    session.add(
        SignIn(
            digest=_digest(secret),
            account_id=account.id,
            created_at=now,
            expires_at=now + settings().sign_in_s,
        )
    )
    return secret


def link_code(session: Session, account: Account) -> str:
    """A code that begins a session once, within ten minutes; it is no session itself."""
    code, now = secrets.token_urlsafe(_BYTES), clock(session)
    session.add(SignIn(digest=_code_digest(code), account_id=account.id, created_at=now, expires_at=now + _LINK_S))
    return code


def account_of_code(session: Session, code: str) -> Account | None:
    """The account of a code, which is worth nothing afterwards; None for one that is used, old or unknown."""
    now = clock(session)
    valid = (SignIn.digest == _code_digest(code), SignIn.ended_at.is_(None), SignIn.expires_at > now)
    used = session.scalar(update(SignIn).where(*valid).values(ended_at=now).returning(SignIn.account_id))
    return None if used is None else session.get_one(Account, used)


def actor_with(session: Session, secret: str) -> Actor | None:
    """The person of a session, with what they may do now; None if it has ended or expired."""
    query = (
        select(Account)
        .join(SignIn, SignIn.account_id == Account.id)
        .where(SignIn.digest == _digest(secret), SignIn.ended_at.is_(None), SignIn.expires_at > clock(session))
        .where(Account.disabled_at.is_(None))
    )
    account = session.scalar(query)
    return None if account is None else person(session, account)


def person(session: Session, account: Account) -> Actor:
    """A person with the grants that their roles and the settings give."""
    if account.issuer == LOCAL_ISSUER:
        return replace(local(account.login), id=account.id)
    if account.admin:
        return Actor(ActorKind.PERSON, account.login, frozenset({Grant(Scope.ADMIN)}), account.id)
    roles = session.scalars(select(Role).where(Role.account_id == account.id))
    grants = {Grant(scope, role.target_id) for role in roles for scope in SCOPES_OF.get(role.permission, ())}
    if account.issuer == settings().oidc_issuer:
        grants |= resolve(session, read_grants(settings().oidc_scopes)) if settings().oidc_scopes else set()
    return Actor(ActorKind.PERSON, account.login, frozenset(grants), account.id)


def resolve(session: Session, named: Iterable[NamedGrant]) -> set[Grant]:
    """The grants on targets that there are."""
    ids = {target.name: target.id for target in session.execute(select(Target.name, Target.id))}
    return {
        Grant(grant.scope, ids.get(grant.target or ""))
        for grant in named
        if grant.target is None or grant.target in ids
    }


def end(session: Session, secret: str) -> None:
    """End a session; its cookie is worth nothing afterwards."""
    mine = (SignIn.digest == _digest(secret), SignIn.ended_at.is_(None))
    session.execute(update(SignIn).where(*mine).values(ended_at=clock(session)))


def csrf_token(secret: str) -> str:
    """What every form of the session must carry; another site can send the cookie but cannot know this."""
    return hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def check_own_form(secret: str, token: str | None, origin: str | None) -> None:
    """Raise Refused for a request that another site made a browser send."""
    check_origin(origin)
    if token is None or not hmac.compare_digest(token.encode(), csrf_token(secret).encode()):
        raise Refused("The form is too old or not from this page: reload the page and send it again.")


def check_origin(origin: str | None) -> None:
    """Raise Refused for a request from a page of another site; some clients do not say where they are."""
    if origin is not None and origin.rstrip("/") != _origin():
        raise Refused(f"The request comes from {origin}, not from {_origin()}. Open the dashboard there.")


def seal(token: str, done: str) -> str:
    """What was done, as a parameter for the address of the next page: nobody else can make such an address."""
    return str(_sealer(token).dumps(done))


def unseal(token: str | None, sealed: str | None) -> str | None:
    """What was done a while ago in this session; None for anything else."""
    if token is None or not sealed:
        return None
    try:
        return str(_sealer(token).loads(sealed, max_age=_DONE_S))
    except BadSignature:  # an old one, too
        return None


def _sealer(token: str) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(token, salt="done")


def _origin() -> str:
    address = urlsplit(settings().address)
    return f"{address.scheme}://{address.netloc}"


def _code_digest(code: str) -> str:
    return _digest(f"link {code}")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


# Statements are made once, and of columns: every request sends one of them.
_ALL = select(Target.__table__.c.id)
_PRIVATE = _ALL.where(Target.__table__.c.private)


def hidden_from(session: Session, actor: Actor) -> Sequence[int]:
    """The ids of targets that the actor may not read: private ones, or all if reading is not public."""
    if actor.may(Scope.READ):
        return ()
    readable = set(actor.readable())
    hidden = session.scalars(_PRIVATE if settings().public_read else _ALL)
    return [target_id for target_id in hidden if target_id not in readable]


@dataclass(frozen=True)
class ForgePerson:
    """A person with their permission on a repository, and what it allows them on the targets that watch it."""

    actor: Actor
    permission: str
    repository: str
    disabled: bool

    @property
    def may_command(self) -> bool:
        """Whether any command but `help` is open to them."""
        return self.actor.may_somewhere(Scope.TRIAGE) or self.actor.may_somewhere(Scope.RUN)

    def refusal(self, scope: Scope | None, targets: Sequence[Target], what: str) -> str | None:
        """Why they may not do `what`, as Markdown; None where they may."""
        if scope is None or all(self.actor.may(scope, target.id) for target in targets):
            return None
        if self.disabled:
            return f"The account {escaped(self.actor.name)} is disabled here. Ask an administrator."
        needed = next(name for name, scopes in SCOPES_OF.items() if scope in scopes)
        where, has = code(self.repository), code(self.permission)
        return f"{code(what)} needs {code(needed)} permission on {where}; you have {has}."


def who_is(
    client: Forge, kind: ForgeKind, repository: str, login: str, user_id: int, targets: Sequence[Target]
) -> ForgePerson:
    """Ask the forge for somebody's permission.  Their account here counts if they have signed in.

    Raises ForgeFailed.
    """
    permission = client.permission(repository, login, user_id)
    with reading() as session:
        whose = (Account.issuer == addresses()[kind], Account.subject == str(user_id))
        account = session.scalar(select(Account).where(*whose))
    disabled = account is not None and account.disabled_at is not None
    grants = {Grant(scope, target.id) for target in targets for scope in SCOPES_OF.get(permission, ())}
    if account is not None and account.admin:
        grants = {Grant(Scope.ADMIN)}
    allowed = frozenset() if disabled else frozenset(grants)
    return ForgePerson(
        Actor(ActorKind.PERSON, login, allowed, account.id if account else None), permission, repository, disabled
    )
