"""Who may do what: scopes, grants, and the actor of a request."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from service.domain.states import ActorKind
from service.errors import BadInput


class Scope(StrEnum):
    """What a grant allows.  `admin` allows everything, and every scope of targets allows to read them."""

    READ = "read"
    INGEST = "ingest"
    RUN = "run"
    TRIAGE = "triage"
    WORKER = "worker"
    ADMIN = "admin"


OF_TARGETS = (Scope.READ, Scope.INGEST, Scope.RUN, Scope.TRIAGE)  # may be limited to one target
_GRANT = re.compile(r"(?P<scope>[a-z]+)(?::(?P<target>[^:\s]+))?")
_NOT_OF_TARGETS = [scope for scope in Scope if scope not in OF_TARGETS]
GRANT_PATTERN = rf"^(?:(?:{'|'.join(OF_TARGETS)})(?::[^:\s]+)?|{'|'.join(_NOT_OF_TARGETS)})$"  # for the OpenAPI


@dataclass(frozen=True)
class Grant:
    """A scope on one target, or on all (`target_id` is None)."""

    scope: Scope
    target_id: int | None = None


@dataclass(frozen=True)
class Actor:
    """Somebody who reads or changes something."""

    kind: ActorKind
    name: str
    grants: frozenset[Grant] = frozenset()
    id: int | None = None  # of the key, or of the person's account

    def may(self, scope: Scope, target_id: int | None = None) -> bool:
        """Whether it has the scope: on this target, or on all targets if `target_id` is None."""
        return any(
            grant.target_id in (None, target_id) and _allows(grant.scope, scope)
            for grant in self.grants
            if grant.target_id is None or target_id is not None
        )

    def may_somewhere(self, scope: Scope) -> bool:
        """Whether it has the scope on at least one target."""
        return any(_allows(grant.scope, scope) for grant in self.grants)

    def readable(self) -> frozenset[int]:
        """The targets that it may read although they are private; an actor that may read all has no need of it."""
        return frozenset(grant.target_id for grant in self.grants if grant.target_id is not None)


def _allows(held: Scope, scope: Scope) -> bool:
    return held in (scope, Scope.ADMIN) or (scope is Scope.READ and held in OF_TARGETS)


ANONYMOUS = Actor(ActorKind.ANONYMOUS, "anonymous")
SERVICE = Actor(ActorKind.SERVICE, "kernelwatch", frozenset({Grant(Scope.ADMIN)}))


def local(person: str) -> Actor:
    """The user of this system, who may do everything that the command line can."""
    return Actor(ActorKind.LOCAL, person, frozenset({Grant(Scope.ADMIN)}))


@dataclass(frozen=True)
class NamedGrant:
    """A grant as people write it: `triage`, or `run:norms` for one target."""

    scope: Scope
    target: str | None = None

    def __str__(self) -> str:
        return f"{self.scope}:{self.target}" if self.target else self.scope.value


def read_grants(texts: Iterable[str]) -> tuple[NamedGrant, ...]:
    """Read `read`, `run:norms`, …  Raises BadInput."""
    grants = tuple(dict.fromkeys(_read(text) for text in texts))
    if not grants:
        raise BadInput(f"A key needs at least one scope: {_scopes()}.")
    return grants


def _read(text: str) -> NamedGrant:
    match = _GRANT.fullmatch(text)
    if match is None or match["scope"] not in list(Scope):
        raise BadInput(f"{text!r} is no scope. Use one of {_scopes()}; SCOPE:TARGET limits it to one target.")
    scope = Scope(match["scope"])
    if match["target"] and scope not in OF_TARGETS:
        raise BadInput(f"{scope} cannot be limited to a target; {', '.join(OF_TARGETS)} can.")
    return NamedGrant(scope, match["target"])


def _scopes() -> str:
    return ", ".join(Scope)
