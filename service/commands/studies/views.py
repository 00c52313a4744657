"""Studies as commands print them."""

from collections.abc import Sequence

from pydantic import BaseModel

from kernelwatch.client import Page
from kernelwatch.client.models import (
    StudyClaimsItem,
    StudyConclusionItem,
    StudyItem,
    StudySessionDocument,
    StudySessionItem,
    StudyStackItem,
    StudyTableItem,
)
from service.commands.output.views import Column, Columns, Part, Table, View, minute, more, text
from service.domain.studies.sessions import UNFINISHED
from service.domain.text import counted
from service.ledger.studies.sessions import StoredSession

HOLDS = {True: "holds", False: "does not hold", None: "undecided"}
_STYLES = {True: "green", False: "red", None: "yellow"}


class StudyRow(BaseModel):
    """A row of a table of a study."""

    cells: list[str]


class AddedItem(BaseModel):
    """A file that was stored."""

    session: StudySessionItem
    records: int
    notes: int


STUDIES = Columns(
    StudyItem,
    Column("study", lambda one: one.name, lambda _: "bold"),
    Column("question", lambda one: one.question, folds=True),
    Column("sessions", lambda one: ", ".join(f"{on} {count}" for on, count in one.sessions.items())),
    Column("claims", lambda one: claims(one.claims), spare=1),
)
SESSIONS = Columns(
    StudySessionItem,
    Column("session", lambda one: str(one.id), right=True),
    Column("study", lambda one: one.study),
    Column("device", lambda one: one.device),
    Column("form", lambda one: form(one), spare=1),
    Column("began", lambda one: minute(one.began_at)),
    Column("cases", lambda one: measured_of(one), right=True),
    Column("revision", lambda one: one.revision or "", spare=2),
)
FINDINGS = Columns(
    StudyConclusionItem,
    Column("claim", lambda one: one.claim, folds=True),
    Column("measured here", lambda one: one.found, folds=True),
    Column("", lambda one: HOLDS[one.holds], lambda one: _STYLES[one.holds]),
)


def studies(found: Sequence[StudyItem]) -> View:
    """The studies, and how many sessions each has."""
    hint = "No sessions. `kernelwatch study run s3 --quick` measures one in less than a minute."
    last = [] if any(study.sessions for study in found) else [text(hint)]
    return View(list(found), [STUDIES.table(found), *last])


def sessions(name: str, page: Page[StudySessionItem], limit: int) -> View:
    """The sessions of a study, the newest first."""
    none = f"No sessions. `kernelwatch study run {name}` measures one."
    notes = more(limit, page.next) if page.items else [text(none)]
    return View(page, [SESSIONS.table(page.items), *notes])


def removed(found: StudySessionItem) -> View:
    """A session that was deleted."""
    return View(found, [text(f"Deleted {named(found)}.")])


def named(found: StudySessionItem | StudySessionDocument) -> str:
    """`session 3 of s3 on h200, begun 2026-11-20 03:02 UTC, with 24 of 80 cases`."""
    began = f"begun {minute(found.began_at)} UTC"
    return f"session {found.id} of {found.study} on {found.device}, {began}, with {measured_of(found)} cases"


def claims(found: StudyClaimsItem | None) -> str:
    """`3 hold, 1 does not, 1 undecided`."""
    if found is None:
        return ""
    parts = (
        (found.hold, "hold" if found.hold != 1 else "holds"),
        (found.fail, "do not" if found.fail != 1 else "does not"),
    )
    said = [f"{count} {word}" for count, word in (*parts, (found.undecided, "undecided")) if count]
    return ", ".join(said)


def form(one: StudySessionItem | StudySessionDocument) -> str:
    """The form of a session."""
    return "quick" if one.quick else "full"


def measured_of(one: StudySessionItem | StudySessionDocument) -> str:
    """How far a session is."""
    return f"{one.done:,}" if one.done >= one.total else f"{one.done:,} of {one.total:,}"


def whole(found: StudySessionDocument) -> View:
    """A session with what follows from it."""
    parts = _where(found)
    parts += [FINDINGS.table(found.findings)] if found.findings else []
    for table in (one for one in found.tables if one.rows):
        parts.append(_table(table))
        parts += [text((table.note, "dim"))] if table.note else []
    return View(found, parts)


def _where(found: StudySessionDocument) -> list[Part]:
    on = f"{found.device}, {form(found)} form, {measured_of(found)} cases"
    at = f"at {found.revision}, " if found.revision else ""
    lines: list[Part] = [
        text((found.title, "bold")),
        text(f"session {found.id}: {on}, {at}begun {minute(found.began_at)} UTC"),
        *(text(stack(one)) for one in found.stacks),
    ]
    if found.control is not None:
        lines.append(text(f"Two copies of equal code differ by {found.control:.2%} in the median."))
    return lines


def stack(one: StudyStackItem) -> str:
    """`NVIDIA H200: torch 2.11.0, triton 3.6.0`."""
    versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
    return f"{one.device}: {versions}" if one.device else versions


def _table(found: StudyTableItem) -> Table[StudyRow]:
    rows = [StudyRow(cells=row) for row in found.rows]
    columns = [_column(number, title) for number, title in enumerate(found.columns)]
    return Table(StudyRow, rows, columns, found.title)


def _column(number: int, title: str) -> Column[StudyRow]:
    return Column(title, lambda row: row.cells[number], right=number > 0)


def measured(found: StudySessionDocument, left: int) -> View:
    """A session that was measured just now; `left` cases of what was asked for are not."""
    view = whole(found)
    if not left:
        return view
    goes_on = f"{counted(left, 'case')} left. The same command measures the rest."
    return View(found, [*view.parts, text((goes_on, "yellow"))], code=UNFINISHED)


def added(stored: Sequence[tuple[StoredSession, StudySessionDocument]]) -> View:
    """Files that were stored."""
    items = [
        AddedItem(session=StudySessionItem.model_validate(found.model_dump()), records=one.records, notes=one.notes)
        for one, found in stored
    ]
    lines = [text(_added(one)) for one in items]
    return View(items, lines, table=Table(AddedItem, items, ()))


def _added(one: AddedItem) -> str:
    what = f"{one.session.study} on {one.session.device}, {measured_of(one.session)} cases"
    new = counted(one.records, "new record") if one.records else "nothing new"
    return f"Session {one.session.id}: {what}, {new}."
