"""The recipe of a target, which its mainline may bring."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Select, exists, select
from sqlalchemy.orm import Session, aliased, selectinload

from service.db.models import Revision, Target
from service.domain.policy import recipes
from service.errors import BadInput
from service.ledger.intake import targets
from service.ledger.locking import lock
from service.sources.source import Source

RECIPE = "kernelwatch.toml"  # its name in a repository that brings its own
RecipeFiles = tuple[str, Mapping[str, str]]  # the recipe's text, and the adapters that it names


@dataclass(frozen=True)
class BranchRecipe:
    """A recipe, and the head of the mainline that it was read at."""

    tip: str
    text: str
    adapters: Mapping[str, str]


def branch_recipe(target: Target, source: Source) -> BranchRecipe | None:
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
    return BranchRecipe(tip.sha, text, {name: content for name, content in found.items() if content is not None})


def adopted(session: Session, target: Target, recipe: BranchRecipe | None, *, rewritten: bool = False) -> Target:
    """The target in this session, locked, with the recipe that its branch brought.

    The recipe was read some time ago.  It is left out where a person has given the target one of its own since, and
    where the mainline has gone on by now, unless that was `rewritten`.
    """
    lock(session, target.id)
    row = session.execute(with_recipe().where(Target.id == target.id)).scalar_one()
    if recipe is not None and row.recipe_from_branch and (rewritten or not _is_passed(session, row.id, recipe.tip)):
        targets.adopt_recipe(session, row, recipe.text, recipe.adapters)
    return row


def _is_passed(session: Session, target_id: int, sha: str) -> bool:
    """Whether the recorded mainline has revisions after this one."""
    later = aliased(Revision)
    newer = exists().where(later.target_id == target_id, later.ordinal > Revision.ordinal)
    passed = select(Revision.id).where(Revision.target_id == target_id, Revision.sha == sha, newer)
    return session.scalar(passed) is not None


def with_recipe() -> Select[Target]:
    return select(Target).options(selectinload(Target.recipe))


def _text(source: Source, sha: str, path: str) -> str | None:
    content = source.read(sha, path)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{path} at {sha[:10]} is not text in UTF-8.") from None
