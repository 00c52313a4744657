"""Targets, their revisions, the history of one case, and the distance to SOTA."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from pydantic import Field

from kernels.cases import Case
from service.db.models import FactsCheck, Revision, Target
from service.domain.metrics import metric_of
from service.domain.policy.policy import Policy
from service.domain.policy.recipes import Provider, Recipe
from service.domain.states import CellState, ForgeKind, MovedBy, TargetKind
from service.domain.text import without_credentials
from service.reports.report import readable
from service.reports.schema.base import Document, Moment, Number, columns, moment
from service.reports.schema.code import FactsCheckItem
from service.reports.schema.runs import RunItem
from service.reports.views import Drift, GapView, MeasuredCase, MeasuredSeries, Point


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

    @classmethod
    def of(cls, target: Target, open_regressions: int | None = None, behind_sota: int | None = None) -> Self:
        recipe = readable(target.recipe.text) if target.recipe else None
        named = {
            "location": without_credentials(target.location),
            "forge_paused_until": target.forge_paused_until or None,
            "devices": list(recipe.devices) if recipe else [],
            "open_regressions": open_regressions,
            "behind_sota": behind_sota,
        }
        return cls.model_validate(columns(target) | named)


class TargetDocument(TargetItem):
    """A target with its recipe."""

    recipe: str | None
    open_regressions: int
    behind_sota: int = Field(description="Mainline cases that are slower than SOTA.")

    @classmethod
    def whole(cls, target: Target, *, open_regressions: int, behind_sota: int) -> Self:
        return cls(
            **TargetItem.of(target, open_regressions, behind_sota).model_dump(),
            recipe=target.recipe.text if target.recipe else None,
        )


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

    @classmethod
    def planned(cls, name: str, provider: Provider, cases: Sequence[Case]) -> Self:
        return cls(
            name=name,
            calls=dict(provider.calls),
            builtin=provider.builtin,
            compile=provider.compile.mode.value if provider.compile else None,
            options=dict(provider.compile.options) if provider.compile else {},
            cases=sum(map(provider.offers, cases)),
        )


class DevicePlanItem(Document):
    """What a recipe measures on one device."""

    device: str
    suite: str
    cases: list[str]
    uncalled: list[str] = Field(description="Cases for which no provider of the recipe has a function.")
    providers: list[ProviderPlanItem]
    sota: str
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

    @classmethod
    def planned(cls, recipe: Recipe, policies: Mapping[str, Policy]) -> Self:
        """`policies` are those in force, by device."""
        return cls(
            stack=recipe.base.stack,
            build=list(recipe.build.commands),
            matter=list(recipe.paths.matter),
            ignore=list(recipe.paths.ignore),
            adapters=list(recipe.adapters),
            pinned=recipe.pinned,
            devices=[_on(recipe, device, policy) for device, policy in policies.items()],
        )


def _on(recipe: Recipe, device: str, policy: Policy) -> DevicePlanItem:
    cases, own = recipe.cases(recipe.suite_on(device)), recipe.providers_on(device)
    return DevicePlanItem(
        device=device,
        suite=recipe.suite_on(device),
        cases=[str(case) for case in cases],
        uncalled=[str(case) for case in cases if not any(one.offers(case) for one in own.values())],
        providers=[ProviderPlanItem.planned(name, one, cases) for name, one in own.items()],
        sota=recipe.sota_on(device),
        baselines=list(recipe.rivals_on(device)),
        policy=policy.model_dump(mode="json"),
        policy_version=policy.digest,
    )


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

    @classmethod
    def of(cls, row: Revision, runs: Iterable[RunItem] | None = None) -> Self:
        return cls.model_validate(columns(row) | {"short": row.short, "runs": None if runs is None else list(runs)})


class RevisionDocument(RevisionItem):
    """A revision with what was measured and compiled of it."""

    runs: list[RunItem] = Field(description="The newest first, without steps of bisections and calibrations.")
    checks: list[FactsCheckItem] = Field(description="Comparisons of its compiled code, the newest first.")

    @classmethod
    def whole(cls, row: Revision, runs: Iterable[RunItem], checks: Iterable[FactsCheck]) -> Self:
        found = {"runs": list(runs), "checks": [FactsCheckItem.of(one) for one in checks]}
        return cls.model_validate(columns(row) | {"short": row.short} | found)


class SeriesItem(Document):
    """A case that a provider was measured at on one device."""

    device: str
    provider: str
    case: str
    metric: str
    unit: str
    last_run_id: int

    @classmethod
    def of(cls, found: MeasuredSeries) -> Self:
        named = {"device": found.device, "provider": found.provider, "case": found.case}
        metric = found.metric
        return cls(**named, metric=metric.value, unit=metric.unit, last_run_id=found.last_run_id)


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

    @classmethod
    def of(cls, found: MeasuredCase) -> Self:
        one = _parsed(found.case)
        return cls(
            case=found.case,
            op=one.op if one else None,
            direction=one.direction if one else None,
            rows=one.rows if one else None,
            columns=one.cols if one else None,
            dtype=one.dtype if one else None,
            weight_dtype=one.weight_dtype if one else None,
            devices=list(found.devices),
            providers=list(found.providers),
            metrics=[metric.value for metric in found.metrics],
        )


def _parsed(case: str) -> Case | None:
    try:
        return Case.parse(case)
    except ValueError:
        return None


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

    @classmethod
    def of(cls, points: Sequence[Point], *, target: str, case: str, provider: str, device: str) -> Self:
        metric = metric_of(case)
        shown = [PointItem.model_validate(point) for point in points]
        return cls(
            target=target,
            case=case,
            provider=provider,
            device=device,
            metric=metric.value,
            unit=metric.unit,
            points=shown,
        )


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

    @classmethod
    def of(cls, found: GapView) -> Self:
        gap = found.gap
        return cls(
            target=found.target,
            device=gap.device,
            provider=gap.provider,
            case=gap.case,
            ratio=gap.ratio_now,
            ratio_at_start=gap.ratio_then,
            median=gap.own,
            sota_median=gap.sota,
            unit=gap.metric.unit,
            since=found.since.sha if found.since else None,
            run_id=gap.last_run_id,
        )


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

    @classmethod
    def of(cls, found: Drift) -> Self:
        return cls(
            id=found.id,
            target=found.target,
            device=found.device,
            provider=found.provider,
            case=found.case,
            by=found.moved_by,
            run_id=found.run_id,
            earlier_run_id=found.earlier_run_id,
            revision=found.sha,
            at=moment(found.at),
            before=found.before,
            now=found.now,
        )
