"""Targets, their revisions, runs and cases, the histories of cases, and two revisions compared; and their changes."""

from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request, Response

from kernelwatch.documents.base import Page
from kernelwatch.documents.regressions import RegressionItem
from kernelwatch.documents.runs import BackfillDocument, CompareDocument, FactsCheckItem, FactsDiffDocument, RunItem
from kernelwatch.documents.targets import (
    AddedTargetDocument,
    CaseItem,
    DriftItem,
    GapItem,
    HoldingsDocument,
    RecipeDocument,
    RevisionDocument,
    RevisionItem,
    SeriesDocument,
    SeriesItem,
    TargetDocument,
    TargetItem,
)
from service.api.access import Acting, Reading, api_router, needs, permit
from service.api.common import (
    CACHED,
    ERRORS,
    Cases,
    Cursor,
    DeviceName,
    Expanded,
    Limit,
    PullNumber,
    Purposes,
    RegressionStates,
    RevisionName,
    RunStates,
    Since,
    Tables,
    WithEvents,
    page_of,
    page_of_regressions,
    page_of_runs,
    run_items,
    seconds,
    tagged_json,
)
from service.api.objects import AnyName, TargetName, document, permitted_target
from service.db.engine import reading
from service.db.paging import page_of_values
from service.domain.access import Scope
from service.domain.policy import recipes
from service.domain.states import FactsState, MovedBy
from service.errors import BadInput
from service.ledger.intake import deliveries, registry
from service.ledger.policies import effective
from service.ledger.reading import compare as measured
from service.ledger.reading import histories, queries, revisions
from service.ledger.reading.compare import compare
from service.ledger.reading.runs import RunFilter
from service.ledger.targets import RecipeFiles, by_name, check_adapters, check_name, find, target_named
from service.reports.schema.base import Instant
from service.reports.schema.requests import BackfillRequest, RecipeRequest, TargetChange, TargetRequest
from service.reports.schema.runs import compare_document, facts_check_item, facts_diff_document
from service.reports.schema.targets import (
    case_item,
    gap_item,
    recipe_document,
    revision_document,
    revision_item,
    series_item,
    series_values,
    target_document,
    target_item,
)

router = api_router("targets")


@router.get("/targets", response_model=Page[TargetItem])
def list_targets(
    session: Reading,
    expand: Annotated[list[Literal["counts"]] | None, Query(description="`counts` adds what is open.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[TargetItem]:
    """List targets by name."""
    found = by_name(session, cursor, limit)
    if not expand:
        return page_of(found, target_item)
    counts = queries.open_counts(session, [target.id for target in found.items])
    return page_of(found, lambda target: target_item(target, *counts[target.id]))


@router.get("/targets/{name}", response_model=TargetDocument, responses=CACHED)
def get_target(request: Request, name: AnyName, session: Reading) -> Response:
    """Get one target with its recipe and the numbers of its open regressions and cases behind SOTA."""
    target = target_named(session, name)
    regressions, behind = queries.open_counts(session, [target.id])[target.id]
    return tagged_json(request, target_document(target, open_regressions=regressions, behind_sota=behind))


@router.get("/targets/{name}/revisions", response_model=Page[RevisionItem])
def list_revisions(
    name: AnyName,
    session: Reading,
    expand: Annotated[list[Literal["runs"]] | None, Query(description="`runs` adds its runs, with counts.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RevisionItem]:
    """List its revisions, the newest first."""
    found = queries.revisions(session, target_named(session, name), cursor, limit)
    if not expand:
        return page_of(found, revision_item)
    runs = revisions.runs_of(session, [row.id for row in found.items])
    return page_of(found, lambda row: revision_item(row, run_items(runs.get(row.id, ()))))


@router.get("/targets/{name}/revisions/{revision}", response_model=RevisionDocument, responses=CACHED)
def get_revision(
    request: Request,
    name: AnyName,
    revision: Annotated[str, Path(max_length=100, description="A sha or its beginning, or a version.")],
    session: Reading,
) -> Response:
    """Get one revision with its runs and the checks of its code."""
    found = revisions.one(session, target_named(session, name), revision)
    return tagged_json(request, revision_document(found.row, run_items(found.runs), found.checks))


@router.get("/targets/{name}/runs", response_model=Page[RunItem])
def list_runs(
    name: AnyName,
    session: Reading,
    device: DeviceName = None,
    state: RunStates = None,
    purpose: Purposes = None,
    pull: PullNumber = None,
    revision: RevisionName = None,
    since: Since = None,
    expand: Expanded = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RunItem]:
    """List its runs, the newest first."""
    of = target_named(session, name)
    which = RunFilter(of, device, state or (), purpose, pull, revision, seconds(since))
    return page_of_runs(session, which, cursor, limit, expand)


@router.get("/targets/{name}/regressions", response_model=Page[RegressionItem])
def list_regressions(
    name: AnyName,
    session: Reading,
    state: RegressionStates = None,
    expand: WithEvents = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RegressionItem]:
    """List its confirmed regressions, the newest first."""
    return page_of_regressions(session, target_named(session, name), state, cursor, limit, expand)


@router.get("/targets/{name}/gaps", response_model=Page[GapItem])
def list_gaps(name: AnyName, session: Reading, cursor: Cursor = None, limit: Limit = 50) -> Page[GapItem]:
    """List its mainline cases that are slower than SOTA, the largest gap first."""
    return page_of(queries.gaps(session, target_named(session, name), cursor, limit), gap_item)


@router.get("/targets/{name}/drifts", response_model=Page[DriftItem])
def list_drifts(
    name: AnyName,
    session: Reading,
    device: DeviceName = None,
    by: Annotated[MovedBy | None, Query(description="What changed the configuration.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[DriftItem]:
    """List its configurations that changed, the newest first."""
    where = histories.drifts_of(target_named(session, name), device, by)
    found = histories.drift_page(session, where, cursor, limit)
    return page_of(found, DriftItem.model_validate)


@router.get("/targets/{name}/cases", response_model=Page[CaseItem])
def list_cases(
    name: AnyName,
    session: Reading,
    cases: Cases,
    device: DeviceName = None,
    since: Since = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[CaseItem]:
    """List the cases that its latest mainline runs measured, or all `since` a time: by whom, where, and the metrics."""
    found = measured.series(session, target_named(session, name), cases, device=device, since=seconds(since))
    return page_of(page_of_values(measured.cases(found), lambda one: (one.case,), cursor, limit), case_item)


@router.get("/targets/{name}/series", response_model=SeriesDocument, responses=CACHED)
def get_series(
    request: Request,
    name: AnyName,
    session: Reading,
    case: Annotated[str, Query(max_length=120, description="For example rmsnorm.fwd.4096x1024.bf16-fp32.")],
    provider: Annotated[str, Query(max_length=80, description="For example norms or quack.")],
    device: Annotated[str, Query(max_length=40, description="For example h200.")],
    since: Annotated[Instant | None, Query(description="Only revisions committed at this time or later.")] = None,
    limit: Annotated[int, Query(ge=1, le=queries.MAX_SERIES, description="At most the newest so many revisions.")] = (
        queries.MAX_SERIES
    ),
) -> Response:
    """Get the history of one case on the mainline; it is empty if the case was never measured."""
    target = target_named(session, name)
    points = queries.series(session, target, case, provider, device, since=seconds(since), limit=limit)
    return tagged_json(request, series_values(points, target=name, case=case, provider=provider, device=device))


@router.get("/targets/{name}/series/keys", response_model=Page[SeriesItem])
def list_series(
    name: AnyName,
    session: Reading,
    cases: Cases,
    device: DeviceName = None,
    since: Since = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[SeriesItem]:
    """List the series that its latest mainline runs continued, or all `since` a time."""
    found = measured.series(session, target_named(session, name), cases, device=device, since=seconds(since))
    page = page_of_values(found, lambda one: (one.device, one.provider, one.case), cursor, limit)
    return page_of(page, series_item)


@router.get("/targets/{name}/facts", response_model=Page[FactsCheckItem], tags=["facts"])
def list_facts(
    name: AnyName,
    session: Reading,
    revision: RevisionName = None,
    state: Annotated[FactsState | None, Query(description="Only checks in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[FactsCheckItem]:
    """List revisions that were compiled without a GPU and compared with their baselines, the newest first."""
    target = target_named(session, name)
    found = revisions.checks(session, target, revision=revision, state=state, cursor=cursor, limit=limit)
    return page_of(found, facts_check_item)


@router.get("/targets/{name}/facts/diff", response_model=FactsDiffDocument, responses=CACHED, tags=["facts"])
def get_facts_diff(
    request: Request,
    name: AnyName,
    session: Reading,
    base: Annotated[str, Query(max_length=100, description="A sha or its beginning, or a version.")],
    head: Annotated[str, Query(max_length=100, description="A sha or its beginning, or a version.")],
    cases: Cases,
    device: DeviceName = None,
    changed: Annotated[bool, Query(description="Only cases of which something is known to differ.")] = False,
    tables: Tables = False,
) -> Response:
    """Compare what is known of the code of two revisions, without their times."""
    target = target_named(session, name)
    before, after = (revisions.named(session, target, one) for one in (base, head))
    found = revisions.facts_diff(session, before, after, cases, device=device)
    return tagged_json(request, facts_diff_document(found, target.name, tables=tables, changed_only=changed))


NOT_COMPARABLE: dict[int | str, dict[str, Any]] = {
    409: {**ERRORS[404], "description": "They were not measured on this device, or not on one machine."}
}
_SIDE = "A sha or its beginning, a version, `pull/7`, or `mainline` (or its branch) for the newest that was measured."
Side = Annotated[str, Query(max_length=100, description=_SIDE)]


@router.get("/targets/{name}/compare", response_model=CompareDocument, responses=CACHED | NOT_COMPARABLE)
def get_comparison(
    request: Request,
    name: AnyName,
    session: Reading,
    base: Side,
    head: Side,
    device: Annotated[str, Query(max_length=40, description="For example h200.")],
    cases: Cases,
) -> Response:
    """Compare two revisions, releases or pull requests by what was measured: paired where a session measured both."""
    target = target_named(session, name)
    return tagged_json(request, compare_document(compare(session, target, base, head, device, cases), target.name))


_KNOWN: dict[int | str, dict[str, Any]] = {
    200: {"description": "A target of this name and location was there: it is now as described."},
}


@router.post("/targets", response_model=AddedTargetDocument, status_code=201, responses=_KNOWN)
@needs(Scope.ADMIN)
def add_target(body: TargetRequest, actor: Acting) -> Response:
    """Watch a repository or a package, and measure its newest revisions.

    Nothing is added if its revisions could not be measured: for a mistake in the recipe, or a source that does not
    answer.
    """
    permit(actor, Scope.ADMIN)
    with reading() as session:
        known = find(session, body.name) is not None
    queued = registry.add(
        body.name,
        location=body.location,
        package=body.package,
        branch=body.branch,
        forge=body.forge,
        trusted=body.trusted,
        private=body.private,
        recipe=_files(body.recipe, body.adapters),
        backfill=body.backfill,
    )
    with reading() as session:
        lacking = queries.devices_without_worker(session, target_named(session, body.name))
    rest = {"queued": queued, "existed": known, "without_worker": lacking}
    added = AddedTargetDocument(**_document(body.name).model_dump(), **rest)
    return document(added, 200 if known else 201)


@router.patch("/targets/{name}", response_model=TargetDocument)
@needs(Scope.ADMIN)
def change_target(name: TargetName, body: TargetChange, actor: Acting) -> TargetDocument:
    """Change how a target is watched, or rename it.  The next poll uses the change."""
    permitted_target(actor, Scope.ADMIN, name)
    if not body.model_fields_set:
        raise BadInput(f"Nothing to change; name one of {', '.join(TargetChange.model_fields)}.")
    if body.name is not None:
        check_name(body.name)
    changed = body.model_fields_set - {"name", "allow_unsandboxed"}
    if changed:
        registry.edit(
            name,
            location=body.location,
            branch=body.branch,
            forge=body.forge,
            trusted=body.trusted,
            private=body.private,
            recipe=_files(body.recipe, body.adapters),
            recipe_from_branch=body.recipe_from_branch,
        )
    if body.allow_unsandboxed is not None:
        registry.allow_unsandboxed(name, body.allow_unsandboxed)
    if body.name is not None and body.name != name:
        registry.rename(name, body.name)
    return _document(body.name or name)


@router.post("/targets/{name}/pause", response_model=TargetDocument)
@needs(Scope.ADMIN)
def pause_target(name: TargetName, actor: Acting) -> TargetDocument:
    """Take no new revisions of a target until it is resumed.  Queued runs are still measured."""
    permitted_target(actor, Scope.ADMIN, name)
    registry.pause(name)
    return _document(name)


@router.post("/targets/{name}/resume", response_model=TargetDocument)
@needs(Scope.ADMIN)
def resume_target(name: TargetName, actor: Acting) -> TargetDocument:
    """Take new revisions again, with those of the meantime."""
    permitted_target(actor, Scope.ADMIN, name)
    registry.resume(name)
    return _document(name)


@router.delete("/targets/{name}", response_model=HoldingsDocument)
@needs(Scope.ADMIN)
def remove_target(
    name: TargetName,
    actor: Acting,
    dry_run: Annotated[bool, Query(description="Only count what would be deleted.")] = False,
) -> HoldingsDocument:
    """Delete a target with all its measurements, and return their numbers.  Pause it to keep them."""
    target = permitted_target(actor, Scope.ADMIN, name)
    with reading() as session:
        had = HoldingsDocument.model_validate(registry.holdings(session, target))
    if not dry_run:
        registry.remove(name)
    return had


@router.post("/targets/{name}/backfill", response_model=BackfillDocument)
@needs(Scope.RUN)
def backfill_target(name: TargetName, body: BackfillRequest, actor: Acting) -> BackfillDocument:
    """Queue a range of mainline revisions at low priority, or a sample of them."""
    permitted_target(actor, Scope.RUN, name)
    queued = deliveries.backfill(name, body.base, body.head, body.sample)
    with reading() as session:
        typical = queries.typical_run_s(session, target_named(session, name))
    return BackfillDocument(queued=queued, estimate_s=queued * typical if typical else None)


@router.post("/recipes/check", response_model=RecipeDocument)
@needs(Scope.ADMIN)
def check_recipe(body: RecipeRequest, actor: Acting) -> RecipeDocument:
    """Check a recipe without using it: what would be measured on which devices, by which policy.

    A recipe with mistakes is refused with 422, and `detail` names each of them with its line.
    """
    permit(actor, Scope.ADMIN)
    recipe = recipes.parse(body.recipe)
    check_adapters(recipe, body.adapters)
    return recipe_document(recipe, {device: effective(recipe, device) for device in recipe.devices})


def _files(recipe: str | None, adapters: dict[str, str]) -> RecipeFiles | None:
    if recipe is None and adapters:
        raise BadInput("Adapters need a recipe that names them.")
    return None if recipe is None else (recipe, adapters)


def _document(name: str) -> TargetDocument:
    with reading() as session:
        target = target_named(session, name)
        card = queries.card(session, target, lines=1)
        return target_document(target, open_regressions=card.regressions, behind_sota=card.behind)
