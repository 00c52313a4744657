"""The recipe of a target: its lines, an editor, and what a change of it would change."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import Response
from sqlalchemy.orm import Session

from dashboards import forms
from dashboards.forms import ActionForm, DryRun, Sent
from dashboards.pages.watching import new
from dashboards.rendering import flat, page, page_router
from kernelwatch.documents.targets import DevicePlanItem, RecipeDocument
from service.api.access import Reading
from service.api.objects import TargetName
from service.db.engine import clock, reading
from service.db.models import Target
from service.domain.access import Actor, Scope
from service.errors import BadInput, Conflict, ServiceError, Stale
from service.ledger.intake import registry
from service.ledger.targets import RECIPE as BRANCH_FILE
from service.ledger.targets import target_named

MAX_LINES = 400  # of differing lines that are shown
_DEVICE_KEYS = ("suite", "sota", "baselines", "providers")


@dataclass(frozen=True)
class KeyChange:
    """A key whose value differs."""

    key: str
    before: str
    now: str


@dataclass(frozen=True)
class DeviceChanges:
    """What differs on one device."""

    device: str
    state: str  # "added", "removed" or "changed"
    added: Sequence[str] = ()  # cases
    removed: Sequence[str] = ()
    keys: Sequence[KeyChange] = ()


@dataclass(frozen=True)
class RecipeChanges:
    """What differs, by device and for all of them."""

    devices: Sequence[DeviceChanges]
    keys: Sequence[KeyChange]

    def __bool__(self) -> bool:
        return bool(self.devices or self.keys)


def changes(before: RecipeDocument, now: RecipeDocument) -> RecipeChanges:
    """Compare what two recipes measure."""
    old, new = ({one.device: one for one in plan.devices} for plan in (before, now))
    devices = [DeviceChanges(name, "added", new[name].cases) for name in new if name not in old]
    devices += [DeviceChanges(name, "removed", (), old[name].cases) for name in old if name not in new]
    devices += [found for name in new if name in old and (found := _on_device(old[name], new[name]))]
    whole = [plan.model_dump(mode="json", exclude={"devices"}) for plan in (before, now)]
    return RecipeChanges(devices, _keys(*whole))


def lines(before: str, now: str) -> Sequence[tuple[str, str]]:
    """The lines that differ with two around them, each with its sign: `+`, `-`, a space, or `@` between parts."""
    found = difflib.unified_diff(before.splitlines(), now.splitlines(), lineterm="", n=2)
    return [(line[:1], line[1:]) for line in islice(found, 2, MAX_LINES + 2)]  # after the names of both files


def _on_device(before: DevicePlanItem, now: DevicePlanItem) -> DeviceChanges | None:
    old, new = set(before.cases), set(now.cases)
    plans = [one.model_dump(mode="json", include={*_DEVICE_KEYS, "policy"}) for one in (before, now)]
    for plan in plans:
        plan["providers"] = {one["name"]: one["calls"] for one in plan["providers"]}
    added = [case for case in now.cases if case not in old]
    removed = [case for case in before.cases if case not in new]
    keys = _keys(*plans)
    return DeviceChanges(now.device, "changed", added, removed, keys) if added or removed or keys else None


def _keys(before: dict[str, Any], now: dict[str, Any]) -> Sequence[KeyChange]:
    old, new = dict(flat(before)), dict(flat(now))
    names = [*old, *(name for name in new if name not in old)]
    pairs = [(name, old.get(name, "none"), new.get(name, "none")) for name in names]
    return [KeyChange(name, was, is_now) for name, was, is_now in pairs if was != is_now]


router = page_router()


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
    return changes(before, plan)


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
        differing=lines(saved, form.fields[0].value) if tried else (),
        branch_file=BRANCH_FILE,
    )
