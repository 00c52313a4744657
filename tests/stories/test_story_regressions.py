"""The manual of regressions as a story: opened, accepted for a while, dismissed, blamed, fixed, and what comes back."""

import json

from sqlalchemy import update

from service.db.engine import reading, transaction
from service.db.models import RegressionRow
from service.ledger.regressions import listing, transitions
from service.reports.views import RegressionHistory
from tests.shell import kernelwatch
from tests.stories.test_story import FAST, WIDE, Story, story  # noqa: F401  (a fixture)


def standing(command: str = "regression list norms --format json") -> dict[str, str]:
    """The state of each open regression, by case."""
    return {one["case"]: one["state"] for one in json.loads(kernelwatch(command).stdout)["items"]}


def life(regression_id: int = 1) -> RegressionHistory:
    with reading() as session:
        return listing.one(session, regression_id)


def history(regression_id: int = 1) -> list[str]:
    return [event.what for event in life(regression_id).events]


def against(told: Story, sha: str) -> set[str]:
    """The baselines of the wide case in a revision's session, besides its parent and SOTA."""
    run = told.run_of(sha)
    shown = told.api("GET", f"/api/v1/runs/{run.id}").json()
    return {one["baseline_kind"] for one in shown["verdicts"] if one["case"] == WIDE} - {"parent", "sota", "best"}


def edit(told: Story, message: str) -> str:
    """A commit that changes code, and nothing's speed."""
    (told.repository / "norms.py").write_text(f"# {message}")
    return told.push(message)


def test_a_regression_is_accepted_for_a_while_and_its_revision_is_a_baseline_until_then(story):  # noqa: F811
    slow = story.push("wide rows in two passes", wide=260.0)
    assert standing() == {WIDE: "open"}
    after = edit(story, "and on")
    assert story.outcomes(after)[WIDE] == "steady", "this commit did nothing"
    assert against(story, after) == {"last_good"}, "and yet nothing slow is a reference automatically"

    said = kernelwatch("regression acknowledge 1 --reason 'exact sums first' --until 2999-12-24 --as ada")
    assert said.stdout == f"regression 1 ({WIDE}) is acknowledged.\n"
    accepted = edit(story, "and further")
    assert against(story, accepted) == set(), "what somebody accepted is a baseline"
    assert standing() == {WIDE: "acknowledged"}

    with transaction() as session:
        session.execute(update(RegressionRow).values(until=1.0))
    transitions.expire_due()
    assert standing() == {WIDE: "open"}
    again = edit(story, "and further still")
    assert against(story, again) == {"last_good"}

    shown = kernelwatch("regression show 1").stdout
    assert f"found at {slow[:10]} in run {life().regressed.run.id}" in shown
    assert "acknowledged by ada: exact sums first" in shown
    assert "acknowledgement ended by kernelwatch: exact sums first" in shown

    fixed = story.push("one pass again", wide=200.0)
    assert standing() == {}
    assert life().regressed.fixed_by.id == story.run_of(fixed).id
    assert history() == ["opened", "acknowledged", "acknowledgement ended", "fixed"]
