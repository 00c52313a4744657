"""Regressions and incidents as commands print them."""

from collections.abc import Sequence
from typing import Any

from kernelwatch.client import Page
from kernelwatch.client.models import IncidentItem, IncidentMemberItem, RegressionDocument, RegressionItem
from service.commands.output.views import Column, Columns, Sentence, Table, View, day, minute, more, text
from service.domain.metrics import metric_of, percent
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
