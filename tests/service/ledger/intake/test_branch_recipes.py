"""The recipe that a mainline brings, while somebody else changes the recipe or the mainline.  On both databases."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from sqlalchemy import select

from service.db.engine import reading, transaction
from service.db.models import RecipeRow, Target
from service.errors import NotFound
from service.ledger import targets
from service.ledger.intake import registry
from service.ledger.targets import BranchRecipe, adopted
from tests import world

OLD, NEW, OWN = (
    f'devices = ["{device}"]\n[providers.norms]\nrmsnorm.fwd = "norms:rmsnorm"\n' for device in ("cpu", "h100", "h200")
)


@pytest.fixture
def target(either: str) -> Target:
    """Its mainline brings a recipe, and has the revisions c0, c1 and c2."""
    target = world.target(OLD, recipe_from_branch=True)
    with transaction() as session:
        for place in range(3):
            world.commit(session, target.id, place)
    return target


def adopt(target: Target, text: str, tip: str = "c2", *, rewritten: bool = False) -> None:
    with transaction() as session:
        adopted(session, target, BranchRecipe(tip, text, {}), rewritten=rewritten)


def recipe() -> str:
    with reading() as session:
        found = targets.target_named(session, "norms").recipe
        assert found is not None
        return found.text


def test_a_recipe_that_a_person_saved_meanwhile_is_kept(target: Target) -> None:
    with transaction() as session:
        targets.register(session, "norms", location="/nowhere", recipe_text=OWN)
    adopt(target, NEW)
    assert recipe() == OWN


def test_a_recipe_that_a_person_saves_at_this_moment_is_kept(target: Target) -> None:
    saved = Event()

    def save() -> None:
        with transaction() as session:
            targets.register(session, "norms", location="/nowhere", recipe_text=OWN)
            saved.set()
            time.sleep(0.3)  # the other gets as far as it can

    def bring() -> None:
        assert saved.wait(30)
        adopt(target, NEW)

    with ThreadPoolExecutor(2) as both:
        for one in [both.submit(save), both.submit(bring)]:
            one.result(30)
    assert recipe() == OWN


@pytest.mark.parametrize(
    ("tip", "rewritten", "found"),
    [("c2", False, NEW), ("c1", False, OLD), ("c1", True, NEW), ("c3", False, NEW)],
    ids=["the newest", "passed", "rewritten", "not recorded yet"],
)
def test_the_recipe_of_a_revision_that_the_mainline_has_passed_is_left_out(
    target: Target, tip: str, rewritten: bool, found: str
) -> None:
    """A process that fetched earlier may come later."""
    adopt(target, NEW, tip, rewritten=rewritten)
    assert recipe() == found


def test_two_bring_the_same_new_recipe_at_once(target: Target) -> None:
    stored = Event()

    def first() -> int:
        with transaction() as session:
            row = targets.adopt_recipe(session, session.get_one(Target, target.id), NEW, {})
            stored.set()
            time.sleep(0.3)  # the other gets as far as it can
            return row.id

    def second() -> int:
        assert stored.wait(30)
        with transaction() as session:
            return targets.adopt_recipe(session, session.get_one(Target, target.id), NEW, {}).id

    with ThreadPoolExecutor(2) as both:
        one, other = both.submit(first), both.submit(second)
        assert one.result(30) == other.result(30)
    with reading() as session:
        assert len(session.scalars(select(RecipeRow.id)).all()) == 2


def test_the_recipe_of_a_removed_target_is_brought_to_nobody(target: Target) -> None:
    registry.remove("norms")
    with pytest.raises(NotFound, match="removed"):
        adopt(target, NEW)
