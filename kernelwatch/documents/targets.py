"""Targets, their revisions and histories, the distance to SOTA, and measurements made elsewhere."""

from typing import Any

from pydantic import Field

from .base import Better, CellState, Document, ForgeKind, Missing, Moment, MovedBy, Number, TargetKind
from .runs import FactsCheckItem, RunItem


class TargetItem(Document):
    """A watched repository or package."""

    name: str
    kind: TargetKind
    location: str = Field(description="URL or folder of the repository or index, without credentials.")
    package: str | None
    branch: str | None
    forge: str | None = Field(description="The path of its repository on the forge: `owner/name`.")
    forge_kind: ForgeKind | None
    trusted: bool
    allow_unsandboxed: bool
    created_at: Moment
    poll_at: Moment = Field(description="When the remote is polled next.")
    poll_failures: int
    poll_error: str | None
    private: bool = Field(description="Only those who were granted it know of it.")
    mirror_bytes: int | None = Field(description="Size of the mirror of its repository; null before it is known.")
    paused_at: Moment | None = Field(description="No new revisions are taken since this time.")
    forge_paused_until: Moment | None = Field(description="No comments and checks are sent before this time.")
    forge_error: str | None = Field(description="Why sending was paused last.")
    devices: list[str] = Field(description="The devices of its recipe.")
    open_regressions: int | None = Field(None, description="In lists only with `expand`.")
    behind_sota: int | None = Field(
        None, description="Mainline cases that are slower than SOTA; in lists only with `expand`."
    )


class TargetDocument(TargetItem):
    """A target with its recipe."""

    recipe: str | None
    open_regressions: int
    behind_sota: int = Field(description="Mainline cases that are slower than SOTA.")


class AddedTargetDocument(TargetDocument):
    """A target that was added."""

    queued: int = Field(description="Runs that were queued for its newest revisions.")
    existed: bool = Field(description="There was a target of this name and location: it is now as described.")
    without_worker: list[str] = Field(description="Devices of its recipe on which no worker has ever run.")


class HoldingsDocument(Document):
    """Numbers of what is stored for a target."""

    revisions: int
    runs: int
    measurements: int
    regressions: int


class ProviderPlanItem(Document):
    """One of the target's providers on a device."""

    name: str
    calls: dict[str, str] = Field(examples=[{"rmsnorm.fwd": "norms.rms:rmsnorm"}])
    builtin: str | None = Field(description="A built-in provider, with the revision's torch, Triton, Quack or Liger.")
    compile: str | None = Field(description="The mode of torch.compile.")
    options: dict[str, bool | int | float | str] = Field(description="Patches of Inductor's configuration.")
    cases: int = Field(description="Cases of the suite for which it has a function.")


class DevicePlanItem(Document):
    """What a recipe measures on one device."""

    device: str
    suite: str
    cases: list[str]
    uncalled: list[str] = Field(description="Cases for which no provider of the recipe has a function.")
    providers: list[ProviderPlanItem]
    sota: str | None = Field(description="Null where only functions are measured, which have none.")
    baselines: list[str] = Field(description="Further providers to compare with.")
    policy: dict[str, Any]
    policy_version: str


class RecipeDocument(Document):
    """What a recipe measures."""

    stack: str
    build: list[str] = Field(description="The commands that build a revision.")
    matter: list[str] = Field(description="A commit that touches none of these paths is skipped.")
    ignore: list[str]
    adapters: list[str]
    pinned: str | None
    devices: list[DevicePlanItem]


class RevisionItem(Document):
    """One commit, or one release."""

    sha: str
    short: str
    parent: str | None
    ordinal: int | None = Field(description="Position on the mainline, the oldest 0; null off it.")
    subject: str
    author: str
    committed_at: Moment
    paths: list[str] = Field(description="Files changed since the first parent; at most the first 200.")
    runs: list[RunItem] | None = Field(None, description="In lists only with `expand`; at most the newest 20.")


class RevisionDocument(RevisionItem):
    """A revision with what was measured and compiled of it."""

    runs: list[RunItem] = Field(description="The newest first, without steps of bisections and calibrations.")
    checks: list[FactsCheckItem] = Field(description="Comparisons of its compiled code, the newest first.")


class SeriesItem(Document):
    """A case that a provider was measured at on one device."""

    device: str
    provider: str
    case: str
    metric: str
    unit: str
    last_run_id: int


class CaseItem(Document):
    """A case, by whom and where it is measured; the parts of its name are null if another version wrote it."""

    case: str = Field(description="Without its metric.")
    op: str | None
    direction: str | None
    rows: int | None
    columns: int | None
    dtype: str | None
    weight_dtype: str | None
    devices: list[str]
    providers: list[str]
    metrics: list[str]


class PointItem(Document):
    """One mainline revision of a series."""

    run_id: int
    revision: str
    subject: str
    ordinal: int
    committed_at: Moment
    state: CellState
    median: Number
    gb_s: Number
    sota_median: Number = Field(description="The median of SOTA in the same run.")
    outcome: str | None
    ratio: Number
    low: Number
    high: Number
    stack_id: int | None
    stack_changes: list[str] = Field(
        description="What changed in the stack since the previous point.", examples=[["torch 2.11.0 → 2.13.0"]]
    )


class SeriesDocument(Document):
    """One case over the mainline, oldest revision first."""

    target: str
    case: str
    provider: str
    device: str
    metric: str
    unit: str = Field(description="Of `median` and `sota_median`: us, bytes or count.")
    points: list[PointItem]


class GapItem(Document):
    """A mainline case that is slower than SOTA."""

    target: str
    device: str
    provider: str
    case: str
    ratio: Number = Field(description="Of the latest run: head over SOTA.")
    ratio_at_start: Number = Field(description="The same, in the run that first found it.")
    median: Number
    sota_median: Number
    unit: str = Field(description="Of both medians: us, bytes or count.")
    since: str | None = Field(description="The revision from which it is behind.")
    run_id: int = Field(description="The latest mainline run that measured it.")


class DriftItem(Document):
    """A configuration that changed: with a commit, with another stack, or with neither, as an autotuner chose again."""

    id: int
    target: str
    device: str
    provider: str
    case: str
    by: MovedBy = Field(description="What changed it; `nothing` where revision and stack were the same.")
    run_id: int = Field(description="The run that chose differently.")
    earlier_run_id: int = Field(
        description="The run before, of the same revision; `run_id` of a commit, as it measured the parent too."
    )
    revision: str = Field(description="That both runs measured, or the commit.")
    at: Moment
    before: str
    now: str


class BatchItem(Document):
    """Measurements that somebody made elsewhere and sent in one request."""

    id: int
    target: str
    device: str
    tool: str
    machine: str
    measured_at: Moment | None
    stack: dict[str, Any]
    notes: dict[str, Any]
    sent_by: str
    received_at: Moment
    measurements: int
    samples: int


class IngestedItem(Document):
    """One measurement made elsewhere."""

    id: int
    batch_id: int
    revision: str = Field(description="As it was sent.")
    unit: str = Field(description="Of `median` and `samples`: `us`, `bytes`, `count`, or as it was sent.")
    better: Better
    median: Number = Field(description="Null where `missing` says why.")
    samples: list[float]
    missing: Missing | None = Field(description="Why there are no samples.")


class IngestedSeriesDocument(Document):
    """What was sent of one series, the newest first.  It is never mixed with what kernelwatch measures."""

    target: str
    device: str
    provider: str
    case: str
    unit: str = Field(description="Of the newest item; us, bytes or count for a case.")
    items: list[IngestedItem]
    next: str | None
