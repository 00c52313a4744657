"""Add a target: a form with a starting point, the plan and mistakes of its recipe, and the target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import ValidationError
from sqlalchemy.orm import Session

from dashboards import forms
from dashboards.forms import MAX_CODE, ActionForm, Done, DryRun, Field, FieldKind, Sent
from dashboards.rendering import page, page_router
from kernelwatch.documents.targets import RecipeDocument
from service.api.access import Reading
from service.db.engine import clock, reading
from service.domain.access import Actor, Scope
from service.domain.policy import recipes
from service.domain.states import TargetKind
from service.domain.text import without_credentials
from service.errors import BadInput, Conflict, ServiceError
from service.ledger.intake import registry
from service.ledger.policies import effective
from service.ledger.targets import RECIPE as BRANCH_FILE
from service.ledger.targets import check_adapters, find
from service.reports.schema.requests import TargetRequest
from service.reports.schema.targets import recipe_document

RECIPE = "recipe"  # the field
DO, CHECK, SAVE = "do", "check", "save"  # the button that was pressed


def recipe_field(text: str, *, required: bool, hint: str = "") -> Field:
    """The field of a recipe's text."""
    return Field(RECIPE, "Recipe", FieldKind.CODE, text, required=required, hint=hint, max_length=MAX_CODE)


def plan(text: str, adapters: Mapping[str, str]) -> RecipeDocument:
    """What a recipe measures, as `POST /api/v1/recipes/check` answers.  Raises BadInput for its mistakes."""
    recipe = recipes.parse(text)
    check_adapters(recipe, adapters)
    return recipe_document(recipe, {device: effective(recipe, device) for device in recipe.devices})


def marked(form: ActionForm, problem: ServiceError | None) -> ActionForm:
    """The form with the mistakes of its recipe at their lines."""
    if not isinstance(problem, recipes.MistakenRecipe):
        return form
    return form.with_mistakes(RECIPE, [(one.line, one.text) for one in problem.mistakes])


router = page_router()

ADDRESS = "/targets/new"
_EXAMPLES = Path(__file__).parents[3] / "examples"
_NO, _YES = "no", "yes"
_LABELS = {"name": "Name", "location": "Location", "package": "Package", "branch": "Branch", "forge": "Repository"}


@dataclass(frozen=True)
class StartingPoint:
    """A recipe of the examples: its folder, what its first comment says, and its text."""

    name: str
    about: str
    text: str


@cache
def starting_points() -> Sequence[StartingPoint]:
    """The examples whose recipe needs no other file."""
    found = []
    for file in sorted(_EXAMPLES.glob("*/recipe.toml")):
        text = file.read_text()
        if not recipes.parse(text).adapters:
            about = text.splitlines()[0].lstrip("# ").rstrip(".:")
            found.append(StartingPoint(file.parent.name, about, text))
    return found


@router.get(ADDRESS)
def add_form(session: Reading, start: Annotated[str, Query(max_length=80)] = "") -> str:
    """Show the form that adds a target, with the recipe of a starting point."""
    text = {one.name: one.text for one in starting_points()}.get(start, "")
    return _draw(session, _form(session, text), None, None)


@router.post(ADDRESS, max_body_size=forms.MAX_CODE_FORM)
async def add(request: Request) -> Response:
    """Check what a target would measure, or add it."""
    return await forms.submitted(request, partial(_form, text=""), _apply, _draw)


def add_link() -> ActionForm:
    """The form without its fields, for links to it."""
    return ActionForm(
        address=ADDRESS,
        title="Add a target",
        button="Add",
        back="/",
        scope=Scope.ADMIN,
        command="kernelwatch target add NAME LOCATION --recipe recipe.toml",
    )


def _form(_: Session, text: str) -> ActionForm:
    link = add_link()
    private = ((_NO, "everybody who may read this service"), (_YES, "only people who were granted it"))
    trusted = ((_NO, "only in a sandbox"), (_YES, "without one too, if that is allowed"))
    forge = "For webhooks and comments: owner/name on GitHub, group/project on GitLab."
    backfill = "Mainline revisions to measure now, 0 to 1000."
    fields = (
        Field("name", "Name", required=True, hint="Lower-case letters, digits, -, _ and .", max_length=80),
        Field("location", "Location", required=True, hint="URL or folder of a repository; of a package, its index."),
        Field("package", "Package", hint="Watch its releases instead of commits.", max_length=200),
        Field("branch", "Branch", hint="By default that of the remote.", max_length=200),
        Field("forge", "Repository on a forge", hint=forge, max_length=200),
        Field("backfill", "Newest revisions", value="1", hint=backfill, max_length=4),
        Field("private", "Who sees it", FieldKind.CHOICE, _NO, choices=private),
        Field("trusted", "Its mainline runs", FieldKind.CHOICE, _NO, choices=trusted),
        recipe_field(text, required=False, hint=f"Empty: {BRANCH_FILE} at the head of the mainline, read anew."),
    )
    return ActionForm(**{**vars(link), "fields": fields})


def _apply(sent: Sent, _: Actor) -> Done | DryRun:
    wanted = _read(sent)
    if (known := _added_before(wanted)) is not None:
        return known
    measured = None if wanted.recipe is None else plan(wanted.recipe, {})
    saves = sent[DO] == SAVE
    try:
        queued = registry.add(
            wanted.name,
            location=wanted.location,
            package=wanted.package,
            branch=wanted.branch,
            forge=wanted.forge,
            trusted=wanted.trusted,
            private=bool(wanted.private),
            recipe=None if wanted.recipe is None else (wanted.recipe, {}),
            backfill=wanted.backfill,
            only_new=True,
            dry_run=not saves,
        )
    except Conflict:
        if saves and (known := _added_before(wanted)) is not None:  # the other click was quicker
            return known
        raise
    if not saves:
        return DryRun(measured)
    runs = f"{queued} run{'s' if queued != 1 else ''} queued"
    return Done(f"Target {wanted.name} is added: {runs}.", f"/targets/{quote(wanted.name, safe='')}")


def _read(sent: Sent) -> TargetRequest:
    """The request that the API would take.  Raises BadInput."""
    named = {name: sent[name] for name in ("name", "location", "package", "branch", "forge") if sent[name]}
    text = sent.texts.get(RECIPE, "")
    if not sent["backfill"].isascii() or not sent["backfill"].isdigit():
        raise BadInput("“Newest revisions” is a number from 0 to 1000.")
    flags = {name: sent[name] == _YES for name in ("private", "trusted")}
    try:
        return TargetRequest.model_validate(
            named | flags | {"backfill": int(sent["backfill"]), "recipe": text if text.strip() else None}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        label = _LABELS.get(str(first["loc"][0]), "Newest revisions")
        raise BadInput(f"“{label}”: {first['msg']}.") from None


def _added_before(wanted: TargetRequest) -> Done | None:
    """A target that is as it is wanted: a double click sends the form twice."""
    with reading() as session:
        target = find(session, wanted.name)
    if target is None:
        return None
    kind = TargetKind.PACKAGE if wanted.package else TargetKind.GIT
    text = None if target.recipe_from_branch or target.recipe is None else target.recipe.text
    same = (
        (target.kind, target.location, target.package) == (kind, wanted.location, wanted.package)
        and (target.branch, target.trusted, target.private) == (wanted.branch, wanted.trusted, bool(wanted.private))
        and text == wanted.recipe
    )
    return Done(f"Target {target.name} is added.", f"/targets/{quote(target.name, safe='')}") if same else None


def _draw(session: Session, form: ActionForm, problem: ServiceError | None, dry_run: DryRun | None) -> str:
    location = next((one.value for one in form.fields if one.name == "location"), "")
    return page(
        "target_new.html",
        now=clock(session),
        form=marked(form, problem),
        problem=problem,
        dry_run=dry_run,
        location=without_credentials(location),
        starts=starting_points(),
        branch_file=BRANCH_FILE,
    )
