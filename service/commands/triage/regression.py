"""`kernelwatch regression`, `incident` and `bisection`: list, show and change regressions, and find their culprits."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands import connection, views
from service.commands.arguments import first
from service.commands.connection import act_as, client
from service.commands.noun import Noun
from service.commands.output.views import View
from service.domain.states import OPEN_REGRESSIONS, RegressionState
from service.errors import BadInput

if TYPE_CHECKING:
    from kernelwatch.client.models import BisectionDocument

regression_app = Noun("List, show and change confirmed regressions.")

Number = Annotated[int, typer.Argument(metavar="ID", help="An id from `kernelwatch regression list`.")]
OfIncident = Annotated[bool, typer.Option("--incident", help="ID is an incident: apply to all of its regressions.")]
Who = Annotated[str | None, typer.Option("--as", help="The person; by default the user of this system.")]
_DAY = ["%Y-%m-%d"]


@regression_app.verb("list")
def list_regressions(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    state: Annotated[
        list[RegressionState] | None,
        typer.Option(help="Only this state; may be repeated.  By default all open ones."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Include closed regressions.")] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of regressions, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List confirmed regressions of mainlines by incident, with cause, size and assignee."""
    states = [one.value for one in (state or ([] if every else OPEN_REGRESSIONS))] or None
    found = client().targets.regressions(target, state=states) if target else client().regressions.list(state=states)
    return views.regressions.listed(first(found, limit), limit, every=every or bool(state))


@regression_app.verb("show")
def show(regression_id: Number) -> View:
    """Show a regression with its history."""
    return views.regressions.whole(client().regressions.get(regression_id))


@regression_app.verb("acknowledge")
def acknowledge(
    regression_id: Number,
    reason: Annotated[str, typer.Option(help="Why it is accepted.")] = "",
    until: Annotated[
        datetime | None, typer.Option(formats=_DAY, help="The day on which the acknowledgement ends (UTC).")
    ] = None,
    of_incident: OfIncident = False,
    who: Who = None,
) -> View:
    """Accept a regression: its revision may be a baseline again.  With --until it is reopened on that day."""
    return _changed(regression_id, of_incident, who, "acknowledge", reason, until=_utc(until))


@regression_app.verb("dismiss")
def dismiss(
    regression_id: Number,
    reason: Annotated[str, typer.Option(help="Why it is no regression.")] = "",
    of_incident: OfIncident = False,
    who: Who = None,
) -> View:
    """Close a false or intended regression.  It is not reopened automatically."""
    return _changed(regression_id, of_incident, who, "dismiss", reason)


@regression_app.verb("reopen")
def reopen(
    regression_id: Number,
    reason: Annotated[str | None, typer.Option(help="Why it is reopened.")] = None,
    of_incident: OfIncident = False,
    who: Who = None,
) -> View:
    """Reopen a regression.  Later measurements may mark it as fixed."""
    return _changed(regression_id, of_incident, who, "reopen", reason=reason)


@regression_app.verb("assign")
def assign(
    regression_id: Number,
    assignee: Annotated[str | None, typer.Argument(help="A person; leave it out for nobody.")] = None,
    of_incident: OfIncident = False,
    who: Who = None,
) -> View:
    """Assign a regression to a person."""
    return _changed(regression_id, of_incident, who, "assign", assignee)


@regression_app.verb("note")
def note(regression_id: Number, text: str, of_incident: OfIncident = False, who: Who = None) -> View:
    """Add a note to the history of a regression."""
    return _changed(regression_id, of_incident, who, "note", text)


@regression_app.verb("due")
def due(
    regression_id: Number,
    day: Annotated[datetime | None, typer.Argument(formats=_DAY, help="A day (UTC); leave it out for none.")] = None,
    of_incident: OfIncident = False,
    who: Who = None,
) -> View:
    """Set the day by which a regression must be fixed."""
    return _changed(regression_id, of_incident, who, "due", _utc(day))


def _changed(number: int, of_incident: bool, who: str | None, change: str, *values: Any, **named: Any) -> View:
    """Change a regression, or all of an incident: both have the same changes."""
    act_as(who)
    if of_incident:
        found = getattr(client().incidents, change)(number, *values, **named)
        return views.regressions.changed(
            [client().regressions.get(one.id) for one in sorted(found.regressions, key=lambda one: one.id)]
        )
    return views.regressions.changed([getattr(client().regressions, change)(number, *values, **named)])


def _utc(day: datetime | None) -> datetime | None:
    return day.replace(tzinfo=UTC) if day else None


incident_app = Noun("List and show incidents: regressions with one cause.")


@incident_app.verb("list")
def list_incidents(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Include closed incidents.")] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of incidents, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List incidents with their regressions, the newest first."""
    closed = every or None
    pages = client().targets.incidents(target, closed=closed) if target else client().incidents.list(closed=closed)
    return views.regressions.incidents(first(pages, limit), limit, every=every)


@incident_app.verb("show")
def show_incident(
    incident_id: Annotated[int, typer.Argument(metavar="ID", help="An id from `kernelwatch incident list`.")],
) -> View:
    """Show an incident with its regressions."""
    return views.regressions.incident(client().incidents.get(incident_id))


bisection_app = Noun("Find the revision that made a case slower.")
BisectionNumber = Annotated[int, typer.Argument(metavar="ID", help="An id from `kernelwatch bisection list`.")]
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
def show_bisection(bisection_id: BisectionNumber) -> View:
    """Show one bisection with its steps.  The exit codes are those of `start --wait`."""
    return views.regressions.bisection(client().bisections.get(bisection_id))


@bisection_app.verb("stop")
def stop(bisection_id: BisectionNumber) -> View:
    """Stop a bisection.  Its steps are kept."""
    return views.regressions.bisection_stopped(client().bisections.stop(bisection_id))
