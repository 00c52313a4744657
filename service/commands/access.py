"""`kernelwatch login`, `logout`, `key`, `person` and `audit`: who may do what, and who did it."""

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands import connection, views
from service.commands.arguments import first
from service.commands.connection import client, logins
from service.commands.noun import Noun, Where, single
from service.commands.output.views import View
from service.errors import BadInput

if TYPE_CHECKING:
    from kernelwatch.client.models import NewKeyDocument


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


key_app = Noun("Manage API keys.")

Which = Annotated[str, typer.Argument(metavar="KEY", help="An id or a prefix from `kernelwatch key list`.")]
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


@key_app.verb("create")
def create(
    name: Annotated[str, typer.Argument(help="Who uses it, and for what.")],
    scopes: Annotated[
        list[str],
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="read, ingest, run, triage, worker or admin; `run:TARGET` for one target only.",
        ),
    ],
    expires: Annotated[
        str | None, typer.Option(help="Time until it expires, as in 12h or 90d; by default never.")
    ] = None,
) -> View:
    """Make an API key and print it.  It cannot be printed again."""
    expires_at = None if expires is None else datetime.now(UTC) + timedelta(seconds=_seconds(expires))
    return _new(client().keys.create(name, scopes, expires_at=expires_at))


@key_app.verb("list")
def list_keys(
    ended: Annotated[bool, typer.Option("--all", help="Include expired and revoked keys.")] = False,
) -> View:
    """List API keys, the newest first."""
    return views.access.KEYS.page(first(client().keys.list(ended=ended or None)))


@key_app.verb("rotate")
def rotate(
    which: Which,
    overlap: Annotated[str, typer.Option(help="Time for which the old key stays valid, as in 12h or 1d.")] = "1d",
) -> View:
    """Replace a key by a new one with the same scopes, and print it.  It cannot be printed again."""
    return _new(client().keys.rotate(which, overlap_s=_seconds(overlap)))


@key_app.verb("revoke")
def revoke(which: Which) -> View:
    """Revoke a key: the next request with it is refused."""
    return views.access.revoked(client().keys.revoke(which))


def _new(made: "NewKeyDocument") -> View:
    from service.commands.output.console import err, line

    line(f"The key of {made.name} with {' '.join(made.scopes)}; it is not shown again:", to=err)
    return views.access.new_key(made)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6})([mhd])", text.strip())
    if found is None:
        raise BadInput(f"{text!r} is no length of time; write 30m, 12h or 90d.")
    return int(found[1]) * _UNITS_S[found[2]]


person_app = Noun("Manage people who sign in.")

Login = Annotated[str, typer.Argument(help="A login from `kernelwatch person list`.")]


@person_app.verb("list")
def list_people(
    limit: Annotated[int, typer.Option(help="Maximum number of people, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List people who have signed in, the newest first."""
    return views.access.PEOPLE.page(first(client().people.list(), limit), limit)


@person_app.verb("sign-in", where=Where.ONLY_HERE)
def sign_in() -> View:
    """Print a link that signs you in to the pages, as the user of this machine.  It works once, for ten minutes."""
    from service.commands.arguments import this_person
    from service.db.engine import transaction
    from service.ledger.access import accounts
    from service.settings import settings

    with transaction() as session:
        code = accounts.link_code(session, this_person())
    return views.access.link(settings().address, code)


@person_app.verb("disable")
def disable(login: Login) -> View:
    """Keep a person out, from their next request on."""
    return views.access.person(client().people.disable(login))


@person_app.verb("enable")
def enable(login: Login) -> View:
    """Let a person in again."""
    return views.access.person(client().people.enable(login))


def audit(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    by: Annotated[str | None, typer.Option(help="Only this person or key.")] = None,
    action: Annotated[str | None, typer.Option(help="A noun (run), or a noun and a verb (run.cancel).")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of entries, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List what was changed, by whom and from where, the newest first."""
    return views.access.CHANGES.page(first(client().audit.list(target=target, by=by, action=action), limit), limit)


audit_app = single(audit)
