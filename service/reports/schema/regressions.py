"""Regressions, the incidents that group them, and change points."""

from collections.abc import Iterable
from typing import Any, Self

from pydantic import Field

from service.db.models import Incident, RegressionEvent, RegressionRow
from service.domain.states import FoundBy, PointState, RegressionState
from service.reports.schema.base import Document, Moment, Number, columns
from service.reports.schema.bisections import BisectionItem
from service.reports.views import ChangePointView, IncidentView, RegressionHistory, RegressionView
from service.reports.words import of_point_reason


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

    @classmethod
    def of(cls, found: RegressionView, events: Iterable[RegressionEvent] | None = None) -> Self:
        row = found.row
        named = {
            "target": found.target,
            "revision": found.run.revision.sha,
            "last_good": row.good,
            "fixed_by": found.fixed_by.revision.sha if found.fixed_by else None,
            "acknowledged_until": row.until,
            "events": None if events is None else [EventItem.of(event) for event in events],
        }
        return cls.model_validate(columns(row) | named)


class EventItem(Document):
    """One change of a regression."""

    at: Moment
    actor: str = Field(examples=["ada", "kernelwatch"])
    action: str = Field(examples=["opened", "acknowledged", "blamed", "fixed"])
    state: RegressionState = Field(description="After the change.")
    text: str | None = Field(examples=["exact sums are worth 3 %"])
    run_id: int | None = Field(description="The run that showed it.")

    @classmethod
    def of(cls, event: RegressionEvent) -> Self:
        return cls(
            at=event.at,
            actor=event.who,
            action=event.what,
            state=event.state,
            text=event.words,
            run_id=event.run_id,
        )


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

    @classmethod
    def of(cls, found: IncidentView) -> Self:
        return cls.made(found.row, found.target, found.regressions)

    @classmethod
    def made(cls, row: Incident, target: str, members: Iterable[RegressionRow]) -> Self:
        named = {
            "target": target,
            "revision": row.revision.sha,
            "regressions": [IncidentMemberItem.model_validate(one) for one in members],
        }
        return cls.model_validate(columns(row) | named)


class RegressionDocument(RegressionItem):
    """A regression with its history, its incident and its bisections."""

    events: list[EventItem] = Field(description="The oldest first.")
    incident: IncidentItem | None
    bisections: list[BisectionItem] = Field(description="The newest first.")

    @classmethod
    def whole(cls, life: RegressionHistory) -> Self:
        of, row = life.regressed, life.incident
        members = sorted((of.row, *life.siblings), key=lambda one: (-one.ratio, one.id))
        return cls(
            **RegressionItem.of(of, life.events).model_dump(),
            incident=IncidentItem.made(row, of.target, members) if row else None,
            bisections=[BisectionItem.of(search, of.target) for search in life.bisections],
        )


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

    @classmethod
    def of(cls, found: ChangePointView) -> Self:
        named = {"target": found.target, "revision": found.revision.sha, "previous_revision": found.before.sha}
        reason = {"reason": of_point_reason(found.row)}
        return cls.model_validate(columns(found.row) | named | reason)
