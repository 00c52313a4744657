"""Rows that many tests of the ledger begin with."""

from service.db.engine import transaction
from service.db.models import RecipeRow, Target
from service.domain.states import TargetKind


def watched_target(recipe: str, name: str = "norms", *, recipe_id: int | None = None) -> Target:
    """A repository that is watched with this recipe; `recipe_id` where the tests name it themselves."""
    with transaction() as session:
        target = Target(name=name, kind=TargetKind.GIT, location="/nowhere", created_at=0.0)
        session.add(target)
        session.flush()
        row = RecipeRow(id=recipe_id, target_id=target.id, digest="1" * 64, text=recipe, adapters={}, created_at=0.0)
        session.add(row)
        session.flush()
        target.recipe_id = row.id
    return target
