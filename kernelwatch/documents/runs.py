"""Runs with what they measured and decided, and the workers that measure them."""

from typing import Any

from pydantic import Field

from .base import (
    BaselineKind,
    CellState,
    Document,
    GateAction,
    GateKind,
    GateState,
    Moment,
    Number,
    Outcome,
    Purpose,
    Repeatability,
    RunState,
    SourceItem,
)


class RunItem(Document):
    """One revision on one device."""

    id: int
    target: str
    revision: str
    subject: str
    baseline: str | None = Field(
        description="The revision compared with: the parent of one on the mainline, else the merge base."
    )
    last_good: str | None = Field(description="The last revision that was not slow, if the baseline is slow.")
    pinned: str | None = Field(description="The pinned baseline.")
    pull: int | None
    device: str
    suite: str
    purpose: Purpose
    bisection_id: int | None = Field(description="The bisection of which the run is a step.")
    state: RunState
    stage: str | None = Field(description="Current step of the worker.")
    reason: str | None = Field(description="Why it failed, was skipped, held, superseded or cancelled.")
    priority: int
    attempt: int
    max_attempts: int
    worker: str | None
    trusted: bool
    sandboxed: bool | None
    repeated: bool = Field(description="The controls of the first session failed, so it was measured again.")
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    counts: dict[Outcome, int] | None = Field(None, description="Cases by outcome; in lists only with `expand`.")
    behind_sota: int | None = Field(None, description="Cases behind SOTA; in lists only with `expand`.")


_POSITION = "0 while it is measured, 1 if it is the next of its device; null while it is held, and after its end."


_ETA = "Expected seconds until it ends, from recent runs of the target on the device; null if that is unknown."


class QueueItem(RunItem):
    """An unfinished run, with its place in the queue."""

    position: int | None = Field(description=_POSITION)
    eta_s: Number = Field(description=_ETA)


class ProgressItem(Document):
    """How far a run is."""

    id: int
    state: RunState
    stage: str | None = Field(description="Current step of the worker.")
    attempt: int
    max_attempts: int
    worker: str | None
    reason: str | None = Field(description="Why it waits, failed, was skipped, held, superseded or cancelled.")
    position: int | None = Field(description=_POSITION)
    eta_s: Number = Field(description=_ETA)


class RequestedRunsDocument(Document):
    """The runs of a revision, one for each device."""

    items: list[RunItem]
    created: list[int] = Field(description="The ids of those that are new.")


class ApprovedRunsDocument(Document):
    """The runs of exactly one commit that were approved together, on every device."""

    items: list[RunItem]


class BackfillDocument(Document):
    """What a backfill queued."""

    queued: int = Field(description="Runs that were queued; those that were measured already are not queued again.")
    estimate_s: float | None = Field(
        description="How long one worker needs for them: a typical run of this target, times their number."
    )


class GateReasonItem(Document):
    """A number of cases on which the gate acts."""

    kind: GateKind
    action: GateAction
    cases: int = Field(description="0 if the run compared nothing.")
    known_before: bool = Field(description="The baseline has it already, so it never fails the gate.")
    undecided: bool


class GateItem(Document):
    """Whether the policy lets the revision be merged."""

    state: GateState
    exit_code: int
    check_status: str = Field(description="GitHub's value, like the next two.")
    conclusion: str | None
    commit_status: str
    reasons: list[GateReasonItem] = Field(description="The most serious first.")


class SummaryItem(Document):
    """The geometric mean over cases of head over baseline, with its interval over trials."""

    provider: str
    op: str
    direction: str
    metric: str
    cases: int
    ratio: Number
    low: Number
    high: Number
    trials: int


class UtilisationItem(Document):
    """How close a time is to the device's best; null if that does not apply or is not known."""

    copy_share: Number = Field(description="Share of the session's ceiling: the bandwidth of a plain copy.")
    l2_resident: bool = Field(description="The inputs stay in L2, so GB/s does not describe the memory.")
    cycles: Number = Field(description="SM clock cycles, at the clock read while this was measured.")
    tokens_s: Number = Field(description="Tokens per second of a block.")
    utilisation: Number = Field(
        description="FLOP/s of a bf16 or fp16 block, as a share of the session's ceiling: a matrix product."
    )


class MeasurementItem(Document):
    """One contender at one case."""

    contender: str
    role: str
    provider: str
    case: str
    metric: str
    state: CellState
    reason: str | None
    median: Number
    unit: str = Field(description="Of `median`: us, bytes or count.")
    gb_s: Number
    trials: int
    rounds: int
    facts: dict[str, Any] = Field(description="Tables, one row per kernel, only with `tables`.")
    speed: UtilisationItem


class VerdictItem(Document):
    """The head against one baseline at one case; a ratio of 1.05 is 5 % more time or bytes."""

    provider: str
    case: str
    metric: str
    baseline_kind: BaselineKind = Field(
        description=(
            "`parent`; `wrong_parent`: times alone, if the parent or the head computes something else; "
            "`last_good`: the last revision that was not slow, if the parent is slow; `pinned`; "
            "`sota` and `best`: the fastest other provider, for which `behind_sota` counts and `outcome` does not."
        )
    )
    baseline: str | None = Field(description="A commit, a release or a provider.")
    outcome: str
    change: str = Field(
        description="The ratio in words.", examples=["10.2 % slower", "3.0 % less memory", "1 more kernel"]
    )
    ratio: Number = Field(description="Head over baseline; of counts exp(0.01 x difference).")
    difference: int | None = Field(description="Of counts: head minus baseline.")
    low: Number
    high: Number
    trials: int
    rounds: int
    suspected: bool = Field(description="The screening trials looked like a change.")
    confirmed: bool
    p: Number = Field(description="Of the confirmation trials if there are any, else of the screening.")
    q: Number = Field(description="p corrected over the run (Benjamini-Hochberg).")
    smallest_change: float = Field(
        description="The smallest relative change that matters at this case; of counts what their ratio must exceed."
    )
    control_ratio: Number = Field(description="Ratio of the A/A control; only for the parent.")
    doubt: str | None = Field(
        description="Which comparison of equal code left it inconclusive: control, offset, machine or earlier."
    )
    behind_sota: bool
    quarantined: bool
    known_before: bool = Field(description="The baseline fails at this case too.")
    slow_before: bool = Field(description="Slower than the last good revision, as its baseline was already.")
    slower_than_pinned: bool
    repeatability: Repeatability | None = Field(description="Whether bitwise repeatability was lost or gained.")
    cause_kind: str | None = Field(description="code, baseline, stack, machine, noise or unknown.")
    cause_text: str | None = Field(examples=["slower because the kernel now spills 50 registers at N=16384"])
    cause_certain: bool | None = Field(description="The facts leave no alternative.")
    cause_by: str | None = Field(
        description="Which property of the code explains it.", examples=["traffic", "spills", "configuration"]
    )
    source: SourceItem | None = Field(description="Where the code that differs from the parent's is defined.")
    policy_version: str | None = Field(description="SHA-256 of the policy that decided it.")
    cause_code: str | None = Field(description="A stable code; null for verdicts of old versions.")
    reason: str
    reason_code: str | None = Field(description="A stable code; null for verdicts of old versions.")
    regression_id: int | None = Field(description="The regression that this run opened for it.")
    incident_id: int | None
    summary: str = Field(description="Its cause, its reason and notes on its figures, for people.")


class UnsupportedItem(Document):
    """A case that its provider does not support: neither measured nor judged."""

    provider: str
    case: str
    reason: str


class RunDocument(RunItem):
    """A run with everything that was measured and decided."""

    url: str
    author: str
    committed_at: Moment
    headline: str = Field(description="The result in one line.")
    notes: list[str] = Field(description="What a reader of the result must know, in sentences.")
    gate: GateItem
    counts: dict[Outcome, int] = Field(description="Cases by outcome.")
    behind_sota: int = Field(description="Cases behind SOTA.")
    lost_repeatability: int = Field(description="Cases that are no longer bitwise repeatable.")
    sota: str
    log: str | None = Field(description="The last lines of a build that failed.")
    stack: dict[str, Any] = Field(description="Versions.")
    stack_digest: str | None
    telemetry: dict[str, Any]
    ceilings: dict[str, float] = Field(description="The best that the device did in this session; empty on a CPU.")
    policy: dict[str, Any]
    policy_version: str | None
    summaries: list[SummaryItem] = Field(description="One for each metric, provider, op and direction.")
    verdicts: list[VerdictItem]
    measurements: list[MeasurementItem]
    unsupported: list[UnsupportedItem]


class SamplesDocument(Document):
    """The raw samples of one contender at one case of a run: a list for each trial, a number for each round."""

    run_id: int
    contender: str
    role: str
    provider: str
    case: str
    metric: str
    state: CellState
    reason: str | None
    median: Number
    unit: str = Field(description="Of `median` and the samples: us, bytes or count.")
    screening: list[list[float | None]] = Field(description="null for a round that was lost.")
    confirmation: list[list[float | None]] = Field(description="Of the trials that only confirm a suspicion.")
    apart: list[list[float | None]] = Field(description="Of the rounds with contenders that are not exact enough.")


class WorkerItem(Document):
    """A process that owns a device."""

    name: str
    device: str
    description: str
    sandbox_error: str | None = Field(description="Why the sandbox does not work there; null if it works.")
    started_at: Moment
    seen_at: Moment
    online: bool
    run_id: int | None = Field(description="The run that it measures.")
    paused_at: Moment | None = Field(description="It takes no further run since this time.")
    paused_by: str | None
