"""Add, change, pause and remove targets, and check recipes."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from kernelwatch.documents.runs import BackfillDocument
from kernelwatch.documents.targets import AddedTargetDocument, HoldingsDocument, RecipeDocument, TargetDocument
from service.api.access import Acting, WritingRoute, needs, permit
from service.api.writes.objects import TargetName, document, permitted_target
from service.db.engine import reading
from service.domain.access import Scope
from service.domain.policy import recipes
from service.errors import BadInput
from service.ledger.intake import deliveries, registry
from service.ledger.policies import effective
from service.ledger.reading import queries
from service.ledger.targets import RecipeFiles, check_adapters, check_name, find, target_named
from service.reports.schema.requests import BackfillRequest, RecipeRequest, TargetChange, TargetRequest
from service.reports.schema.targets import recipe_document, target_document

router = APIRouter(route_class=WritingRoute, tags=["targets"])
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
