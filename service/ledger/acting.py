"""Who is acting now: set once for a request or a command, and read by everything that is recorded of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from service.domain.access import SERVICE, Actor


@dataclass(frozen=True)
class Acting:
    """An actor, the address from which it acts, and what the forms of its pages must carry.

    `done` says what the actor did with the form that led to this page.
    """

    actor: Actor
    address: str | None = None
    csrf_token: str | None = None
    done: str | None = None


_BY_ITSELF = Acting(SERVICE)
_acting: ContextVar[Acting] = ContextVar("acting", default=_BY_ITSELF)


def acting() -> Acting:
    """Who is acting; kernelwatch itself unless `as_actor` says otherwise."""
    return _acting.get()


@contextmanager
def as_actor(
    actor: Actor, address: str | None = None, csrf_token: str | None = None, done: str | None = None
) -> Iterator[None]:
    """Act as this actor in the block."""
    token = _acting.set(Acting(actor, address, csrf_token, done))
    try:
        yield
    finally:
        _acting.reset(token)
