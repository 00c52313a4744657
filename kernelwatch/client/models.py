"""The documents of the API.  Made from its OpenAPI by `make client-models`; do not edit."""

from datetime import date, datetime
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """Base of all documents.  It keeps fields that only a newer server knows."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)


ActorKind: TypeAlias = Literal["anonymous", "key", "person", "local", "service"] | str

ForgeKind: TypeAlias = Literal["github", "gitlab"] | str

TargetKind: TypeAlias = Literal["git", "package"] | str


class TargetDocument(Document):
    """A target with its recipe."""

    name: str
    kind: TargetKind
    # URL or folder of the repository or index, without credentials.
    location: str
    package: str | None
    branch: str | None
    # The path of its repository on the forge: `owner/name`.
    forge: str | None
    forge_kind: ForgeKind | None
    trusted: bool
    allow_unsandboxed: bool
    created_at: datetime
    # When the remote is polled next.
    poll_at: datetime
    poll_failures: int
    poll_error: str | None
    # Only those who were granted it know of it.
    private: bool
    # Size of the mirror of its repository; null before it is known.
    mirror_bytes: int | None
    # No new revisions are taken since this time.
    paused_at: datetime | None
    # No comments and checks are sent before this time.
    forge_paused_until: datetime | None
    # Why sending was paused last.
    forge_error: str | None
    # The devices of its recipe.
    devices: list[str]
    open_regressions: int
    # Mainline cases that are slower than SOTA.
    behind_sota: int
    recipe: str | None


class AddedTargetDocument(TargetDocument):
    """A target that was added."""

    # Runs that were queued for its newest revisions.
    queued: int
    # There was a target of this name and location: it is now as described.
    existed: bool
    # Devices of its recipe on which no worker has ever run.
    without_worker: list[str]


Outcome: TypeAlias = (
    Literal["regression", "improvement", "steady", "inconclusive", "invalid", "failed", "new", "removed"] | str
)

Purpose: TypeAlias = Literal["watch", "bisection", "calibration"] | str

RunState: TypeAlias = Literal["held", "queued", "leased", "done", "failed", "skipped", "superseded", "cancelled"] | str


class RunItem(Document):
    """One revision on one device."""

    id: int
    target: str
    revision: str
    subject: str
    # The revision compared with: the parent of one on the mainline, else the merge base.
    baseline: str | None
    # The last revision that was not slow, if the baseline is slow.
    last_good: str | None
    # The pinned baseline.
    pinned: str | None
    pull: int | None
    device: str
    suite: str
    purpose: Purpose
    # The bisection of which the run is a step.
    bisection_id: int | None
    state: RunState
    # Current step of the worker.
    stage: str | None
    # Why it failed, was skipped, held, superseded or cancelled.
    reason: str | None
    priority: int
    attempt: int
    max_attempts: int
    worker: str | None
    trusted: bool
    sandboxed: bool | None
    # The controls of the first session failed, so it was measured again.
    repeated: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    # Cases by outcome; in lists only with `expand`.
    counts: dict[str, int] | None = None
    # Cases behind SOTA; in lists only with `expand`.
    behind_sota: int | None = None


class ApprovedRunsDocument(Document):
    """The runs of exactly one commit that were approved together, on every device."""

    items: list[RunItem]


class AuditItem(Document):
    """Something that somebody changed."""

    id: int
    at: datetime
    actor_kind: ActorKind
    actor: str
    action: str
    target: str | None
    object: str | None
    details: dict[str, Any]
    # Where the request came from; null for a command on the server.
    address: str | None


class BackfillDocument(Document):
    """What a backfill queued."""

    # Runs that were queued; those that were measured already are not queued again.
    queued: int
    # How long one worker needs for them: a typical run of this target, times their number.
    estimate_s: float | None


BaselineKind: TypeAlias = Literal["parent", "wrong_parent", "last_good", "pinned", "sota", "best"] | str


class BatchItem(Document):
    """Measurements that somebody made elsewhere and sent in one request."""

    id: int
    target: str
    device: str
    tool: str
    machine: str
    measured_at: datetime | None
    stack: dict[str, Any]
    notes: dict[str, Any]
    sent_by: str
    received_at: datetime
    measurements: int
    samples: int


SearchState: TypeAlias = (
    Literal["verifying", "searching", "proving", "found", "range", "not reproduced", "stopped"] | str
)


class BisectionItem(Document):
    """A search between a good and a bad revision."""

    id: int
    target: str
    device: str
    suite: str
    cases: list[str]
    # The revision at the fast end.
    good: str
    # The revision at the slow end.
    bad: str
    state: SearchState
    requested_by: str
    max_runs: int
    culprit: str | None
    # Its progress, or its result.
    reason: str | None
    incident_id: int | None
    created_at: datetime
    finished_at: datetime | None


Ending: TypeAlias = (
    Literal[
        "proved",
        "untested",
        "steady",
        "undecided",
        "once",
        "unproved",
        "skipped",
        "contradicted",
        "small steps",
        "spent",
    ]
    | str
)


class StepVerdictItem(Document):
    """One case of a step: the step's revision against its baseline."""

    provider: str
    case: str
    outcome: str
    ratio: float | None
    low: float | None
    high: float | None
    trials: int
    cause_text: str | None


class StepItem(Document):
    """One measurement of a bisection; `aim` and `answer` are null if the search no longer counts it."""

    run_id: int
    revision: str
    baseline: str
    # verify, search, again or prove.
    aim: str | None
    # bad, good, skip or undecided.
    answer: str | None
    summary: str
    verdicts: list[StepVerdictItem]


class BisectionDocument(BisectionItem):
    """A bisection with its steps."""

    # From the good revision to the bad one, along first parents.
    revisions: list[str]
    # The revisions that may still be the culprit.
    suspects: list[str]
    # Its progress, or its result, in words.
    summary: str
    # How it ended, finer than `state`; null while it goes on or was stopped.
    ending: Ending | None
    # The run that is queued or being measured.
    pending_run_id: int | None
    steps: list[StepItem]


class QuarantineItem(Document):
    """A case that is measured and shown, and never reported."""

    id: int
    target: str
    device: str
    provider: str
    case: str
    since: datetime
    # A person, or kernelwatch.
    quarantined_by: str
    reason: str
    released_at: datetime | None
    released_by: str | None
    release_reason: str | None


Equal: TypeAlias = Literal["copy", "build"] | str


class RateItem(Document):
    """The measured false-alarm rate of equal code, next to the nominal one."""

    worker: str
    device: str
    metric: str
    # Two processes of one build (copy), or two builds of one source (build).
    kind: Equal
    # null for a sum over cases, like the next two.
    target: str | None
    provider: str | None
    case: str | None
    comparisons: int
    # Comparisons that differed at the nominal level.
    differed: int
    # Comparisons that would have been reported as a change.
    alarmed: int
    # `differed` over `comparisons`.
    rate: float | None
    # Of the exact 95 % interval of the rate.
    low: float | None
    high: float | None
    nominal_rate: float


class CalibrationDocument(Document):
    """Rates by worker, device and metric, the cases with the highest rates, and the quarantined cases."""

    metrics: list[RateItem]
    # The highest rate first.
    cases: list[RateItem]
    quarantines: list[QuarantineItem]


class CaseItem(Document):
    """A case, by whom and where it is measured; the parts of its name are null if another version wrote it."""

    # Without its metric.
    case: str
    op: str | None
    direction: str | None
    rows: int | None
    columns: int | None
    dtype: str | None
    weight_dtype: str | None
    devices: list[str]
    providers: list[str]
    metrics: list[str]


CellState: TypeAlias = Literal["measured", "invalid", "failed", "unsupported"] | str


class LeakPartItem(Document):
    """A part of a leak."""

    revision: str
    # The level from here on over that before the leak.
    ratio: float | None


PointState: TypeAlias = Literal["open", "checking", "confirmed", "closed"] | str


class ChangePointItem(Document):
    """A step or a leak in the history of one case."""

    id: int
    target: str
    device: str
    provider: str
    case: str
    # The first revision after the step.
    revision: str
    # The last measured revision before it.
    previous_revision: str
    # After over before; above 1 is slower.
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    # That were compared; null if it is not known.
    revisions: int | None
    # The parts of a leak, oldest first; null for a step.
    course: list[LeakPartItem] | None
    # notify or block.
    level: str
    state: PointState
    # Why it is in its state; null for an open one that nothing is known of.
    reason: str | None
    # A stable code of the reason.
    reason_code: str | None
    # What the code is about, by name.
    reason_args: dict[str, Any] | None
    found_at: datetime
    bisection_id: int | None
    regression_id: int | None


class ChannelItem(Document):
    """A channel of the settings, without its address."""

    name: str
    # What its URL begins with: `slack`, `mailto`, `https`.
    service: str
    # Why it cannot work as it is set, and the fix.
    trouble: str | None
    # Why the last message did not arrive.
    error: str | None
    failing_since: datetime | None
    # Nothing is sent to it before this time.
    paused_until: datetime | None
    # When the last message arrived.
    sent_at: datetime | None
    # Messages that wait to be sent.
    waiting: int


ComparisonMethod: TypeAlias = Literal["paired", "baseline", "sota", "chain", "unpaired"] | str


class CompareItem(Document):
    """Head over base at one case; a ratio of 1.05 is 5 % more time or bytes."""

    provider: str
    case: str
    metric: str
    # Of both medians: us, bytes or count.
    unit: str
    # `paired`: in turns, in one session.  `baseline` and `sota`: each in a session with the same third revision
    # or provider.  `chain`: through the revisions between.  `unpaired`: two medians, no ratio.
    method: ComparisonMethod
    # `unknown` where the interval does not decide it.
    direction: Literal["slower", "faster", "same", "unknown"]
    # The stored verdict, of a pair.
    outcome: str | None
    change: str
    ratio: float | None
    # Of the interval, which is wider for several sessions.
    low: float | None
    high: float | None
    base_median: float | None
    head_median: float | None
    # The third revision or provider.
    via: str | None
    # The runs on whose sessions it rests.
    run_ids: list[int]
    # Why it is not paired.
    reason: str | None


class CompareSideItem(Document):
    """One of the two revisions."""

    revision: str
    subject: str
    author: str
    committed_at: datetime
    pull: int | None
    # The run whose medians are shown where no session measured both.
    run_id: int
    worker: str | None


class CompareDocument(Document):
    """Two revisions on one device, case by case."""

    target: str
    device: str
    base: CompareSideItem
    head: CompareSideItem
    # Cases by direction.
    counts: dict[str, int]
    # Cases by method.
    methods: dict[str, int]
    # Between the two runs whose medians are shown.
    stack_changes: list[str]
    # Those two runs were measured by different versions of the recipe.
    recipe_changed: bool
    cases: list[CompareItem]


class ProviderPlanItem(Document):
    """One of the target's providers on a device."""

    name: str
    calls: dict[str, str]
    # A built-in provider, with the revision's torch, Triton, Quack or Liger.
    builtin: str | None
    # The mode of torch.compile.
    compile: str | None
    # Patches of Inductor's configuration.
    options: dict[str, bool | int | float | str]
    # Cases of the suite for which it has a function.
    cases: int


class DevicePlanItem(Document):
    """What a recipe measures on one device."""

    device: str
    suite: str
    cases: list[str]
    # Cases for which no provider of the recipe has a function.
    uncalled: list[str]
    providers: list[ProviderPlanItem]
    sota: str
    # Further providers to compare with.
    baselines: list[str]
    policy: dict[str, Any]
    policy_version: str


MovedBy: TypeAlias = Literal["commit", "stack", "nothing"] | str


class DriftItem(Document):
    """A configuration that changed: with a commit, with another stack, or with neither, as an autotuner chose again."""

    id: int
    target: str
    device: str
    provider: str
    case: str
    # What changed it; `nothing` where revision and stack were the same.
    by: MovedBy
    # The run that chose differently.
    run_id: int
    # The run before, of the same revision; `run_id` of a commit, as it measured the parent too.
    earlier_run_id: int
    # That both runs measured, or the commit.
    revision: str
    at: datetime
    before: str
    now: str


class EqualCodeItem(Document):
    """Comparisons of equal code."""

    comparisons: int
    alarmed_before: int
    alarmed: int


RegressionState: TypeAlias = (
    Literal["open", "acknowledged", "bisecting", "blamed", "fixed", "dismissed", "removed"] | str
)


class EventItem(Document):
    """One change of a regression."""

    at: datetime
    actor: str
    action: str
    # After the change.
    state: RegressionState
    text: str | None
    # The run that showed it.
    run_id: int | None


FactsState: TypeAlias = Literal["queued", "leased", "done", "failed", "unavailable", "skipped"] | str


class FindingItem(Document):
    """One line of what a check found."""

    text: str
    where: str
    cases: int
    # null if only a person can tell.
    worse: bool | None


class SourceItem(Document):
    """A definition in the files of the head.  `line` is that of the `def`, `first_line` that of its decorators."""

    # Relative to the top of the checkout.
    file: str
    line: int
    first_line: int
    last_line: int
    # The first range of lines in it that the head changed.
    changed: list[Any] | None


class KernelFindingsItem(Document):
    """What changed in one kernel for one architecture."""

    source: SourceItem
    # null for changes of a whole case.
    kernel: str | None
    arch: str
    changes: list[FindingItem]
    # Whether a limit of the recipe's `[facts]` is.
    broken: bool


class FindingsItem(Document):
    """What a check found, shortened to the first lines."""

    headline: str
    # Limits of the recipe's `[facts]`.
    broken: list[FindingItem]
    changes: list[FindingItem]
    uncompiled: list[FindingItem]
    notes: list[str]
    # Lines that were left out.
    more: int
    # The changes by their places in the source, where known.
    kernels: list[KernelFindingsItem]


class FactsCheckItem(Document):
    """A revision that is compiled without a GPU and compared with its baseline."""

    id: int
    revision: str
    # The revision compared with.
    base: str | None
    state: FactsState
    # Why there are no findings.
    reason: str | None
    created_at: datetime
    finished_at: datetime | None
    findings: FindingsItem | None


class FactsSideItem(Document):
    """One contender at one case."""

    # The run that measured it.
    run_id: int
    state: CellState
    # Tables, one row per kernel, only with `tables`.
    facts: dict[str, Any]


Repeatability: TypeAlias = Literal["lost", "gained"] | str


class FactsPairItem(Document):
    """What is known of the code of two revisions at one case."""

    device: str
    provider: str
    case: str
    # null if the code of a side is not known.
    same_code: bool | None
    differences: list[str]
    # Whether bitwise repeatability was lost or gained.
    repeatability: Repeatability | None
    # null where it was not measured.
    base: FactsSideItem | None
    head: FactsSideItem | None


class FactsDiffDocument(Document):
    """Two revisions without their times."""

    target: str
    base: str
    head: str
    # The check of exactly these two revisions.
    check: FactsCheckItem | None
    # Cases by what is known of the code.
    counts: dict[str, int]
    # By device, where the two were measured on different stacks, which explains other code.
    stack_changes: dict[str, list[str]]
    cases: list[FactsPairItem]


FoundBy: TypeAlias = Literal["pair", "pinned", "history"] | str


class GapItem(Document):
    """A mainline case that is slower than SOTA."""

    target: str
    device: str
    provider: str
    case: str
    # Of the latest run: head over SOTA.
    ratio: float | None
    # The same, in the run that first found it.
    ratio_at_start: float | None
    median: float | None
    sota_median: float | None
    # Of both medians: us, bytes or count.
    unit: str
    # The revision from which it is behind.
    since: str | None
    # The latest mainline run that measured it.
    run_id: int


GateAction: TypeAlias = Literal["fail", "warn", "pass"] | str

GateKind: TypeAlias = (
    Literal[
        "regression",
        "behind-sota",
        "inconclusive",
        "invalid",
        "failed",
        "unrepeatable",
        "slower-than-wrong",
        "new-far-behind",
    ]
    | str
)


class GateReasonItem(Document):
    """A number of cases on which the gate acts."""

    kind: GateKind
    action: GateAction
    # 0 if the run compared nothing.
    cases: int
    # The baseline has it already, so it never fails the gate.
    known_before: bool
    undecided: bool


GateState: TypeAlias = Literal["pass", "warn", "undecided", "fail"] | str


class GateItem(Document):
    """Whether the policy lets the revision be merged."""

    state: GateState
    exit_code: int
    # GitHub's value, like the next two.
    check_status: str
    conclusion: str | None
    commit_status: str
    # The most serious first.
    reasons: list[GateReasonItem]


class HoldingsDocument(Document):
    """Numbers of what is stored for a target."""

    revisions: int
    runs: int
    measurements: int
    regressions: int


class IncidentMemberItem(Document):
    """A regression of an incident."""

    id: int
    provider: str
    case: str
    ratio: float | None
    state: RegressionState


class IncidentItem(Document):
    """Regressions of several cases with one cause."""

    id: int
    target: str
    device: str
    # The earliest revision in it.
    revision: str
    opened_at: datetime
    # When the last of its regressions was fixed or dismissed.
    closed_at: datetime | None
    cause_kind: str | None
    cause_text: str | None
    # The largest first.
    regressions: list[IncidentMemberItem]


class IngestedItem(Document):
    """One measurement made elsewhere."""

    id: int
    batch_id: int
    # As it was sent.
    revision: str
    median: float | None
    # In `unit`.
    samples: list[float]


class IngestedSeriesDocument(Document):
    """What was sent of one series, the newest first.  It is never mixed with what kernelwatch measures."""

    target: str
    device: str
    provider: str
    case: str
    # Of `median` and `samples`: us, bytes or count.
    unit: str
    items: list[IngestedItem]
    next: str | None


class KernelTextItem(Document):
    """A text of compiled code, without the text itself."""

    contender: str
    case: str
    # Architecture of a facts check; null where the device compiled it.
    arch: str | None
    # Which kernel of the call, from 0.
    number: int
    # Its name; null for the code of the whole call.
    kernel: str | None
    kind: str
    # Of the text; equal texts have the same.
    sha256: str
    bytes: int


class KeyItem(Document):
    """An API key, without its secret."""

    id: int
    name: str
    # The beginning of the key, to recognise it.
    prefix: str
    # `read`, `ingest`, `run`, `triage` (with `:TARGET` for one target only), `worker` or `admin`; every scope on
    # a target includes reading it.
    scopes: list[str]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    # The last use, to the minute.
    used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    # The key that it replaces.
    rotated_from: int | None


class MeDocument(Document):
    """Who sent the request."""

    kind: ActorKind
    name: str
    # `read`, `ingest`, `run`, `triage` (with `:TARGET` for one target only), `worker` or `admin`; every scope on
    # a target includes reading it.
    scopes: list[str]
    # For people who signed in: what changes must carry as `X-CSRF-Token`.
    csrf_token: str | None


class UtilisationItem(Document):
    """How close a time is to the device's best; null if that does not apply or is not known."""

    # Share of the session's ceiling: the bandwidth of a plain copy.
    copy_share: float | None
    # The inputs stay in L2, so GB/s does not describe the memory.
    l2_resident: bool
    # SM clock cycles, at the clock read while this was measured.
    cycles: float | None
    # Tokens per second of a block.
    tokens_s: float | None
    # FLOP/s of a bf16 or fp16 block, as a share of the session's ceiling: a matrix product.
    utilisation: float | None


class MeasurementItem(Document):
    """One contender at one case."""

    contender: str
    role: str
    provider: str
    case: str
    metric: str
    state: CellState
    reason: str | None
    median: float | None
    # Of `median`: us, bytes or count.
    unit: str
    gb_s: float | None
    trials: int
    rounds: int
    # Tables, one row per kernel, only with `tables`.
    facts: dict[str, Any]
    speed: UtilisationItem


class NewKeyDocument(KeyItem):
    """A key that was made just now."""

    # The whole key.  It is shown once: store it now.
    key: str


class PersonItem(Document):
    """A person who has signed in."""

    id: int
    login: str
    issuer: str
    admin: bool
    created_at: datetime
    signed_in_at: datetime
    disabled_at: datetime | None


class PointItem(Document):
    """One mainline revision of a series."""

    run_id: int
    revision: str
    subject: str
    ordinal: int
    committed_at: datetime
    state: CellState
    median: float | None
    gb_s: float | None
    # The median of SOTA in the same run.
    sota_median: float | None
    outcome: str | None
    ratio: float | None
    low: float | None
    high: float | None
    stack_id: int | None
    # What changed in the stack since the previous point.
    stack_changes: list[str]


class PolicyItem(Document):
    """One version of a policy."""

    # SHA-256; `policy_version` of the verdicts that it made.
    digest: str
    created_at: datetime


class PolicyDocument(PolicyItem):
    """One version of a policy, as it was when it made verdicts."""

    values: dict[str, Any]


class ProgressItem(Document):
    """How far a run is."""

    id: int
    state: RunState
    # Current step of the worker.
    stage: str | None
    attempt: int
    max_attempts: int
    worker: str | None
    # Why it waits, failed, was skipped, held, superseded or cancelled.
    reason: str | None
    # 0 while it is measured, 1 if it is the next of its device; null while it is held, and after its end.
    position: int | None
    # Expected seconds until it ends, from recent runs of the target on the device; null if that is unknown.
    eta_s: float | None


class QueueItem(Document):
    """An unfinished run, with its place in the queue."""

    id: int
    target: str
    revision: str
    subject: str
    # The revision compared with: the parent of one on the mainline, else the merge base.
    baseline: str | None
    # The last revision that was not slow, if the baseline is slow.
    last_good: str | None
    # The pinned baseline.
    pinned: str | None
    pull: int | None
    device: str
    suite: str
    purpose: Purpose
    # The bisection of which the run is a step.
    bisection_id: int | None
    state: RunState
    # Current step of the worker.
    stage: str | None
    # Why it failed, was skipped, held, superseded or cancelled.
    reason: str | None
    priority: int
    attempt: int
    max_attempts: int
    worker: str | None
    trusted: bool
    sandboxed: bool | None
    # The controls of the first session failed, so it was measured again.
    repeated: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    # Cases by outcome; in lists only with `expand`.
    counts: dict[str, int] | None = None
    # Cases behind SOTA; in lists only with `expand`.
    behind_sota: int | None = None
    # 0 while it is measured, 1 if it is the next of its device; null while it is held, and after its end.
    position: int | None
    # Expected seconds until it ends, from recent runs of the target on the device; null if that is unknown.
    eta_s: float | None


class RecipeDocument(Document):
    """What a recipe measures."""

    stack: str
    # The commands that build a revision.
    build: list[str]
    # A commit that touches none of these paths is skipped.
    matter: list[str]
    ignore: list[str]
    adapters: list[str]
    pinned: str | None
    devices: list[DevicePlanItem]


class RegressionDocument(Document):
    """A regression with its history, its incident and its bisections."""

    id: int
    incident_id: int | None
    target: str
    device: str
    provider: str
    case: str
    ratio: float | None
    low: float | None
    high: float | None
    state: RegressionState
    found_by: FoundBy
    # The run that found it.
    run_id: int
    # The first revision that was found to be slow.
    revision: str
    # The revision that it is slower than.
    last_good: str | None
    # The revision that caused it.
    culprit: str | None
    cause_kind: str | None
    cause_text: str | None
    opened_at: datetime
    fixed_at: datetime | None
    # The revision that fixed it.
    fixed_by: str | None
    assignee: str | None
    due_at: datetime | None
    # Why it was acknowledged or dismissed.
    reason: str | None
    # null if the acknowledgement does not end.
    acknowledged_until: datetime | None
    # The oldest first.
    events: list[EventItem]
    incident: IncidentItem | None
    # The newest first.
    bisections: list[BisectionItem]


class RegressionItem(Document):
    """A confirmed regression of a mainline."""

    id: int
    incident_id: int | None
    target: str
    device: str
    provider: str
    case: str
    ratio: float | None
    low: float | None
    high: float | None
    state: RegressionState
    found_by: FoundBy
    # The run that found it.
    run_id: int
    # The first revision that was found to be slow.
    revision: str
    # The revision that it is slower than.
    last_good: str | None
    # The revision that caused it.
    culprit: str | None
    cause_kind: str | None
    cause_text: str | None
    opened_at: datetime
    fixed_at: datetime | None
    # The revision that fixed it.
    fixed_by: str | None
    assignee: str | None
    due_at: datetime | None
    # Why it was acknowledged or dismissed.
    reason: str | None
    # null if the acknowledgement does not end.
    acknowledged_until: datetime | None
    # The oldest first; in lists only with `expand`.
    events: list[EventItem] | None = None


class ReplayGroupItem(Document):
    """The counts of one device, provider and metric."""

    cases: int
    # Cases that were reported as a change.
    alarmed: int
    stay: int
    new: int
    missed: int
    # Dismissed by a person, and not reported by this policy.
    spared: int
    # This policy needs trials that were never made.
    undecided: int
    trials_made: int
    trials_used: int
    trials_lacking: int
    behind_sota_before: int
    behind_sota: int
    slower_than_pinned_before: int
    slower_than_pinned: int
    device: str
    provider: str
    metric: str


class ReplaySumItem(Document):
    """Counts over many cases."""

    cases: int
    # Cases that were reported as a change.
    alarmed: int
    stay: int
    new: int
    missed: int
    # Dismissed by a person, and not reported by this policy.
    spared: int
    # This policy needs trials that were never made.
    undecided: int
    trials_made: int
    trials_used: int
    trials_lacking: int
    behind_sota_before: int
    behind_sota: int
    slower_than_pinned_before: int
    slower_than_pinned: int


class ReplayedItem(Document):
    """A case that this policy decides differently, or that the stored trials cannot decide."""

    run_id: int
    target: str
    revision: str
    device: str
    pull: int | None
    provider: str
    case: str
    # new, missed, spared or undecided.
    fate: str
    outcome_before: str | None
    outcome: str
    ratio: float | None
    low: float | None
    high: float | None
    reason: str
    trials_made: int
    trials_used: int
    trials_lacking: int


class ReplayDocument(Document):
    """A policy applied to stored runs."""

    # By device.
    policy_versions: dict[str, str]
    runs: int
    since: datetime | None
    until: datetime | None
    total: ReplaySumItem
    groups: list[ReplayGroupItem]
    cases: list[ReplayedItem]
    equal_code: EqualCodeItem


class RequestedRunsDocument(Document):
    """The runs of a revision, one for each device."""

    items: list[RunItem]
    # The ids of those that are new.
    created: list[int]


class RevisionDocument(Document):
    """A revision with what was measured and compiled of it."""

    sha: str
    short: str
    parent: str | None
    # Position on the mainline, the oldest 0; null off it.
    ordinal: int | None
    subject: str
    author: str
    committed_at: datetime
    # Files changed since the first parent; at most the first 200.
    paths: list[str]
    # The newest first, without steps of bisections and calibrations.
    runs: list[RunItem]
    # Comparisons of its compiled code, the newest first.
    checks: list[FactsCheckItem]


class RevisionItem(Document):
    """One commit, or one release."""

    sha: str
    short: str
    parent: str | None
    # Position on the mainline, the oldest 0; null off it.
    ordinal: int | None
    subject: str
    author: str
    committed_at: datetime
    # Files changed since the first parent; at most the first 200.
    paths: list[str]
    # In lists only with `expand`; at most the newest 20.
    runs: list[RunItem] | None = None


class SummaryItem(Document):
    """The geometric mean over cases of head over baseline, with its interval over trials."""

    provider: str
    op: str
    direction: str
    metric: str
    cases: int
    ratio: float | None
    low: float | None
    high: float | None
    trials: int


class UnsupportedItem(Document):
    """A case that its provider does not support: neither measured nor judged."""

    provider: str
    case: str
    reason: str


class VerdictItem(Document):
    """The head against one baseline at one case; a ratio of 1.05 is 5 % more time or bytes."""

    provider: str
    case: str
    metric: str
    # `parent`; `wrong_parent`: times alone, if the parent or the head computes something else; `last_good`: the
    # last revision that was not slow, if the parent is slow; `pinned`; `sota` and `best`: the fastest other
    # provider, for which `behind_sota` counts and `outcome` does not.
    baseline_kind: BaselineKind
    # A commit, a release or a provider.
    baseline: str | None
    outcome: str
    # The ratio in words.
    change: str
    # Head over baseline; of counts exp(0.01 x difference).
    ratio: float | None
    # Of counts: head minus baseline.
    difference: int | None
    low: float | None
    high: float | None
    trials: int
    rounds: int
    # The screening trials looked like a change.
    suspected: bool
    confirmed: bool
    # Of the confirmation trials if there are any, else of the screening.
    p: float | None
    # p corrected over the run (Benjamini-Hochberg).
    q: float | None
    # The smallest relative change that matters at this case; of counts what their ratio must exceed.
    smallest_change: float
    # Ratio of the A/A control; only for the parent.
    control_ratio: float | None
    # Which comparison of equal code left it inconclusive: control, offset, machine or earlier.
    doubt: str | None
    behind_sota: bool
    quarantined: bool
    # The baseline fails at this case too.
    known_before: bool
    # Slower than the last good revision, as its baseline was already.
    slow_before: bool
    slower_than_pinned: bool
    # Whether bitwise repeatability was lost or gained.
    repeatability: Repeatability | None
    # code, baseline, stack, machine, noise or unknown.
    cause_kind: str | None
    cause_text: str | None
    # The facts leave no alternative.
    cause_certain: bool | None
    # Which property of the code explains it.
    cause_by: str | None
    # Where the code that differs from the parent's is defined.
    source: SourceItem | None
    # SHA-256 of the policy that decided it.
    policy_version: str | None
    # A stable code; null for verdicts of old versions.
    cause_code: str | None
    reason: str
    # A stable code; null for verdicts of old versions.
    reason_code: str | None
    # The regression that this run opened for it.
    regression_id: int | None
    incident_id: int | None
    # Its cause, its reason and notes on its figures, for people.
    summary: str


class RunDocument(Document):
    """A run with everything that was measured and decided."""

    id: int
    target: str
    revision: str
    subject: str
    # The revision compared with: the parent of one on the mainline, else the merge base.
    baseline: str | None
    # The last revision that was not slow, if the baseline is slow.
    last_good: str | None
    # The pinned baseline.
    pinned: str | None
    pull: int | None
    device: str
    suite: str
    purpose: Purpose
    # The bisection of which the run is a step.
    bisection_id: int | None
    state: RunState
    # Current step of the worker.
    stage: str | None
    # Why it failed, was skipped, held, superseded or cancelled.
    reason: str | None
    priority: int
    attempt: int
    max_attempts: int
    worker: str | None
    trusted: bool
    sandboxed: bool | None
    # The controls of the first session failed, so it was measured again.
    repeated: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    # Cases by outcome.
    counts: dict[str, int]
    # Cases behind SOTA.
    behind_sota: int
    url: str
    author: str
    committed_at: datetime
    # The result in one line.
    headline: str
    # What a reader of the result must know, in sentences.
    notes: list[str]
    gate: GateItem
    # Cases that are no longer bitwise repeatable.
    lost_repeatability: int
    sota: str
    # The last lines of a build that failed.
    log: str | None
    # Versions.
    stack: dict[str, Any]
    stack_digest: str | None
    telemetry: dict[str, Any]
    # The best that the device did in this session; empty on a CPU.
    ceilings: dict[str, float]
    policy: dict[str, Any]
    policy_version: str | None
    # One for each metric, provider, op and direction.
    summaries: list[SummaryItem]
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
    median: float | None
    # Of `median` and the samples: us, bytes or count.
    unit: str
    # null for a round that was lost.
    screening: list[list[float | None]]
    # Of the trials that only confirm a suspicion.
    confirmation: list[list[float | None]]
    # Of the rounds with contenders that are not exact enough.
    apart: list[list[float | None]]


class SeriesDocument(Document):
    """One case over the mainline, oldest revision first."""

    target: str
    case: str
    provider: str
    device: str
    metric: str
    # Of `median` and `sota_median`: us, bytes or count.
    unit: str
    points: list[PointItem]


class SeriesItem(Document):
    """A case that a provider was measured at on one device."""

    device: str
    provider: str
    case: str
    metric: str
    unit: str
    last_run_id: int


class StudyClaimsItem(Document):
    """How many claims of the source hold."""

    hold: int
    fail: int
    undecided: int


class StudyConclusionItem(Document):
    """A claim of the source, and what was measured."""

    claim: str
    found: str
    # null: these measurements cannot decide it.
    holds: bool | None


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
    series: dict[str, list[float | None]]
    limit: StudyLimitItem | None


class StudySourceItem(Document):
    """Where a result was published."""

    title: str
    url: str
    hardware: str


class StudyItem(Document):
    """A published result that is measured again."""

    name: str
    title: str
    question: str
    source: StudySourceItem
    # The session to read first: a full one before a quick one, then the newest.
    shown: int | None
    # In that session; null if it cannot be evaluated.
    claims: StudyClaimsItem | None
    # How many are stored, by device.
    sessions: dict[str, int]


class StudyRecordItem(Document):
    """One arm at one case in one trial."""

    step: str
    trial: int
    case: str
    # `control` is a second copy of the first arm of the step.
    arm: str
    state: str
    reason: str | None
    unit: str
    median: float | None
    # One for each round; null for a round that was dropped.
    samples: list[float | None]


class StudySessionItem(Document):
    """A study as it was measured once, on one device."""

    id: int
    study: str
    device: str
    # The form with fewer cases and one trial.
    quick: bool
    began_at: datetime
    # When its last record arrived.
    updated_at: datetime
    # Of kernelwatch, as `git describe` names it.
    revision: str | None
    # Hash of the code that measured.
    kernels: str | None
    # Cases measured, counted once for each step and trial.
    done: int
    # Those that the study asks for.
    total: int


class StudyStackItem(Document):
    """The versions that some arms ran with."""

    arms: list[str]
    # As the device names itself.
    device: str
    versions: dict[str, str]


class StudyTableItem(Document):
    """A table of texts; the first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str


class StudySessionDocument(StudySessionItem):
    """A session with what follows from it, and its records."""

    title: str
    machine: dict[str, Any]
    stacks: list[StudyStackItem]
    # How far two copies of equal code differ, relative, in the median.
    control: float | None
    findings: list[StudyConclusionItem]
    tables: list[StudyTableItem]
    figures: list[StudyFigureItem]
    records: list[StudyRecordItem]


class SubscriptionItem(Document):
    """A channel that is notified of events."""

    id: int
    channel: str
    # null for all targets, and for workers.
    target: str | None
    # Only devices of this pattern; null for all.
    device: str | None
    # The smallest severity: `pass`, `warn` or `fail`.
    severity: GateAction
    # Only these kinds of events; null for all.
    kinds: list[str] | None
    created_at: datetime
    created_by: str
    # Events that wait to be sent.
    waiting: int
    # When its last message arrived.
    sent_at: datetime | None


class TargetItem(Document):
    """A watched repository or package."""

    name: str
    kind: TargetKind
    # URL or folder of the repository or index, without credentials.
    location: str
    package: str | None
    branch: str | None
    # The path of its repository on the forge: `owner/name`.
    forge: str | None
    forge_kind: ForgeKind | None
    trusted: bool
    allow_unsandboxed: bool
    created_at: datetime
    # When the remote is polled next.
    poll_at: datetime
    poll_failures: int
    poll_error: str | None
    # Only those who were granted it know of it.
    private: bool
    # Size of the mirror of its repository; null before it is known.
    mirror_bytes: int | None
    # No new revisions are taken since this time.
    paused_at: datetime | None
    # No comments and checks are sent before this time.
    forge_paused_until: datetime | None
    # Why sending was paused last.
    forge_error: str | None
    # The devices of its recipe.
    devices: list[str]
    # In lists only with `expand`.
    open_regressions: int | None = None
    # Mainline cases that are slower than SOTA; in lists only with `expand`.
    behind_sota: int | None = None


class TrialDocument(Document):
    """The result of a test."""

    # Whether the channel took it.
    arrived: bool
    # Why it did not.
    error: str | None
    took_s: float


class WeeklyCountItem(Document):
    """Numbers of cases, not limited as the lists are."""

    slower: int
    faster: int
    opened: int
    fixed: int
    dismissed: int
    accepted: int
    open: int
    # Of the open ones.
    unassigned: int
    gaps_opened: int
    gaps_closed: int
    # Configurations that changed without a commit.
    drifts: int


class WeeklyDismissedItem(Document):
    """Regressions that a person dismissed: each was a false alarm."""

    # Regressions that were fixed, accepted or dismissed in the week.
    decided: int
    dismissed: int
    rate: float | None
    # Of the exact 95 % interval of the rate.
    low: float | None
    high: float | None
    summary: str


class WeeklyDriftItem(Document):
    """A configuration that changed without a commit: two sessions of one revision and one stack chose differently."""

    target: str
    device: str
    provider: str
    case: str
    # The run whose session chose differently.
    run_id: int
    # The run before, of the same revision and stack.
    earlier_run_id: int
    # That both runs measured.
    revision: str
    at: datetime
    before: str
    now: str


class WeeklyEqualCodeItem(Document):
    """Comparisons of equal code: every alarm is a false one."""

    comparisons: int
    # Would have been reported as a change.
    alarmed: int
    rate: float | None
    # Of the exact 95 % interval of the rate.
    low: float | None
    high: float | None
    summary: str


class WeeklyFailureItem(Document):
    """A run of the mainline that failed."""

    run_id: int
    target: str
    device: str
    revision: str
    subject: str
    at: datetime
    # The build of the revision failed; else the run was given up.
    build: bool
    reason: str | None


class WeeklyGapItem(Document):
    """A case that fell behind SOTA, or is no longer behind."""

    target: str
    device: str
    provider: str
    case: str
    at: datetime
    # Times SOTA then; above 1 is slower.
    ratio: float
    # When the gap was last recorded before.
    ratio_before: float | None
    # How much longer one call takes than SOTA's, in us.
    stake_us: float | None
    run_id: int
    revision: str
    subject: str


class WeeklyMeasuredItem(Document):
    """What was measured."""

    # Finished runs, for any purpose.
    runs: int
    revisions: int
    # Pull requests.
    pulls: int
    # Runs that failed.
    failed: int


class WeeklyMoverItem(Document):
    """Cases of a metric that one revision moved: confirmed changes against the parent revisions of the week."""

    target: str
    device: str
    metric: str
    cases: int
    # Time at stake: how much longer one call of each case takes, in us; below 0 it is faster.
    stake_us: float
    # Of the case with the most time at stake, as are the next three.
    provider: str
    case: str
    case_stake_us: float
    # Of all its changes of the week, one after the other; above 1 is slower.
    ratio: float
    run_id: int
    # Of its largest change, if several revisions moved it.
    revision: str
    subject: str
    cause: str | None


class WeeklyRegressionItem(Document):
    """Regressions with one cause: an incident, or a regression without one."""

    incident_id: int | None
    regression_ids: list[int]
    target: str
    device: str
    cases: int
    # The one with the most time at stake.
    case: str
    # Of that case, as it was opened.
    ratio: float
    # Time at stake in us, summed over the cases: how much longer one call of each takes.  null without a time.
    stake_us: float | None
    # At the end of the week.
    state: RegressionState
    # Of the run that showed it.
    revision: str
    subject: str
    run_id: int
    opened_at: datetime
    cause: str | None
    # Today's.
    assignee: str | None
    due_at: datetime | None
    # When it was fixed, dismissed or accepted.
    at: datetime | None
    # Who dismissed or accepted it.
    who: str | None
    # Why it was dismissed or accepted.
    reason: str | None
    # The revision that fixed it.
    fixed_by: str | None


class WeeklyReleaseItem(Document):
    """A version of a package that was released in the week, or measured in it for the first time."""

    target: str
    version: str
    # When it was released.
    at: datetime
    # The run of the week that measured it first; null if there was none.
    run_id: int | None


class WeeklyTotalItem(Document):
    """What one pass over the cases of a target takes longer than a week before: each case is called once."""

    target: str
    device: str
    metric: str
    slower_cases: int
    slower_us: float
    faster_cases: int
    # Below 0.
    faster_us: float
    net_us: float


class WeeklyDocument(Document):
    """What happened in a week.  Lists have at most 20 entries, the most time at stake first."""

    week: str
    first_day: date
    last_day: date
    # A week that is not finished goes on until Sunday, 24:00 UTC.
    finished: bool
    target: str | None
    device: str | None
    title: str
    headline: str
    # The days, what was measured, and whether the week is over.
    summary: str
    counts: WeeklyCountItem
    measured: WeeklyMeasuredItem
    totals: list[WeeklyTotalItem]
    slower: list[WeeklyMoverItem]
    faster: list[WeeklyMoverItem]
    opened: list[WeeklyRegressionItem]
    fixed: list[WeeklyRegressionItem]
    dismissed: list[WeeklyRegressionItem]
    accepted: list[WeeklyRegressionItem]
    # At the end of the week, with those that were accepted.
    open: list[WeeklyRegressionItem]
    gaps_opened: list[WeeklyGapItem]
    gaps_closed: list[WeeklyGapItem]
    failed: list[WeeklyFailureItem]
    releases: list[WeeklyReleaseItem]
    # The newest first.
    drifts: list[WeeklyDriftItem]
    equal_code: WeeklyEqualCodeItem
    false_alarms: WeeklyDismissedItem


class WorkerItem(Document):
    """A process that owns a device."""

    name: str
    device: str
    description: str
    # Why the sandbox does not work there; null if it works.
    sandbox_error: str | None
    started_at: datetime
    seen_at: datetime
    online: bool
    # The run that it measures.
    run_id: int | None
    # It takes no further run since this time.
    paused_at: datetime | None
    paused_by: str | None
