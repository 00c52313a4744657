"""Regressions, incidents, change points, bisections, calibration, and what another policy would have decided."""

from typing import Any

from pydantic import Field

from .base import Document, Ending, Equal, FoundBy, Moment, Number, PointState, RegressionState, SearchState


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


class PolicyItem(Document):
    """One version of a policy."""

    digest: str = Field(description="SHA-256; `policy_version` of the verdicts that it made.")
    created_at: Moment


class PolicyDocument(PolicyItem):
    """One version of a policy, as it was when it made verdicts."""

    values: dict[str, Any]


class ReplaySumItem(Document):
    """Counts over many cases."""

    cases: int
    alarmed: int = Field(description="Cases that were reported as a change.")
    stay: int
    new: int
    missed: int
    spared: int = Field(description="Dismissed by a person, and not reported by this policy.")
    undecided: int = Field(description="This policy needs trials that were never made.")
    trials_made: int
    trials_used: int
    trials_lacking: int
    behind_sota_before: int
    behind_sota: int
    slower_than_pinned_before: int
    slower_than_pinned: int


class ReplayGroupItem(ReplaySumItem):
    """The counts of one device, provider and metric."""

    device: str
    provider: str
    metric: str


class ReplayedItem(Document):
    """A case that this policy decides differently, or that the stored trials cannot decide."""

    run_id: int
    target: str
    revision: str
    device: str
    pull: int | None
    provider: str
    case: str
    fate: str = Field(description="new, missed, spared or undecided.")
    outcome_before: str | None
    outcome: str
    ratio: Number
    low: Number
    high: Number
    reason: str
    trials_made: int
    trials_used: int
    trials_lacking: int


class EqualCodeItem(Document):
    """Comparisons of equal code."""

    comparisons: int
    alarmed_before: int
    alarmed: int


class ReplayDocument(Document):
    """A policy applied to stored runs."""

    policy_versions: dict[str, str] = Field(description="By device.")
    runs: int
    since: Moment | None
    until: Moment | None
    total: ReplaySumItem
    groups: list[ReplayGroupItem]
    cases: list[ReplayedItem]
    equal_code: EqualCodeItem
