"""`kernelwatch audit`: what was changed, by whom and from where."""

from typing import Annotated

import typer

from service.commands import views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import single
from service.commands.output.views import View


def audit_command(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    by: Annotated[str | None, typer.Option(help="Only this person or key.")] = None,
    action: Annotated[str | None, typer.Option(help="A noun (run), or a noun and a verb (run.cancel).")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of entries, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List what was changed, by whom and from where, the newest first."""
    return views.access.CHANGES.page(first(client().audit.list(target=target, by=by, action=action), limit), limit)


app = single(audit_command)
