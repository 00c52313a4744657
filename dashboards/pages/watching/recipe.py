"""The recipe of a target: its lines, and an editor that shows what a change would change."""

from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy.orm import Session

from dashboards import forms
from dashboards.forms import ActionForm, DryRun, Sent
from dashboards.pages.watching import new, recipe_changes
from dashboards.pages.watching.recipe_changes import RecipeChanges
from dashboards.rendering import page
from kernelwatch.documents.targets import RecipeDocument
from service.api.access import Reading, ReadingRoute
from service.api.writes.objects import TargetName
from service.db.engine import clock, reading
from service.db.models import Target
from service.domain.access import Actor, Scope
from service.errors import BadInput, Conflict, ServiceError, Stale
from service.ledger.intake import registry
from service.ledger.targets import RECIPE as BRANCH_FILE
from service.ledger.targets import target_named

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True)
class RecipeTrial:
    """What a recipe would measure, and what that changes; None where the recipe in place cannot be read."""

    plan: RecipeDocument
    changes: RecipeChanges | None


@router.get("/targets/{name}/recipe")
def recipe(name: TargetName, session: Reading) -> str:
    """Show the recipe, as an editor to those who may change it."""
    return _draw(name, session, _form(name, session), None, None)


@router.post("/targets/{name}/recipe", max_body_size=forms.MAX_CODE_FORM)
async def change_recipe(request: Request, name: TargetName) -> Response:
    """Show what another recipe would change, or save it."""
    return await forms.submitted(request, partial(_form, name), partial(_apply, name), partial(_draw, name))


def _form(name: str, session: Session) -> ActionForm:
    target = target_named(session, name)
    address = f"/targets/{quote(name, safe='')}"
    text = _text(target)
    return ActionForm(
        address=f"{address}/recipe",
        title="Change the recipe",
        button="Save",
        back=f"{address}/recipe",
        scope=Scope.ADMIN,
        command=f"kernelwatch target edit {name} --recipe recipe.toml",
        target=target,
        fields=(new.recipe_field(text, required=True),),
        seen=target.recipe_id or 0,
    )


def _text(target: Target) -> str:
    return forms.one_ending(target.recipe.text) if target.recipe else ""


def _apply(name: str, sent: Sent, _: Actor) -> str | DryRun:
    text = sent.texts[new.RECIPE]
    with reading() as session:
        target = target_named(session, name)
    adapters = target.recipe.adapters if target.recipe else {}
    plan = new.plan(text, adapters)
    if sent[new.DO] != new.SAVE:
        return DryRun(RecipeTrial(plan, _changes(target, plan)))
    if _is_saved(target, text):  # a double click sends it twice
        return f"The recipe of {name} is saved."
    try:
        registry.edit(name, recipe=(text, adapters), seen_recipe=sent.seen)
    except Conflict:
        with reading() as session:
            if _is_saved(target_named(session, name), text):
                return f"The recipe of {name} is saved."
        raise
    return f"The recipe of {name} is saved. The next revision is measured with it."


def _is_saved(target: Target, text: str) -> bool:
    return target.recipe is not None and not target.recipe_from_branch and _text(target) == text


def _changes(target: Target, plan: RecipeDocument) -> RecipeChanges | None:
    if target.recipe is None:
        return None
    try:
        before = new.plan(target.recipe.text, target.recipe.adapters)
    except BadInput:  # of an earlier version of kernelwatch
        return None
    return recipe_changes.changes(before, plan)


def _draw(name: str, session: Session, form: ActionForm, problem: ServiceError | None, dry_run: DryRun | None) -> str:
    target = target_named(session, name)
    saved = _text(target)
    tried = dry_run or problem  # the page that only shows a recipe has nothing to compare
    return page(
        "target_recipe.html",
        now=clock(session),
        target=target,
        href=f"/targets/{quote(name, safe='')}",
        form=new.marked(form, problem),
        problem=problem,
        changes=problem.changes if isinstance(problem, Stale) else (),
        dry_run=dry_run,
        saved=saved,
        differing=recipe_changes.lines(saved, form.fields[0].value) if tried else (),
        branch_file=BRANCH_FILE,
    )
