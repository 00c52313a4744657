"""`kernelwatch regressions` and `kernelwatch regression`: list, show and change regressions."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from service.commands.people import this_person
from service.commands.printing import TableOrJson, TableOrJsonFormat, line, print_json
from service.db.engine import reading, transaction
from service.db.models import RegressionRow
from service.domain.metrics import percent
from service.domain.regressions.lifecycle import Action, Transition
from service.domain.states import OPEN_REGRESSIONS, RegressionState
from service.domain.text import interval, short
from service.ledger.intake import targets
from service.ledger.regressions import listing, transitions
from service.reports.schema.base import Page, moment
from service.reports.schema.regressions import RegressionDocument, RegressionItem
from service.reports.views import RegressionHistory, RegressionView

regression_app = typer.Typer(no_args_is_help=True, help="Show or change one regression.")

Number = Annotated[int, typer.Argument(metavar="ID", help="An id from `kernelwatch regressions`.")]
OfIncident = Annotated[bool, typer.Option("--incident", help="ID is an incident: apply to all of its regressions.")]
Who = Annotated[str | None, typer.Option("--as", help="The person; by default the user of this system.")]
_DAY = ["%Y-%m-%d"]


def regressions_command(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    state: Annotated[
        list[RegressionState] | None,
        typer.Option(help="Only this state; may be repeated.  By default all open ones."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Include closed regressions.")] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of regressions, the newest.", min=1, max=1000)] = 50,
    form: TableOrJsonFormat = TableOrJson.TABLE,
) -> None:
    """List confirmed regressions of mainlines by incident, with cause, size and assignee."""
    states = tuple(state or ()) if every else tuple(state or OPEN_REGRESSIONS)
    with reading() as session:
        which = targets.target_named(session, target) if target else None
        page = listing.listed(session, which, states, limit=limit)
    if form is TableOrJson.JSON:
        print_json(Page(items=[RegressionItem.of(one) for one in page.items], next=page.next))
        return
    if not page.items:
        line("No regressions." if every or state else "No open regressions. Use `--all` to include closed ones.")
        return
    of_incidents: dict[int | None, list[RegressionView]] = {}
    for one in page.items:
        of_incidents.setdefault(one.row.incident_id, []).append(one)
    for together in of_incidents.values():
        _incident(together)
    if page.next:
        line(f"Only the newest {limit} are listed. Use `--limit` to list more.")


def _incident(together: list[RegressionView]) -> None:
    """Print one incident, the largest regression first."""
    worst_first = sorted(together, key=lambda one: -one.row.ratio)
    worst = worst_first[0]
    number = f"incident {worst.row.incident_id}" if worst.row.incident_id else "no incident"
    why = f": {worst.row.cause_text}" if worst.row.cause_text else ""
    line((number, "bold"), f" of {worst.target} on {worst.row.device}, by {_whose(worst)}{why}")
    names = [f"{one.row.provider} {one.row.case}" for one in worst_first]
    widest = max(map(len, names))
    for one, name in zip(worst_first, names, strict=True):
        row, size = one.row, percent(one.row.ratio, one.row.metric)
        details = _details(row)
        line(f"{row.id:>6}  {name:<{widest}}  {size:<16}", (row.state.value, "bold"), f"  {details}" if details else "")


def _whose(one: RegressionView) -> str:
    """The culprit, or the range that holds it."""
    row = one.row
    if row.culprit is not None:
        return short(row.culprit)
    return f"one of {short(row.good)}..{one.run.revision.short}" if row.good else one.run.revision.short


def _details(row: RegressionRow) -> str:
    """`until 2026-12-24, bob, due 2026-12-01, "exact sums first"`."""
    parts = [
        f"until {_day(row.until)}" if row.until is not None else None,
        row.assignee,
        f"due {_day(row.due_at)}" if row.due_at is not None else None,
        f'"{row.reason}"' if row.reason else None,
    ]
    return ", ".join(one for one in parts if one is not None)


@regression_app.command("show")
def show(regression_id: Number, of_incident: OfIncident = False, form: TableOrJsonFormat = TableOrJson.TABLE) -> None:
    """Show a regression with its history, or all regressions of an incident."""
    with reading() as session:
        ids = [row.id for row in listing.incident(session, regression_id).regressions] if of_incident else []
        lives = [listing.one(session, one) for one in ids or [regression_id]]
    if form is TableOrJson.JSON:
        documents = [RegressionDocument.whole(life) for life in lives]
        print_json(documents if of_incident else documents[0])
        return
    for life in lives:
        _show(life)


def _show(life: RegressionHistory) -> None:
    row, run = life.regressed.row, life.regressed.run
    size = f"{percent(row.ratio, row.metric)} ({interval(row.low, row.high) or 'no interval'})"
    line((f"regression {row.id}", "bold"), f": {row.provider} {row.case} of {life.regressed.target} on {row.device}")
    line(f"  {size}, found at {run.revision.short} in run {run.id} against {short(row.good or 'its baseline')}")
    facts = {
        "state": row.state.value,
        "until": _day(row.until),
        "reason": row.reason,
        "cause": row.cause_text,
        "culprit": row.culprit,
        "assignee": row.assignee,
        "due": _day(row.due_at),
        "incident": life.incident and f"{life.incident.id}, {len(life.siblings) + 1} regressions",
        "bisections": ", ".join(str(search.id) for search in life.bisections),
    }
    for name, value in facts.items():
        if value:
            line(f"  {name}: {value}")
    for event in life.events:
        when, run_id = moment(event.at).strftime("%Y-%m-%d %H:%M"), f" (run {event.run_id})" if event.run_id else ""
        line(f"  {when}  ", (event.what, "bold"), f" by {event.who}{run_id}", f": {event.words}" if event.words else "")


@regression_app.command("acknowledge")
def acknowledge(
    regression_id: Number,
    reason: Annotated[str, typer.Option(help="Why it is accepted.")] = "",
    until: Annotated[
        datetime | None, typer.Option(formats=_DAY, help="The day on which the acknowledgement ends (UTC).")
    ] = None,
    of_incident: OfIncident = False,
    who: Who = None,
) -> None:
    """Accept a regression: its revision may be a baseline again.  With --until it is reopened on that day."""
    _do(regression_id, Transition(Action.ACKNOWLEDGE, _who(who), reason, until=_seconds(until)), of_incident)


@regression_app.command("dismiss")
def dismiss(
    regression_id: Number,
    reason: Annotated[str, typer.Option(help="Why it is no regression.")] = "",
    of_incident: OfIncident = False,
    who: Who = None,
) -> None:
    """Close a false or intended regression.  It is not reopened by itself."""
    _do(regression_id, Transition(Action.DISMISS, _who(who), reason), of_incident)


@regression_app.command("reopen")
def reopen(
    regression_id: Number,
    reason: Annotated[str | None, typer.Option(help="Why it is reopened.")] = None,
    of_incident: OfIncident = False,
    who: Who = None,
) -> None:
    """Reopen a regression.  Later measurements may mark it as fixed."""
    _do(regression_id, Transition(Action.REOPEN, _who(who), reason), of_incident)


@regression_app.command("assign")
def assign(
    regression_id: Number,
    assignee: Annotated[str | None, typer.Argument(help="A person; leave it out for nobody.")] = None,
    of_incident: OfIncident = False,
    who: Who = None,
) -> None:
    """Assign a regression to a person."""
    transition = Transition(Action.ASSIGN, _who(who), f"to {assignee or 'nobody'}", assignee=assignee)
    _do(regression_id, transition, of_incident)


@regression_app.command("note")
def note(regression_id: Number, text: str, of_incident: OfIncident = False, who: Who = None) -> None:
    """Add a note to the history of a regression."""
    _do(regression_id, Transition(Action.NOTE, _who(who), text), of_incident)


@regression_app.command("due")
def due(
    regression_id: Number,
    day: Annotated[datetime | None, typer.Argument(formats=_DAY, help="A day (UTC); leave it out for none.")] = None,
    of_incident: OfIncident = False,
    who: Who = None,
) -> None:
    """Set the day by which a regression must be fixed."""
    words = f"on {day:%Y-%m-%d}" if day else "never"
    _do(regression_id, Transition(Action.DUE, _who(who), words, due_at=_seconds(day)), of_incident)


def _do(regression_id: int, transition: Transition, of_incident: bool) -> None:
    rows: list[RegressionRow]
    with transaction() as session:
        if of_incident:
            rows = transitions.apply_to_incident(session, regression_id, transition)
        else:
            rows = [transitions.apply(session, regression_id, transition)]
    for row in rows:
        line((f"regression {row.id}", "bold"), f" ({row.case}) is {row.state}.")


def _who(given: str | None) -> str:
    return given if given is not None else this_person()


def _seconds(day: datetime | None) -> float | None:
    return day.replace(tzinfo=UTC).timestamp() if day else None


def _day(seconds: float | None) -> str | None:
    return None if seconds is None else moment(seconds).strftime("%Y-%m-%d")
