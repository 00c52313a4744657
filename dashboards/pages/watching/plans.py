"""A recipe that somebody typed: its plan, and the mistakes at their lines."""

from collections.abc import Mapping

from dashboards.pages.forms import MAX_CODE, ActionForm, Field, FieldKind
from service.domain.policy import recipes
from service.errors import ServiceError
from service.ledger.intake.targets import check_adapters
from service.ledger.server_policy import effective
from service.reports.schema.targets import RecipeDocument

RECIPE = "recipe"  # the field
DO, CHECK, SAVE = "do", "check", "save"  # the button that was pressed


def recipe_field(text: str, *, required: bool, hint: str = "") -> Field:
    """The field of a recipe's text."""
    return Field(RECIPE, "Recipe", FieldKind.CODE, text, required=required, hint=hint, max_length=MAX_CODE)


def plan(text: str, adapters: Mapping[str, str]) -> RecipeDocument:
    """What a recipe measures, as `POST /api/v1/recipes/check` answers.  Raises BadInput for its mistakes."""
    recipe = recipes.parse(text)
    check_adapters(recipe, adapters)
    return RecipeDocument.planned(recipe, {device: effective(recipe, device) for device in recipe.devices})


def marked(form: ActionForm, problem: ServiceError | None) -> ActionForm:
    """The form with the mistakes of its recipe at their lines."""
    if not isinstance(problem, recipes.MistakenRecipe):
        return form
    return form.with_mistakes(RECIPE, [(one.line, one.text) for one in problem.mistakes])
