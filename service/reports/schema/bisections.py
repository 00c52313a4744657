"""Searches for the revision that made a case slower; how often equal code differs, and quarantined cases."""

from collections.abc import Iterable
from typing import Self

from pydantic import Field

from service.db.models import Bisection, Quarantine
from service.domain.states import Ending, Equal, SearchState
from service.reports.bisection_text import answer_in_words
from service.reports.schema.base import Document, Moment, Number, columns
from service.reports.views import BisectionView, CaseRate, MetricRate, StepView


class BisectionItem(Document):
    """A search between a good and a bad revision."""

    id: int
    target: str
    device: str
    suite: str
    cases: list[str] = Field(examples=[["rmsnorm.fwd.32768x4096.bf16"]])
    good: str = Field(description="The revision at the fast end.")
    bad: str = Field(description="The revision at the slow end.")
    state: SearchState
    requested_by: str
    max_runs: int
    culprit: str | None
    reason: str | None = Field(description="Its progress, or its result.")
    incident_id: int | None
    created_at: Moment
    finished_at: Moment | None

    @classmethod
    def of(cls, row: Bisection, target: str) -> Self:
        return cls.model_validate(columns(row) | {"target": target, "requested_by": row.asked_by})


class StepVerdictItem(Document):
    """One case of a step: the step's revision against its baseline."""

    provider: str
    case: str
    outcome: str
    ratio: Number
    low: Number
    high: Number
    trials: int
    cause_text: str | None


class StepItem(Document):
    """One measurement of a bisection; `aim` and `answer` are null if the search no longer counts it."""

    run_id: int
    revision: str
    baseline: str
    aim: str | None = Field(description="verify, search, again or prove.")
    answer: str | None = Field(description="bad, good, skip or undecided.")
    summary: str = Field(examples=["bad: 21.4 % slower at rmsnorm.fwd.32768x4096.bf16 (norms)"])
    verdicts: list[StepVerdictItem]

    @classmethod
    def of(cls, found: StepView) -> Self:
        answered = found.answered
        verdicts = [
            StepVerdictItem(
                provider=provider,
                case=case,
                outcome=one.outcome.value,
                ratio=one.ratio,
                low=one.low,
                high=one.high,
                trials=one.trials,
                cause_text=one.why,
            )
            for (provider, case), one in sorted(found.step.verdicts.items())
        ]
        return cls(
            run_id=found.run.id,
            revision=found.step.revision,
            baseline=found.step.against,
            aim=answered.question.aim.value if answered else None,
            answer=answered.answer.value if answered else None,
            summary=answer_in_words(answered) if answered else found.step.words,
            verdicts=verdicts,
        )


class BisectionDocument(BisectionItem):
    """A bisection with its steps."""

    revisions: list[str] = Field(description="From the good revision to the bad one, along first parents.")
    suspects: list[str] = Field(description="The revisions that may still be the culprit.")
    summary: str = Field(description="Its progress, or its result, in words.")
    ending: Ending | None = Field(description="How it ended, finer than `state`; null while it goes on or was stopped.")
    pending_run_id: int | None = Field(description="The run that is queued or being measured.")
    steps: list[StepItem]

    @classmethod
    def whole(cls, found: BisectionView) -> Self:
        return cls(
            **BisectionItem.of(found.row, found.target).model_dump(),
            revisions=found.row.line,
            suspects=list(found.progress.suspects) if found.progress else [],
            summary=found.words,
            ending=found.progress.ending if found.progress else None,
            pending_run_id=found.pending.id if found.pending else None,
            steps=[StepItem.of(one) for one in found.steps],
        )


class RateItem(Document):
    """The measured false-alarm rate of equal code, next to the nominal one."""

    worker: str
    device: str
    metric: str
    kind: Equal = Field(description="Two processes of one build (copy), or two builds of one source (build).")
    target: str | None = Field(description="null for a sum over cases, like the next two.")
    provider: str | None
    case: str | None
    comparisons: int
    differed: int = Field(description="Comparisons that differed at the nominal level.")
    alarmed: int = Field(description="Comparisons that would have been reported as a change.")
    rate: Number = Field(description="`differed` over `comparisons`.")
    low: Number = Field(description="Of the exact 95 % interval of the rate.")
    high: Number
    nominal_rate: float

    @classmethod
    def of(cls, found: CaseRate | MetricRate) -> Self:
        rate = found.rate
        return cls(
            worker=found.worker,
            device=found.device,
            metric=found.metric.value,
            kind=found.kind,
            target=found.target if isinstance(found, CaseRate) else None,
            provider=found.provider if isinstance(found, CaseRate) else None,
            case=found.case if isinstance(found, CaseRate) else None,
            comparisons=rate.comparisons,
            differed=rate.differed,
            alarmed=rate.alarmed,
            rate=rate.share,
            low=rate.low,
            high=rate.high,
            nominal_rate=found.nominal,
        )


class QuarantineItem(Document):
    """A case that is measured and shown, and never reported."""

    id: int
    target: str
    device: str
    provider: str
    case: str
    since: Moment
    quarantined_by: str = Field(description="A person, or kernelwatch.")
    reason: str = Field(examples=["9 of the last 60 comparisons of equal code speak against it"])
    released_at: Moment | None
    released_by: str | None
    release_reason: str | None

    @classmethod
    def of(cls, row: Quarantine, target: str) -> Self:
        named = {"target": target, "quarantined_by": row.by, "release_reason": row.released_why}
        return cls.model_validate(columns(row) | named)


class CalibrationDocument(Document):
    """Rates by worker, device and metric, the cases with the highest rates, and the quarantined cases."""

    metrics: list[RateItem]
    cases: list[RateItem] = Field(description="The highest rate first.")
    quarantines: list[QuarantineItem]

    @classmethod
    def of(
        cls,
        metrics: Iterable[MetricRate],
        cases: Iterable[CaseRate],
        quarantines: Iterable[tuple[Quarantine, str]],
    ) -> Self:
        return cls(
            metrics=[RateItem.of(one) for one in metrics],
            cases=[RateItem.of(one) for one in cases],
            quarantines=[QuarantineItem.of(*one) for one in quarantines],
        )
