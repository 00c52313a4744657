"""`kernelwatch login` and `kernelwatch logout`: the server that commands use, and its key."""

from typing import Annotated

import typer

from service.commands import connection, views
from service.commands.connection import logins
from service.commands.noun import Where, single
from service.commands.output.views import View
from service.errors import BadInput


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="The address of a server.")],
    key: Annotated[
        str | None, typer.Option(help="An API key; by default it is asked for, and read without being shown.")
    ] = None,
) -> View:
    """Use a server for all commands, with a key.

    The key is checked with the server and stored in a file that only you can read.
    """
    address = url.rstrip("/")
    text = (key or typer.prompt("API key", hide_input=True)).strip()
    with connection.open_client(address, text) as client:
        me = client.me.get()
    if me.kind == "anonymous":
        raise BadInput(f"{address} does not know this key. Make one there with `kernelwatch key create`.")
    logins.write(logins.read().with_key(address, text))
    return views.access.logged_in(me, address, logins.path())


def logout(
    url: Annotated[str | None, typer.Argument(metavar="URL", help="By default the server that commands use.")] = None,
) -> None:
    """Forget the key of a server; commands use this machine again."""
    from service.commands.output.console import line

    known = logins.read()
    address = (url or known.current or "").rstrip("/")
    if address not in known.keys:
        raise BadInput(f"There is no login to {address}." if address else "There is no login.")
    logins.write(known.without(address))
    line(f"Logged out of {address}. The key is still valid; `kernelwatch key revoke` ends it.")


login_app, logout_app = single(login, where=Where.HERE), single(logout, where=Where.HERE)
