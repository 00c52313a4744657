"""People who ask for something on the forge: what they may do here, asked of the forge at that moment."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select

from service.db.engine import reading
from service.db.models import Account, Target
from service.domain.access import Actor, Grant, Scope
from service.domain.states import ActorKind, ForgeKind
from service.domain.text import code, escaped
from service.forge.clients import addresses
from service.forge.forge import Forge
from service.ledger.access.sign_ins import SCOPES_OF


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
