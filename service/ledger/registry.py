"""Add targets.  What is refused changes nothing: no row is written, and no folder is left."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import inspect

from service.database import transaction
from service.errors import NotFound
from service.ledger import intake, targets
from service.ledger.revisions import revisions_appeared
from service.models import Origin, Target, TargetKind
from service.sources import Found, Source, open_source

RecipeFiles = tuple[str, Mapping[str, str]]  # the recipe's text, and the adapters that it names


def add(
    name: str,
    *,
    location: str,
    package: str | None = None,
    branch: str | None = None,
    forge: str | None = None,
    trusted: bool = False,
    recipe: RecipeFiles | None = None,
    backfill: int = 1,
) -> int:
    """Watch a repository or a package, and queue its newest `backfill` revisions.  Returns how many runs were queued.

    Without a `recipe` it is read from the head of the mainline, then and later.  A target of this name and location
    gets what is named here.  Raises ServiceError for whatever would keep its revisions from being measured: a mistake
    in the recipe, a source that does not answer, no revision on the branch.
    """
    wanted: dict[str, Any] = {
        "location": location,
        "kind": TargetKind.PACKAGE if package else TargetKind.GIT,
        "package": package,
        "branch": branch,
        "forge": forge,
        "trusted": trusted,
        "recipe_from_branch": recipe is None,
        "recipe_text": recipe[0] if recipe else None,
        "adapters": recipe[1] if recipe else None,
    }
    target = _rehearsed(name, wanted)
    source = open_source(target)
    with _kept_only_if_done(source):
        source.refresh()
        found = _newest(source, target, max(1, backfill))
        told = intake.recipe_told(target, source)
        with transaction() as session:
            registered = targets.register(session, name, **wanted)
            if told is not None:
                targets.adopt_recipe(session, registered, *told)
            if not backfill:
                return 0
            return revisions_appeared(session, registered, Origin.BACKFILL, found, found[-1].sha, mainline=True).queued


def _rehearsed(name: str, wanted: Mapping[str, Any]) -> Target:
    """What registering would make, without making it.  Raises what registering raises."""
    with transaction() as session:
        target = targets.register(session, name, **wanted)
        values = {column.key: getattr(target, column.key) for column in inspect(Target).column_attrs}
        session.rollback()
    return Target(**values)


@contextmanager
def _kept_only_if_done(source: Source) -> Iterator[None]:
    """Delete what was fetched of a source that was not here before when the block raises."""
    known = source.is_kept()
    try:
        yield
    except BaseException:
        if not known:
            source.forget()
        raise


def _newest(source: Source, target: Target, limit: int) -> list[Found]:
    found = source.mainline(target.branch, limit)
    if not found:
        raise NotFound("revision", f"on the mainline of {target.location}", "There is nothing to measure yet.")
    return found
