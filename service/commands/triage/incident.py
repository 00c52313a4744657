"""`kernelwatch incident`: regressions of several cases with one cause."""

from typing import Annotated

import typer

from service.commands import views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import Noun
from service.commands.output.views import View

app = Noun("List and show incidents: regressions with one cause.")


@app.verb("list")
def list_incidents(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Include closed incidents.")] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of incidents, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List incidents with their regressions, the newest first."""
    closed = every or None
    pages = client().targets.incidents(target, closed=closed) if target else client().incidents.list(closed=closed)
    return views.regressions.incidents(first(pages, limit), limit, every=every)


@app.verb("show")
def show(
    incident_id: Annotated[int, typer.Argument(metavar="ID", help="An id from `kernelwatch incident list`.")],
) -> View:
    """Show an incident with its regressions."""
    return views.regressions.incident(client().incidents.get(incident_id))
