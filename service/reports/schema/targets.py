"""Targets, their revisions, the history of one case, measurements made elsewhere, and the distance to SOTA."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kernels.cases import AnyCase, Case
from kernelwatch.documents.base import moment
from kernelwatch.documents.runs import RunItem
from kernelwatch.documents.targets import (
    BatchItem,
    CaseItem,
    DevicePlanItem,
    GapItem,
    IngestedItem,
    IngestedSeriesDocument,
    PointItem,
    ProviderPlanItem,
    RecipeDocument,
    RevisionDocument,
    RevisionItem,
    SeriesItem,
    TargetDocument,
    TargetItem,
)
from service.db.models import FactsCheck, IngestBatch, IngestedMeasurement, Revision, Target
from service.domain.ingest import unit_of, unpack_samples
from service.domain.metrics import metric_of
from service.domain.policy.policy import Policy
from service.domain.policy.recipes import Provider, Recipe
from service.domain.states import Better
from service.domain.text import without_credentials
from service.reports.report import readable
from service.reports.schema.base import columns, document_of
from service.reports.schema.runs import facts_check_item
from service.reports.views import GapView, MeasuredCase, MeasuredSeries, Point


def target_item(target: Target, open_regressions: int | None = None, behind_sota: int | None = None) -> TargetItem:
    recipe = readable(target.recipe.text) if target.recipe else None
    named = {
        "location": without_credentials(target.location),
        "forge_paused_until": target.forge_paused_until or None,
        "devices": list(recipe.devices) if recipe else [],
        "open_regressions": open_regressions,
        "behind_sota": behind_sota,
    }
    return document_of(TargetItem, columns(target) | named)


def target_document(target: Target, *, open_regressions: int, behind_sota: int) -> TargetDocument:
    return TargetDocument(
        **target_item(target, open_regressions, behind_sota).model_dump(),
        recipe=target.recipe.text if target.recipe else None,
    )


def provider_plan_item(name: str, provider: Provider, cases: Sequence[AnyCase]) -> ProviderPlanItem:
    return ProviderPlanItem(
        name=name,
        calls={**provider.calls, **{one.name: one.place for one in provider.functions}},
        builtin=provider.builtin,
        compile=provider.compile.mode.value if provider.compile else None,
        options=dict(provider.compile.options) if provider.compile else {},
        cases=sum(map(provider.offers, cases)),
    )


def recipe_document(recipe: Recipe, policies: Mapping[str, Policy]) -> RecipeDocument:
    """`policies` are those in force, by device."""
    return RecipeDocument(
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
        providers=[provider_plan_item(name, one, cases) for name, one in own.items()],
        sota=recipe.sota_on(device),
        baselines=list(recipe.rivals_on(device)),
        policy=policy.model_dump(mode="json"),
        policy_version=policy.digest,
    )


def revision_item(row: Revision, runs: Iterable[RunItem] | None = None) -> RevisionItem:
    return document_of(RevisionItem, columns(row) | {"short": row.short, "runs": None if runs is None else list(runs)})


def revision_document(row: Revision, runs: Iterable[RunItem], checks: Iterable[FactsCheck]) -> RevisionDocument:
    found = {"runs": list(runs), "checks": [facts_check_item(one) for one in checks]}
    return document_of(RevisionDocument, columns(row) | {"short": row.short} | found)


def series_item(found: MeasuredSeries) -> SeriesItem:
    return document_of(SeriesItem, vars(found) | {"metric": found.metric.value, "unit": found.metric.unit})


def case_item(found: MeasuredCase) -> CaseItem:
    try:
        parts = vars(one := Case.parse(found.case)) | {"columns": one.cols}
    except ValueError:
        parts = dict.fromkeys(("op", "direction", "rows", "columns", "dtype", "weight_dtype"))
    metrics = [metric.value for metric in found.metrics]
    return document_of(CaseItem, parts | vars(found) | {"metrics": metrics})


_NOT_SHOWN = Point.__annotations__.keys() - PointItem.model_fields.keys()


def series_values(points: Sequence[Point], **key: str) -> dict[str, Any]:
    """The values of a SeriesDocument, mostly columns of the database; `key` is target, case, provider and device."""
    metric = metric_of(key["case"])
    shown = [one._asdict() for one in points]
    for one in shown:
        one["committed_at"] = moment(one["committed_at"])
        for name in _NOT_SHOWN:
            del one[name]
    return {**key, "metric": metric.value, "unit": metric.unit, "points": shown}


def gap_item(found: GapView) -> GapItem:
    gap = found.gap
    ratios = {"ratio": gap.ratio_now, "ratio_at_start": gap.ratio_then}
    medians = {"median": gap.own, "sota_median": gap.sota, "unit": gap.metric.unit}
    named = {"target": found.target, "since": found.since.sha if found.since else None, "run_id": gap.last_run_id}
    return document_of(GapItem, columns(gap) | ratios | medians | named)


def batch_item(row: IngestBatch, target: str) -> BatchItem:
    return document_of(BatchItem, columns(row) | {"target": target})


def ingested_item(row: IngestedMeasurement) -> IngestedItem:
    return document_of(IngestedItem, columns(row) | ingested_fields(row))


def ingested_fields(row: IngestedMeasurement) -> dict[str, Any]:
    """What a row of a case leaves to its case, and samples as numbers."""
    unit = unit_of(row.case, row.unit)
    return {"unit": unit, "better": row.better or Better.SMALLER, "samples": unpack_samples(row.samples)}


def ingested_series_document(
    rows: Sequence[IngestedMeasurement], following: str | None, **key: str
) -> IngestedSeriesDocument:
    """`key` is target, device, provider and case."""
    items = [ingested_item(row) for row in rows]
    unit = items[0].unit if items else unit_of(key["case"], None)
    named: dict[str, Any] = {**key, "unit": unit, "items": items, "next": following}
    return IngestedSeriesDocument(**named)
