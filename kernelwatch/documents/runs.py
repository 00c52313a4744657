"""Runs with what they measured and decided, their workers, and what is known of the code of revisions."""

from typing import Any

from pydantic import Field

from .base import (
    BaselineKind,
    CellState,
    CodeKnown,
    ComparisonMethod,
    Direction,
    Document,
    FactsState,
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
    awaits_second: bool = Field(description="A second session follows, which could decide what is open.")
    second_of: int | None = Field(description="The run whose second session it is.")
    provisional: bool = Field(description="Its worker was not calibrated yet, so its times block nothing.")
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
        description="Which comparison of equal code left it inconclusive: control, offset, machine, earlier or build."
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
    gate: GateState | None = Field(
        description="What the case does to the gate of its run; null against other baselines than the parent."
    )
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
    seconds: dict[str, float] = Field(
        description="Mean seconds of a run by phase, of those measured in the last 24 hours; empty if there are none."
    )


class KernelTextItem(Document):
    """A text of compiled code, without the text itself."""

    contender: str = Field(examples=["head:norms"])
    case: str
    arch: str | None = Field(description="Architecture of a facts check; null where the device compiled it.")
    number: int = Field(description="Which kernel of the call, from 0.")
    kernel: str | None = Field(description="Its name; null for the code of the whole call.")
    kind: str = Field(examples=["ttgir", "ptx", "sass", "generated", "trace"])
    sha256: str = Field(description="Of the text; equal texts have the same.")
    bytes: int


class FindingItem(Document):
    """One line of what a check found."""

    text: str = Field(validation_alias="said", examples=["spills 0 → 50: use more warps per row"])
    where: str
    cases: int
    worse: bool | None = Field(description="null if only a person can tell.")


class KernelFindingsItem(Document):
    """What changed in one kernel for one architecture."""

    source: SourceItem
    kernel: str | None = Field(description="null for changes of a whole case.")
    arch: str
    changes: list[FindingItem]
    broken: bool = Field(description="Whether a limit of the recipe's `[facts]` is.")


class FindingsItem(Document):
    """What a check found, shortened to the first lines."""

    headline: str
    broken: list[FindingItem] = Field(description="Limits of the recipe's `[facts]`.")
    changes: list[FindingItem]
    uncompiled: list[FindingItem]
    notes: list[str]
    more: int = Field(description="Lines that were left out.")
    kernels: list[KernelFindingsItem] = Field(description="The changes by their places in the source, where known.")


class FactsCheckItem(Document):
    """A revision that is compiled without a GPU and compared with its baseline."""

    id: int
    revision: str
    base: str | None = Field(description="The revision compared with.")
    state: FactsState
    reason: str | None = Field(description="Why there are no findings.")
    created_at: Moment
    finished_at: Moment | None
    findings: FindingsItem | None


class FactsSideItem(Document):
    """One contender at one case."""

    run_id: int = Field(description="The run that measured it.")
    state: CellState
    facts: dict[str, Any] = Field(description="Tables, one row per kernel, only with `tables`.")


class FactsPairItem(Document):
    """What is known of the code of two revisions at one case."""

    device: str
    provider: str
    case: str
    same_code: bool | None = Field(description="null if the code of a side is not known.")
    differences: list[str] = Field(examples=[["code changed", "registers 40 → 64"]])
    repeatability: Repeatability | None = Field(description="Whether bitwise repeatability was lost or gained.")
    base: FactsSideItem | None = Field(description="null where it was not measured.")
    head: FactsSideItem | None


class FactsDiffDocument(Document):
    """Two revisions without their times."""

    target: str
    base: str
    head: str
    check: FactsCheckItem | None = Field(description="The check of exactly these two revisions.")
    counts: dict[CodeKnown, int] = Field(description="Cases by what is known of the code.")
    stack_changes: dict[str, list[str]] = Field(
        description="By device, where the two were measured on different stacks, which explains other code."
    )
    cases: list[FactsPairItem]


class CompareSideItem(Document):
    """One of the two revisions."""

    revision: str
    subject: str
    author: str
    committed_at: Moment
    pull: int | None
    run_id: int = Field(description="The run whose medians are shown where no session measured both.")
    worker: str | None


class CompareItem(Document):
    """Head over base at one case; a ratio of 1.05 is 5 % more time or bytes."""

    provider: str
    case: str
    metric: str
    unit: str = Field(description="Of both medians: us, bytes or count.")
    method: ComparisonMethod = Field(
        description=(
            "`paired`: in turns, in one session.  `baseline` and `sota`: each in a session with the same third "
            "revision or provider.  `chain`: through the revisions between.  `unpaired`: two medians, no ratio."
        )
    )
    direction: Direction = Field(description="`unknown` where the interval does not decide it.")
    outcome: str | None = Field(description="The stored verdict, of a pair.")
    change: str = Field(examples=["10.2 % slower"])
    ratio: Number
    low: Number = Field(description="Of the interval, which is wider for several sessions.")
    high: Number
    base_median: Number
    head_median: Number
    via: str | None = Field(description="The third revision or provider.")
    run_ids: list[int] = Field(description="The runs on whose sessions it rests.")
    reason: str | None = Field(description="Why it is not paired.")


class CompareDocument(Document):
    """Two revisions on one device, case by case."""

    target: str
    device: str
    base: CompareSideItem
    head: CompareSideItem
    counts: dict[Direction, int] = Field(description="Cases by direction.")
    methods: dict[ComparisonMethod, int] = Field(description="Cases by method.")
    stack_changes: list[str] = Field(description="Between the two runs whose medians are shown.")
    recipe_changed: bool = Field(description="Those two runs were measured by different versions of the recipe.")
    cases: list[CompareItem]
