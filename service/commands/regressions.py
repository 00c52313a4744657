"""`kernelwatch regressions` and `kernelwatch regression`: what stands, whole lives, and what people do about it."""

import json
from datetime import UTC, datetime
from typing import Annotated

import typer

from service.commands.people import this_person
from service.commands.printing import Format, line
from service.db.engine import reading, transaction
from service.db.models import RegressionRow
from service.domain.metrics import metric_of, percent
from service.domain.regressions.lifecycle import Action, Transition
from service.domain.states import OPEN_REGRESSIONS, RegressionState
from service.domain.text import interval, short
from service.errors import BadInput
from service.ledger.intake import targets
from service.ledger.regressions import listing, transitions
from service.reports.regression import document, entry
from service.reports.schema import moment
from service.reports.views import Life, Regressed

regression_app = typer.Typer(no_args_is_help=True, help="One regression: its life, and what you do about it.")

Formatted = Annotated[Format, typer.Option("--format", help="table or json.")]
Number = Annotated[int, typer.Argument(metavar="ID", help="As `kernelwatch regressions` lists it.")]
OfIncident = Annotated[
    bool, typer.Option("--incident", help="The number is an incident's: do it to all of its regressions.")
]
Who = Annotated[str | None, typer.Option("--as", help="Who does it; by default the user of this system.")]
_DAY = ["%Y-%m-%d"]


def regressions_command(
    target: Annotated[str | None, typer.Argument(help="Only of this target.")] = None,
    state: Annotated[
        list[RegressionState] | None, typer.Option(help="Only in this state; may be repeated.  By default what stands.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    most: Annotated[int, typer.Option(help="At most so many, the newest.", min=1, max=1000)] = 50,
    form: Formatted = Format.TABLE,
) -> None:
    """Confirmed regressions of mainlines by incident: what did it, how large they are, and who looks after them."""
    _table_or_json(form)
    states = tuple(state or ()) if every else tuple(state or OPEN_REGRESSIONS)
    with reading() as session:
        which = targets.target_named(session, target) if target else None
        page = listing.listed(session, which, states, limit=most)
    if form is Format.JSON:
        print(json.dumps([entry(one) for one in page.items], indent=2))  # noqa: T201  (for pipes: no wrapping)
        return
    if not page.items:
        line("None." if every or state else "Nothing stands.  `--all` lists those that are over.")
        return
    of_incidents: dict[int | None, list[Regressed]] = {}
    for one in page.items:
        of_incidents.setdefault(one.row.incident_id, []).append(one)
    for together in of_incidents.values():
        _incident(together)
    if page.next:
        line(f"The newest {most}; `--most` lists more.")


def _incident(together: list[Regressed]) -> None:
    """What one event did, the largest first."""
    worst_first = sorted(together, key=lambda one: -one.row.ratio)
    worst = worst_first[0]
    number = f"incident {worst.row.incident_id}" if worst.row.incident_id else "before there were incidents"
    why = f": {worst.row.cause_text}" if worst.row.cause_text else ""
    line((number, "bold"), f" of {worst.target} on {worst.row.device}, by {_whose(worst)}{why}")
    names = [f"{one.row.provider} {one.row.case}" for one in worst_first]
    widest = max(map(len, names))
    for one, name in zip(worst_first, names, strict=True):
        row, size = one.row, percent(one.row.ratio, metric_of(one.row.case))
        cared = _cared_for(row)
        line(f"{row.id:>6}  {name:<{widest}}  {size:<16}", (row.state.value, "bold"), f"  {cared}" if cared else "")


def _whose(one: Regressed) -> str:
    """The revision that did it, or between which ones that lies."""
    row = one.row
    if row.culprit is not None:
        return short(row.culprit)
    return f"one of {short(row.good)}..{one.run.revision.short}" if row.good else one.run.revision.short


def _cared_for(row: RegressionRow) -> str:
    """`until 2026-12-24, bob, due 2026-12-01, "exact sums first"`."""
    said = [
        f"until {_day(row.until)}" if row.until is not None else None,
        row.assignee,
        f"due {_day(row.due_at)}" if row.due_at is not None else None,
        f'"{row.reason}"' if row.reason else None,
    ]
    return ", ".join(one for one in said if one is not None)


@regression_app.command("show")
def show(regression_id: Number, of_incident: OfIncident = False, form: Formatted = Format.TABLE) -> None:
    """The whole life of a regression, or of all regressions of an incident."""
    _table_or_json(form)
    with reading() as session:
        ids = [row.id for row in listing.incident(session, regression_id).regressions] if of_incident else []
        lives = [listing.one(session, one) for one in ids or [regression_id]]
    if form is Format.JSON:
        documents = [document(life) for life in lives]
        print(json.dumps(documents if of_incident else documents[0], indent=2))  # noqa: T201
        return
    for life in lives:
        _show(life)


def _show(life: Life) -> None:
    row, run = life.regressed.row, life.regressed.run
    size = f"{percent(row.ratio, metric_of(row.case))} ({interval(row.low, row.high) or 'no interval'})"
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
    until: Annotated[datetime | None, typer.Option(formats=_DAY, help="The day on which that ends (UTC).")] = None,
    of_incident: OfIncident = False,
    who: Who = None,
) -> None:
    """Accept it: its revision is a baseline again.  With --until it is open again by itself on that day."""
    _do(regression_id, Transition(Action.ACKNOWLEDGE, _who(who), reason, until=_seconds(until)), of_incident)


@regression_app.command("dismiss")
def dismiss(
    regression_id: Number,
    reason: Annotated[str, typer.Option(help="Why it is none.")] = "",
    of_incident: OfIncident = False,
    who: Who = None,
) -> None:
    """It is none: the machine, or a change that was wanted.  It does not come back by itself."""
    _do(regression_id, Transition(Action.DISMISS, _who(who), reason), of_incident)


@regression_app.command("reopen")
def reopen(
    regression_id: Number,
    reason: Annotated[str | None, typer.Option(help="Why it stands after all.")] = None,
    of_incident: OfIncident = False,
    who: Who = None,
) -> None:
    """It stands after all.  What is measured from now on may fix it."""
    _do(regression_id, Transition(Action.REOPEN, _who(who), reason), of_incident)


@regression_app.command("assign")
def assign(
    regression_id: Number,
    assignee: Annotated[str | None, typer.Argument(help="A person; nobody, when left out.")] = None,
    of_incident: OfIncident = False,
    who: Who = None,
) -> None:
    """Say who looks after it."""
    transition = Transition(Action.ASSIGN, _who(who), f"to {assignee or 'nobody'}", assignee=assignee)
    _do(regression_id, transition, of_incident)


@regression_app.command("note")
def note(regression_id: Number, text: str, of_incident: OfIncident = False, who: Who = None) -> None:
    """Add words to its history."""
    _do(regression_id, Transition(Action.NOTE, _who(who), text), of_incident)


@regression_app.command("due")
def due(
    regression_id: Number,
    day: Annotated[datetime | None, typer.Argument(formats=_DAY, help="A day (UTC); none, when left out.")] = None,
    of_incident: OfIncident = False,
    who: Who = None,
) -> None:
    """Say until when it is to be mended."""
    words = f"on {day:%Y-%m-%d}" if day else "never"
    _do(regression_id, Transition(Action.DUE, _who(who), words, due_at=_seconds(day)), of_incident)


def _do(regression_id: int, transition: Transition, of_incident: bool) -> None:
    rows: list[RegressionRow]
    with transaction() as session:
        if of_incident:
            rows = transitions.done_to_incident(session, regression_id, transition)
        else:
            rows = [transitions.done(session, regression_id, transition)]
    for row in rows:
        line((f"regression {row.id}", "bold"), f" ({row.case}) is {row.state}.")


def _who(given: str | None) -> str:
    return given if given is not None else this_person()


def _seconds(day: datetime | None) -> float | None:
    return day.replace(tzinfo=UTC).timestamp() if day else None


def _day(seconds: float | None) -> str | None:
    return None if seconds is None else moment(seconds).strftime("%Y-%m-%d")


def _table_or_json(form: Format) -> None:
    if form is Format.MD:
        raise BadInput("Regressions are printed as a table or as JSON (`--format json`).")
