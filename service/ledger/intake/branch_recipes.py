"""The recipe of a target, which its mainline may bring."""

from collections.abc import Mapping

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, selectinload

from service.db.models import Target
from service.domain.policy import recipes
from service.errors import BadInput
from service.ledger.intake import targets
from service.sources.source import Source

RECIPE = "kernelwatch.toml"  # its name in a repository that brings its own
RecipeFiles = tuple[str, Mapping[str, str]]  # the recipe's text, and the adapters that it names


def branch_recipe(target: Target, source: Source) -> RecipeFiles | None:
    """The recipe at the head of the mainline, with its adapters; None where the target brings none itself."""
    if not target.recipe_from_branch:
        return None
    [tip] = source.mainline(target.branch, 1)
    text = _text(source, tip.sha, RECIPE)
    if text is None:
        if target.recipe_id is not None:
            return None
        raise BadInput(f"{target.location} has no {RECIPE} at {tip.sha[:10]}; add one, or register a recipe.")
    found = {name: _text(source, tip.sha, name) for name in recipes.parse(text).adapters}
    return text, {name: content for name, content in found.items() if content is not None}


def adopted(session: Session, target: Target, recipe: RecipeFiles | None) -> Target:
    """The target in this session, with the recipe that its branch brought."""
    row = session.execute(with_recipe().where(Target.id == target.id)).scalar_one()
    if recipe is not None:
        targets.adopt_recipe(session, row, *recipe)
    return row


def with_recipe() -> Select[Target]:
    return select(Target).options(selectinload(Target.recipe))


def _text(source: Source, sha: str, path: str) -> str | None:
    content = source.read(sha, path)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{path} at {sha[:10]} is not text in UTF-8.") from None
