"""Two sessions of a study next to each other, as the command prints them."""

from kernels.studies.records import Note, Record, Session
from kernels.studies.results import Estimate, Results
from kernels.studies.tabulating import times
from kernelwatch.client.models import StudySessionDocument
from kernelwatch.documents.base import Document
from service.commands.output.views import Column, Columns, Part, View, minute, text
from service.domain.studies import sessions


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
    Column("B/A", lambda one: _times(one.time), lambda one: _style(one.time), right=True),
    Column("relative to baseline", lambda one: _times(one.relative), lambda one: _style(one.relative), right=True),
)


def compared(a: StudySessionDocument, b: StudySessionDocument) -> View:
    """Times in B over times in A, and what else differs."""
    first, second = results_of(a), results_of(b)
    differences = sessions.differences(first, second)
    changes = [ArmChangeItem.model_validate(one) for one in sessions.compared(first, second)]
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


def _style(one: RatioItem | None) -> str:
    """The colour of a change whose interval is on one side of 1."""
    if one is None or one.low is None or one.high is None:
        return ""
    return "red" if one.low > 1 else "green" if one.high < 1 else ""


def _amount(value: float, unit: str) -> str:
    return f"{value:,.4g} {unit}" if value < 1e4 else f"{value:,.0f} {unit}"
