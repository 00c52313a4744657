"""`kernelwatch person`: people who signed in."""

from typing import Annotated

import typer

from service.commands import views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import Noun, Where
from service.commands.output.views import View

app = Noun("Manage people who sign in.")

Login = Annotated[str, typer.Argument(help="A login from `kernelwatch person list`.")]


@app.verb("list")
def show_all(
    limit: Annotated[int, typer.Option(help="Maximum number of people, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List people who have signed in, the newest first."""
    return views.access.PEOPLE.page(first(client().people.list(), limit), limit)


@app.verb("sign-in", where=Where.ONLY_HERE)
def sign_in() -> View:
    """Print a link that signs you in to the pages, as the user of this machine.  It works once, for ten minutes."""
    from service.commands.arguments import this_person
    from service.db.engine import transaction
    from service.ledger.access import accounts
    from service.settings import settings

    with transaction() as session:
        code = accounts.link_code(session, this_person())
    return views.access.link(settings().address, code)


@app.verb("disable")
def disable(login: Login) -> View:
    """Keep a person out, from their next request on."""
    return views.access.person(client().people.disable(login))


@app.verb("enable")
def enable(login: Login) -> View:
    """Let a person in again."""
    return views.access.person(client().people.enable(login))
