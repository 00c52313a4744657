"""Studies as commands print them."""

from collections.abc import Sequence

from pydantic import BaseModel

from kernels.studies.records import Note, Record, Session
from kernels.studies.results import Estimate, Results
from kernels.studies.tabulating import times
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
from kernelwatch.documents.base import Document
from service.commands.output.views import Column, Columns, Part, Table, View, minute, more, text
from service.domain.studies import sessions as studied
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


class RatioItem(Document):
    """A ratio with its 95 % interval, which needs two trials in both sessions."""

    ratio: float
    low: float | None
    high: float | None


class ArmChangeItem(Document):
    """An arm at a case: `time` is B over A; `relative` is the same of its ratio to the baseline."""

    case: str
    arm: str
    baseline: str
    unit: str
    a: float
    b: float
    time: RatioItem
    relative: RatioItem | None


class StudyComparisonDocument(Document):
    """Two sessions of a study."""

    study: str
    a: int
    b: int
    differences: list[str]
    changes: list[ArmChangeItem]


COLUMNS = Columns(
    ArmChangeItem,
    Column("case", lambda one: one.case),
    Column("arm", lambda one: one.arm),
    Column("A", lambda one: _amount(one.a, one.unit), right=True, spare=2),
    Column("B", lambda one: _amount(one.b, one.unit), right=True, spare=1),
    Column("B/A", lambda one: _times(one.time), lambda one: _style_of_change(one.time), right=True),
    Column(
        "relative to baseline", lambda one: _times(one.relative), lambda one: _style_of_change(one.relative), right=True
    ),
)


def compared(a: StudySessionDocument, b: StudySessionDocument) -> View:
    """Times in B over times in A, and what else differs."""
    first, second = results_of(a), results_of(b)
    differences = studied.differences(first, second)
    changes = [ArmChangeItem.model_validate(one) for one in studied.compared(first, second)]
    baselines = ", ".join(dict.fromkeys(one.baseline for one in changes))
    parts: list[Part] = [
        text((a.title, "bold")),
        text(f"A is session {a.id}, {a.device}, begun {minute(a.began_at)} UTC."),
        text(f"B is session {b.id}, {b.device}, begun {minute(b.began_at)} UTC."),
        *(text((f"The sessions differ in {one}.", "yellow")) for one in differences),
        COLUMNS.table(changes),
        text(
            f"Above 1 the arm is slower in B. The last column is the change of its ratio to the baseline ({baselines})."
            if changes
            else "No arm was measured at the same case in both."
        ),
    ]
    document = StudyComparisonDocument(study=a.study, a=a.id, b=b.id, differences=differences, changes=changes)
    return View(document, parts)


def results_of(document: StudySessionDocument) -> Results:
    """The results that a document holds: all but facts."""
    about = Session(
        document.study,
        document.began_at.isoformat(),
        document.device,
        document.quick,
        document.machine,
        {"revision": document.revision or "unknown", "kernels": document.kernels or "unknown"},
    )
    records = tuple(
        Record(one.step, one.trial, one.case, one.arm, one.state, one.reason, one.unit, tuple(one.samples))
        for one in document.records
    )
    notes = tuple(
        Note("stack", {"arm": arm, **one.versions, "device": {"name": one.device}})
        for one in document.stacks
        for arm in one.arms
    )
    return Results((about,), records, notes)


def _times(one: RatioItem | None) -> str:
    return times(None if one is None else Estimate(one.ratio, one.low, one.high, 0))


def _style_of_change(one: RatioItem | None) -> str:
    """The colour of a change whose interval is on one side of 1."""
    if one is None or one.low is None or one.high is None:
        return ""
    return "red" if one.low > 1 else "green" if one.high < 1 else ""


def _amount(value: float, unit: str) -> str:
    return f"{value:,.4g} {unit}" if value < 1e4 else f"{value:,.0f} {unit}"
