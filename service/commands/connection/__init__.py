"""The client through which commands read and change things: of a server, or of this machine."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from service.commands.connection import logins
from service.errors import BadInput

if TYPE_CHECKING:
    import httpx

    from kernelwatch.client import Client

HERE = "local"  # the name of this machine as a server
SERVER, KEY = "KERNELWATCH_SERVER", "KERNELWATCH_KEY"

_answer_here: Callable[[str | None], "httpx.BaseTransport"] | None = None


_prepare: ContextVar[Callable[[], None] | None] = ContextVar("prepare", default=None)


@contextmanager
def preparing(prepare: Callable[[], None] | None) -> Iterator[None]:
    """In the block, call this before anything is done on this machine itself: neither help nor a client needs it."""
    token = _prepare.set(prepare)
    try:
        yield
    finally:
        _prepare.reset(token)


def prepare() -> None:
    """Prepare this process for work on this machine."""
    if (wanted := _prepare.get()) is not None:
        wanted()


def answer_here_with(transport: Callable[[str | None], "httpx.BaseTransport"]) -> None:
    """Set what answers for this machine; its argument is the person who asks, if it is not the user of the system."""
    global _answer_here
    _answer_here = transport


@dataclass
class Connection:
    """The server of one command; `url` is None for this machine."""

    url: str | None
    person: str | None = None
    opened: "Client | None" = field(default=None)

    @property
    def client(self) -> "Client":
        """Its client, made when it is used first."""
        if self.opened is None:
            self.opened = open_client(self.url, key_for(self.url)) if self.url else _here(self.person)
        return self.opened


_current: ContextVar[Connection] = ContextVar("connection")


@contextmanager
def connected(server: str | None) -> Iterator[Connection]:
    """Use this server in the block: that of the option, of the environment or of `login`; else this machine."""
    found = Connection(chosen(server))
    token = _current.set(found)
    try:
        yield found
    finally:
        _current.reset(token)
        if found.opened is not None:
            found.opened.close()


def client() -> "Client":
    """The client of the command that runs."""
    return _current.get().client


def remote() -> bool:
    """Whether the command that runs talks to a server."""
    return _current.get().url is not None


def address() -> str:
    """The address of the pages for people."""
    url = _current.get().url
    if url is not None:
        return url.rstrip("/")
    from service.settings import settings

    return settings().address


def act_as(person: str | None) -> None:
    """Record another person than the user of this system.  Raises BadInput for a server, which knows who asks."""
    if person is not None:
        if remote():
            raise BadInput("--as works on this machine only: a server records the name of the key.")
        _current.get().person = person


def named(server: str | None) -> str | None:
    """The server that the command line or the environment names; None if they name none, or this machine."""
    name = server or os.environ.get(SERVER)
    return name if name and name != HERE else None


def chosen(server: str | None) -> str | None:
    """The URL of the server to use; None for this machine."""
    name = server or os.environ.get(SERVER) or logins.read().current
    return None if name in (None, HERE) else name


def key_for(url: str) -> str | None:
    """The key for a server: of the environment, or of `login`."""
    return os.environ.get(KEY, "").strip() or logins.read().keys.get(url.rstrip("/"))


def open_client(url: str, key: str | None) -> "Client":
    """A client of a server."""
    from kernelwatch.client import Client

    return Client(url, key)


def _here(person: str | None) -> "Client":
    from kernelwatch.client import Client

    if _answer_here is None:
        raise BadInput("This installation has no database of its own: name a server with --server, or `login` to one.")
    prepare()
    return Client("http://localhost", transport=_answer_here(person))
