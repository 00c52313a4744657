"""`kernelwatch weekly`: what moved in a week."""

from typing import Annotated

import typer

from service.commands import views
from service.commands.connection import client
from service.commands.noun import single
from service.commands.output.views import View


def weekly(
    week: Annotated[
        str | None, typer.Option(metavar="WEEK", help="An ISO week, as in 2026-W47; by default the current one.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Only this target.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device.")] = None,
) -> View:
    """Print what moved in a week, by time at stake.

    Regressions and gaps to SOTA opened and closed in the week follow, and those that are open at its end.
    """
    reports = client().weekly
    found = reports.get(week=week, target=target, device=device)
    return views.weekly.report(found, markdown=lambda: reports.markdown(week=week, target=target, device=device))


app = single(weekly)
