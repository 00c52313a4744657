"""`kernelwatch weekly`: what moved in a week."""

from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.connection import client
from service.commands.noun import single

if TYPE_CHECKING:
    from service.commands.output.views import View


def weekly(
    week: Annotated[
        str | None, typer.Option(metavar="WEEK", help="An ISO week, as in 2026-W47; by default the current one.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Only this target.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device.")] = None,
) -> "View":
    """Print what moved in a week, by time at stake.

    Regressions and gaps to SOTA opened and closed in the week follow, and those that are open at its end.
    """
    from service.commands.views import weekly as views

    reports = client().weekly
    found = reports.get(week=week, target=target, device=device)
    return views.report(found, markdown=lambda: reports.markdown(week=week, target=target, device=device))


app = single(weekly)
