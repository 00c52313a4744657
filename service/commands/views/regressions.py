"""Regressions, incidents and bisections as commands print them."""

from collections.abc import Sequence
from typing import Any

from kernelwatch.client import Page
from kernelwatch.client.models import (
    BisectionDocument,
    BisectionItem,
    IncidentItem,
    IncidentMemberItem,
    RegressionDocument,
    RegressionItem,
    StepItem,
)
from service.commands.output.views import Column, Columns, Sentence, Table, View, day, minute, more, text
from service.domain.metrics import metric_of, percent
from service.domain.states import UNDECIDED
from service.domain.text import counted, interval, short


def size(one: RegressionItem | RegressionDocument | IncidentMemberItem) -> str:
    """`10.2 % slower`."""
    return percent(one.ratio, metric_of(one.case))


def _of_people(one: RegressionItem) -> str:
    """`until 2026-12-24, bob, due 2026-12-01, "exact sums first"`."""
    parts = [
        f"until {day(one.acknowledged_until)}" if one.acknowledged_until else None,
        one.assignee,
        f"due {day(one.due_at)}" if one.due_at else None,
        f'"{one.reason}"' if one.reason else None,
    ]
    return ", ".join(part for part in parts if part is not None)


COLUMNS = Columns(
    RegressionItem,
    Column("id", lambda one: str(one.id), right=True),
    Column("case", lambda one: one.case),
    Column("provider", lambda one: one.provider, spare=1),
    Column("change", lambda one: size(one)),
    Column("state", lambda one: one.state, lambda _: "bold"),
    Column("note", _of_people, below=True),
)


def listed(page: Page[RegressionItem], limit: int, *, every: bool) -> View:
    """Regressions by incident, the largest of each first."""
    if not page.items:
        empty = "No regressions." if every else "No open regressions. Use `--all` to include closed ones."
        return View(page, [text(empty)], table=Table(RegressionItem, (), ()))
    of_incidents: dict[int | None, list[RegressionItem]] = {}
    for one in page.items:
        of_incidents.setdefault(one.incident_id, []).append(one)
    tables = [_incident(together) for together in of_incidents.values()]
    return View(page, [*tables, *more(limit, page.next)], table=Table(RegressionItem, page.items, ()))


def _incident(together: Sequence[RegressionItem]) -> Table[RegressionItem]:
    worst_first = sorted(together, key=lambda one: -(one.ratio or 0.0))
    worst = worst_first[0]
    number = f"incident {worst.incident_id}" if worst.incident_id else "no incident"
    why = f": {worst.cause_text}" if worst.cause_text else ""
    title = f"{number} of {worst.target} on {worst.device}, by {_whose(worst)}{why}"
    return COLUMNS.table(worst_first, title)


def _whose(one: RegressionItem) -> str:
    """The culprit, or the range that holds it."""
    if one.culprit is not None:
        return short(one.culprit)
    return f"one of {short(one.last_good)}..{short(one.revision)}" if one.last_good else short(one.revision)


def whole(found: RegressionDocument) -> View:
    """A regression with its history."""
    title = text(
        (f"regression {found.id}", "bold"), f": {found.provider} {found.case} of {found.target} on {found.device}"
    )
    against = short(found.last_good) if found.last_good else "its baseline"
    where = f"found at {short(found.revision)} in run {found.run_id} against {against}"
    interval_words = interval(found.low, found.high) or "no interval"
    facts = {
        "state": found.state,
        "until": day(found.acknowledged_until),
        "reason": found.reason,
        "cause": found.cause_text,
        "culprit": found.culprit,
        "assignee": found.assignee,
        "due": day(found.due_at),
        "incident": found.incident and f"{found.incident.id}, {counted(len(found.incident.regressions), 'regression')}",
        "bisections": ", ".join(str(search.id) for search in found.bisections),
    }
    lines: list[Sentence] = [
        title,
        text(f"  {size(found)} ({interval_words}), {where}"),
        *(text(f"  {name}: {value}") for name, value in facts.items() if value),
    ]
    for event in found.events:
        run = f" (run {event.run_id})" if event.run_id else ""
        why = f": {event.text}" if event.text else ""
        lines.append(text(f"  {minute(event.at)}  ", (event.action, "bold"), f" by {event.actor}{run}{why}"))
    return View(found, lines)


def changed(found: Sequence[RegressionItem | RegressionDocument]) -> View:
    """Regressions after a change, a line for each."""
    lines = [text((f"regression {one.id}", "bold"), f" ({one.case}) is {one.state}.") for one in found]
    document: Any = found[0] if len(found) == 1 else list(found)
    return View(document, lines)


MEMBERS = Columns(
    IncidentMemberItem,
    Column("id", lambda one: str(one.id), right=True),
    Column("case", lambda one: one.case),
    Column("provider", lambda one: one.provider, spare=1),
    Column("change", lambda one: size(one)),
    Column("state", lambda one: one.state, lambda _: "bold"),
)


def incidents(page: Page[IncidentItem], limit: int, *, every: bool) -> View:
    """Incidents with their regressions."""
    empty = "No incidents." if every else "No open incidents. Use `--all` to include closed ones."
    parts = [MEMBERS.table(one.regressions, _headline(one)) for one in page.items]
    notes = more(limit, page.next) if page.items else [text(empty)]
    return View(page, [*parts, *notes], table=Table(IncidentItem, page.items, ()))


def incident(found: IncidentItem) -> View:
    """One incident with its regressions."""
    closed = [text(f"  closed: {minute(found.closed_at)}")] if found.closed_at else []
    facts = [text(f"  opened: {minute(found.opened_at)}"), *closed]
    table = MEMBERS.table(found.regressions)
    return View(found, [text((_headline(found), "bold")), *facts, table], table=Table(IncidentItem, [found], ()))


def _headline(one: IncidentItem) -> str:
    why = f": {one.cause_text}" if one.cause_text else ""
    return f"incident {one.id} of {one.target} on {one.device}, since {short(one.revision)}{why}"


SEARCH_CODES = {"found": 0, "range": 1, "stopped": 2, "not reproduced": 125}  # a search that goes on has 0

BISECTIONS = Columns(
    BisectionItem,
    Column("bisection", lambda one: str(one.id), right=True),
    Column("target", lambda one: one.target),
    Column("device", lambda one: one.device),
    Column("good..bad", lambda one: f"{short(one.good)}..{short(one.bad)}"),
    Column("state", lambda one: one.state, lambda _: "bold"),
    Column("result", lambda one: one.reason or "queued", below=True),
    empty="No bisections. Start one with `kernelwatch bisection start TARGET GOOD..BAD`.",
)
STEPS = Columns(
    StepItem,
    Column("run", lambda one: str(one.run_id), right=True),
    Column("revision", lambda one: short(one.revision)),
    Column("against", lambda one: short(one.baseline)),
    Column("aim", lambda one: one.aim or "", spare=1),
    Column("answer", lambda one: one.summary, folds=True),
)


def bisection_started(found: BisectionDocument, address: str) -> View:
    """A bisection that was asked for."""
    return View(found, [text(f"Bisection {found.id}  ({address}/bisections/{found.id})")])


def bisection(found: BisectionDocument) -> View:
    """A bisection with its steps."""
    title = text(f"bisection {found.id} of {found.target} on {found.device}: {short(found.good)}..{short(found.bad)}")
    result = text((found.state, "bold"), ": ", found.summary)
    parts = (title, STEPS.table(found.steps), result)
    return View(found, parts, code=_code(found), over=found.state in SEARCH_CODES)


def bisection_stopped(found: BisectionDocument) -> View:
    """A bisection that was stopped."""
    return View(found, [text(found.reason or found.summary)])


def _code(found: BisectionDocument) -> int:
    """The exit code of a search."""
    if found.state == "not reproduced" and found.ending == "undecided":
        return UNDECIDED
    return SEARCH_CODES.get(found.state, 0)
