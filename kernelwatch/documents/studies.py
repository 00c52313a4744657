"""The documents of studies."""

from datetime import datetime
from typing import Any

from pydantic import Field

from .base import Document, Moment, Number


class StudySourceItem(Document):
    """Where a result was published."""

    title: str
    url: str
    hardware: str


class StudySessionItem(Document):
    """A study as it was measured once, on one device."""

    id: int
    study: str
    device: str = Field(examples=["h200"])
    quick: bool = Field(description="The form with fewer cases and one trial.")
    began_at: datetime
    updated_at: Moment = Field(description="When its last record arrived.")
    revision: str | None = Field(description="Of kernelwatch, as `git describe` names it.")
    kernels: str | None = Field(description="Hash of the code that measured.")
    done: int = Field(description="Cases measured, counted once for each step and trial.")
    total: int = Field(description="Those that the study asks for.")


class StudyClaimsItem(Document):
    """How many claims of the source hold."""

    hold: int
    fail: int
    undecided: int


class StudyItem(Document):
    """A published result that is measured again."""

    name: str = Field(examples=["s3"])
    title: str
    question: str
    source: StudySourceItem
    shown: int | None = Field(description="The session to read first: a full one before a quick one, then the newest.")
    claims: StudyClaimsItem | None = Field(description="In that session; null if it cannot be evaluated.")
    sessions: dict[str, int] = Field(description="How many are stored, by device.", examples=[{"h200": 2}])


class StudyConclusionItem(Document):
    """A claim of the source, and what was measured."""

    claim: str
    found: str
    holds: bool | None = Field(description="null: these measurements cannot decide it.")


class StudyTableItem(Document):
    """A table of texts; the first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str


class StudyLimitItem(Document):
    """A horizontal line of a figure."""

    name: str
    value: float


class StudyFigureItem(Document):
    """Lines over a logarithmic x axis; null interrupts a line."""

    title: str
    x_label: str
    y_label: str
    xs: list[float]
    series: dict[str, list[Number]]
    limit: StudyLimitItem | None


class StudyStackItem(Document):
    """The versions that some arms ran with."""

    arms: list[str]
    device: str = Field(description="As the device names itself.")
    versions: dict[str, str]


class StudyRecordItem(Document):
    """One arm at one case in one trial."""

    step: str
    trial: int
    case: str
    arm: str = Field(description="`control` is a second copy of the first arm of the step.")
    state: str
    reason: str | None
    unit: str
    median: Number
    samples: list[Number] = Field(description="One for each round; null for a round that was dropped.")


class StudySessionDocument(StudySessionItem):
    """A session with what follows from it, and its records."""

    title: str
    machine: dict[str, Any]
    stacks: list[StudyStackItem]
    control: Number = Field(description="How far two copies of equal code differ, relative, in the median.")
    findings: list[StudyConclusionItem]
    tables: list[StudyTableItem]
    figures: list[StudyFigureItem]
    records: list[StudyRecordItem]
