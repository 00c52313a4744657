"""`kernelwatch bisection`: find the revision that made a case slower."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands import connection, views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import Noun
from service.commands.output.views import View
from service.errors import BadInput

if TYPE_CHECKING:
    from kernelwatch.client.models import BisectionDocument

bisection_app = Noun("Find the revision that made a case slower.")
Number = Annotated[int, typer.Argument(metavar="ID", help="An id from `kernelwatch bisection list`.")]
EVERY_S = 1.0


@bisection_app.verb("start")
def start(
    target: str,
    revisions: Annotated[
        str, typer.Argument(metavar="GOOD..BAD", help="Commits, tags or releases, the older one first.")
    ],
    device: Annotated[str | None, typer.Option(help="The device; required if the recipe has several.")] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(help="Only cases that match this pattern; may be repeated.  By default those known to be slower."),
    ] = None,
    suite: Annotated[str | None, typer.Option(help="Another suite than the recipe's for the device.")] = None,
    max_runs: Annotated[
        int | None, typer.Option(help="Maximum number of runs; by default the policy's.", min=3, max=200)
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and exit with its code.")] = False,
) -> View:
    """Find the revision that made it slower, by measuring.  Each step is a run at the lowest priority.

    Exit codes with --wait, and of `bisection show`: 0 the culprit was found, or the search continues; 1 the regression
    is confirmed, but only narrowed down to a range of revisions; 2 the search was stopped, or an infrastructure or
    usage error; 3 it is undecided whether the bad revision is slower; 125 the bad revision is not slower, or an end
    cannot be measured.
    """
    good, dots, bad = revisions.partition("..")
    if not (good and dots and bad) or bad.startswith("."):
        raise BadInput(f"{revisions!r} is not a range GOOD..BAD.")
    from service.commands.output.console import err, line

    asked = client().bisections.start(
        target, good, bad, device=device, cases=case or None, suite=suite, max_runs=max_runs
    )
    started = views.regressions.bisection_started(asked, connection.address())
    if not wait:
        return started
    for said in started.parts:
        line(str(said), to=err)
    return views.regressions.bisection(_until_done(asked.id))


def _until_done(bisection_id: int) -> "BisectionDocument":
    from service.commands.output.console import progress

    with progress() as shown:
        while (found := client().bisections.get(bisection_id)).state not in views.regressions.SEARCH_CODES:
            shown.show(found.id, f"bisection {found.id}: {found.summary}", None)
            time.sleep(EVERY_S)
    return found


@bisection_app.verb("list")
def list_bisections(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    running: Annotated[bool, typer.Option("--running", help="Only those that have not ended.")] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of bisections, the newest.", min=1, max=200)] = 50,
) -> View:
    """List the newest bisections and their results."""
    return views.regressions.BISECTIONS.page(
        first(client().bisections.list(target=target, running=running or None), limit), limit
    )


@bisection_app.verb("show", watch=True)
def show(bisection_id: Number) -> View:
    """Show one bisection with its steps.  The exit codes are those of `start --wait`."""
    return views.regressions.bisection(client().bisections.get(bisection_id))


@bisection_app.verb("stop")
def stop(bisection_id: Number) -> View:
    """Stop a bisection.  Its steps are kept."""
    return views.regressions.bisection_stopped(client().bisections.stop(bisection_id))
