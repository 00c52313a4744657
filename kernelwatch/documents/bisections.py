"""Searches for the revision that made a case slower; how often equal code differs, and quarantined cases."""

from pydantic import Field

from .base import Document, Ending, Equal, Moment, Number, SearchState


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


class BisectionDocument(BisectionItem):
    """A bisection with its steps."""

    revisions: list[str] = Field(description="From the good revision to the bad one, along first parents.")
    suspects: list[str] = Field(description="The revisions that may still be the culprit.")
    summary: str = Field(description="Its progress, or its result, in words.")
    ending: Ending | None = Field(description="How it ended, finer than `state`; null while it goes on or was stopped.")
    pending_run_id: int | None = Field(description="The run that is queued or being measured.")
    steps: list[StepItem]


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


class CalibrationDocument(Document):
    """Rates by worker, device and metric, the cases with the highest rates, and the quarantined cases."""

    metrics: list[RateItem]
    cases: list[RateItem] = Field(description="The highest rate first.")
    quarantines: list[QuarantineItem]
