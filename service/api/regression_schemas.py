"""What the API says of regressions' lives, bisections, change points and calibration."""

from typing import Any, Self

from pydantic import BaseModel, Field

from service.api.schemas import Answer, Moment, Number, RegressionOut, columns
from service.db.models import Bisection, Incident, Quarantine, RegressionRow
from service.domain.states import Equal, PointState, RegressionState, SearchState
from service.ledger.calibration.rates import CaseRate, MetricRate
from service.ledger.changepoints.change_points import Pointed
from service.reports.bisection_text import answer_in_words
from service.reports.views import Happening, Life, Search, Stepped


class EventOut(Answer):
    """Who did what to a regression, and when."""

    at: Moment
    who: str = Field(examples=["ada", "kernelwatch"])
    what: str = Field(examples=["opened", "acknowledged", "blamed", "fixed"])
    state: RegressionState = Field(description="After it.")
    words: str | None = Field(examples=["exact sums are worth 3 %"])
    run_id: int | None = Field(description="The measurement that showed it.")


class MemberOut(Answer):
    """A regression of an incident."""

    id: int
    provider: str
    case: str
    ratio: Number
    state: RegressionState


class IncidentOut(Answer):
    """Regressions of many cases that one event made."""

    id: int
    target: str
    device: str
    revision: str = Field(description="The earliest that is in it.")
    opened_at: Moment
    closed_at: Moment | None = Field(description="When the last of its regressions was fixed or dismissed.")
    cause_kind: str | None = Field(examples=["code"])
    cause_text: str | None = Field(examples=["slower because the kernel now spills 50 registers at N=16384"])
    regressions: list[MemberOut] = Field(description="The largest first.")

    @classmethod
    def of(cls, found: Happening) -> Self:
        return cls.model_validate(_incident(found.row, found.target, found.regressions))


class BisectionOut(Answer):
    """A search between a good and a bad revision for the one that did it."""

    id: int
    target: str
    device: str
    suite: str
    cases: list[str] = Field(examples=[["rmsnorm.fwd.32768x4096.bf16"]])
    good: str = Field(description="The end that was not slow.")
    bad: str = Field(description="The end that is.")
    state: SearchState
    asked_by: str
    max_runs: int
    culprit: str | None
    reason: str | None = Field(description="How far it is, or what it found.")
    incident_id: int | None
    created_at: Moment
    finished_at: Moment | None

    @classmethod
    def of(cls, row: Bisection, target: str | None = None) -> Self:
        return cls.model_validate(columns(row) | {"target": target or row.target.name})


class StepOut(BaseModel):
    """One measurement of a bisection; null aim and answer where the search no longer counts it."""

    run: int
    revision: str
    against: str
    aim: str | None = Field(description="verify, search, again or prove.")
    answer: str | None = Field(description="bad, good, skip or undecided.")
    words: str = Field(examples=["bad: 21.4 % slower at rmsnorm.fwd.32768x4096.bf16 (norms)"])

    @classmethod
    def of(cls, found: Stepped) -> Self:
        said = found.answered
        return cls(
            run=found.run.id,
            revision=found.step.revision,
            against=found.step.against,
            aim=said.question.aim.value if said else None,
            answer=said.answer.value if said else None,
            words=answer_in_words(said) if said else found.step.words,
        )


class BisectionWhole(BisectionOut):
    """A bisection with its steps."""

    line: list[str] = Field(description="From the good revision to the bad one, along first parents.")
    suspects: list[str] = Field(description="Those that may still have done it.")
    words: str = Field(description="How far it is, or what it found.")
    pending: int | None = Field(description="The run that is queued or measured now.")
    steps: list[StepOut]

    @classmethod
    def whole(cls, found: Search) -> Self:
        more = {
            "target": found.target,
            "suspects": list(found.progress.suspects) if found.progress else [],
            "words": found.words,
            "pending": found.pending.id if found.pending else None,
            "steps": [StepOut.of(one) for one in found.steps],
        }
        return cls.model_validate(columns(found.row) | more)


class RegressionWhole(RegressionOut):
    """A regression with its life."""

    good: str | None = Field(description="The revision that it is slower than.")
    events: list[EventOut] = Field(description="The oldest first.")
    incident: IncidentOut | None
    bisections: list[BisectionOut] = Field(description="The newest first.")

    @classmethod
    def whole(cls, life: Life) -> Self:
        of, row = life.regressed, life.incident
        members = sorted((of.row, *life.siblings), key=lambda one: (-one.ratio, one.id))
        more = {
            "events": [EventOut.model_validate(event) for event in life.events],
            "incident": _incident(row, of.target, members) if row else None,
            "bisections": [BisectionOut.of(search, of.target) for search in life.bisections],
        }
        return cls.model_validate(cls.names(of) | more)


class ChangePointOut(Answer):
    """A step in the history of one series."""

    id: int
    target: str
    device: str
    provider: str
    case: str
    revision: str = Field(description="The first after the step.")
    before: str = Field(description="The last measured one before it.")
    ratio: Number = Field(description="After over before; above 1 is slower.")
    low: Number
    high: Number
    p: Number
    level: str = Field(description="notify or block.")
    state: PointState
    reason: str | None = Field(
        description="Why it was closed, or what explains it.", examples=["two fresh sessions did not repeat it"]
    )
    found_at: Moment
    bisection_id: int | None
    regression_id: int | None

    @classmethod
    def of(cls, found: Pointed) -> Self:
        names = {"target": found.target, "revision": found.revision.sha, "before": found.before.sha}
        return cls.model_validate(columns(found.row) | names)


class RateOut(BaseModel):
    """How often equal code differed from itself: the realised false-alarm rate, beside the nominal one."""

    worker: str
    device: str
    metric: str
    target: str | None = Field(description="null where cases are summed.")
    provider: str | None
    case: str | None
    comparisons: int
    differed: int = Field(description="By the test, at the nominal level.")
    alarmed: int = Field(description="Would have been told as a change.")
    share: Number
    low: Number = Field(description="Of an exact interval of 95 % for the share.")
    high: Number
    nominal: float
    kind: Equal = Field(description="Two processes of one build (copy), or two builds of one source (build).")

    @classmethod
    def of(cls, found: CaseRate | MetricRate) -> Self:
        named = {name: getattr(found, name, None) for name in ("target", "provider", "case")}
        rate = {name: getattr(found.rate, name) for name in ("comparisons", "differed", "alarmed", "share", "low")}
        shared = {
            "worker": found.worker,
            "device": found.device,
            "metric": found.metric.value,
            "nominal": found.nominal,
        }
        shared["kind"] = found.kind
        return cls.model_validate({**named, **rate, **shared, "high": found.rate.high})


class CalibrationOut(BaseModel):
    """Sums by worker, device and metric, and the cases with the highest rates."""

    metrics: list[RateOut]
    worst: list[RateOut]


class QuarantineOut(Answer):
    """A case that alarms nobody, and why."""

    id: int
    target: str
    device: str
    provider: str
    case: str
    since: Moment
    by: str = Field(description="A person, or kernelwatch.")
    reason: str = Field(examples=["9 of the last 60 comparisons of equal code speak against it"])
    released_at: Moment | None
    released_by: str | None
    released_why: str | None

    @classmethod
    def of(cls, row: Quarantine, target: str) -> Self:
        return cls.model_validate(columns(row) | {"target": target})


def _incident(row: Incident, target: str, members: Any) -> dict[str, Any]:
    regressions: list[RegressionRow] = list(members)
    return columns(row) | {"target": target, "revision": row.revision.sha, "regressions": regressions}
