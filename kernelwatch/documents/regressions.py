"""Regressions, the incidents that group them, and change points."""

from typing import Any

from pydantic import Field

from .base import Document, FoundBy, Moment, Number, PointState, RegressionState
from .bisections import BisectionItem


class RegressionItem(Document):
    """A confirmed regression of a mainline."""

    id: int
    incident_id: int | None
    target: str
    device: str
    provider: str
    case: str
    ratio: Number
    low: Number
    high: Number
    state: RegressionState
    found_by: FoundBy
    run_id: int = Field(description="The run that found it.")
    revision: str = Field(description="The first revision that was found to be slow.")
    last_good: str | None = Field(description="The revision that it is slower than.")
    culprit: str | None = Field(description="The revision that caused it.")
    cause_kind: str | None
    cause_text: str | None
    opened_at: Moment
    fixed_at: Moment | None
    fixed_by: str | None = Field(description="The revision that fixed it.")
    assignee: str | None
    due_at: Moment | None
    reason: str | None = Field(description="Why it was acknowledged or dismissed.")
    acknowledged_until: Moment | None = Field(description="null if the acknowledgement does not end.")
    events: list["EventItem"] | None = Field(None, description="The oldest first; in lists only with `expand`.")


class EventItem(Document):
    """One change of a regression."""

    at: Moment
    actor: str = Field(examples=["ada", "kernelwatch"])
    action: str = Field(examples=["opened", "acknowledged", "blamed", "fixed"])
    state: RegressionState = Field(description="After the change.")
    text: str | None = Field(examples=["exact sums are worth 3 %"])
    run_id: int | None = Field(description="The run that showed it.")


class IncidentMemberItem(Document):
    """A regression of an incident."""

    id: int
    provider: str
    case: str
    ratio: Number
    state: RegressionState


class IncidentItem(Document):
    """Regressions of several cases with one cause."""

    id: int
    target: str
    device: str
    revision: str = Field(description="The earliest revision in it.")
    opened_at: Moment
    closed_at: Moment | None = Field(description="When the last of its regressions was fixed or dismissed.")
    cause_kind: str | None = Field(examples=["code"])
    cause_text: str | None = Field(examples=["slower because the kernel now spills 50 registers at N=16384"])
    regressions: list[IncidentMemberItem] = Field(description="The largest first.")


class RegressionDocument(RegressionItem):
    """A regression with its history, its incident and its bisections."""

    events: list[EventItem] = Field(description="The oldest first.")
    incident: IncidentItem | None
    bisections: list[BisectionItem] = Field(description="The newest first.")


class LeakPartItem(Document):
    """A part of a leak."""

    revision: str
    ratio: Number = Field(description="The level from here on over that before the leak.")


class ChangePointItem(Document):
    """A step or a leak in the history of one case."""

    id: int
    target: str
    device: str
    provider: str
    case: str
    revision: str = Field(description="The first revision after the step.")
    previous_revision: str = Field(description="The last measured revision before it.")
    ratio: Number = Field(description="After over before; above 1 is slower.")
    low: Number
    high: Number
    p: Number
    revisions: int | None = Field(description="That were compared; null if it is not known.")
    course: list[LeakPartItem] | None = Field(description="The parts of a leak, oldest first; null for a step.")
    level: str = Field(description="notify or block.")
    state: PointState
    reason: str | None = Field(
        description="Why it is in its state; null for an open one that nothing is known of.",
        examples=["2 new sessions of bisection 3 did not repeat it: the machine, not the code"],
    )
    reason_code: str | None = Field(description="A stable code of the reason.", examples=["not_repeated"])
    reason_args: dict[str, Any] | None = Field(
        description="What the code is about, by name.", examples=[{"bisection": 3, "sessions": 2}]
    )
    found_at: Moment
    bisection_id: int | None
    regression_id: int | None
