"""The manual of baselines as a story: a revision that is broken at one case is the baseline at all its other cases."""

import pytest
from sqlalchemy import select

from service.db.engine import reading
from service.db.models import Run, VerdictRow
from service.domain.states import RegressionState
from service.ledger.regressions import listing
from tests.stories.test_story import FAST, WIDE, Story, story  # noqa: F401  (a fixture)

BROKEN = ("invalid: y is wrong", "crash")
OUTCOME = {"invalid: y is wrong": "invalid", "crash": "failed"}


def baselines(told: Story, sha: str) -> dict[tuple[str, str], str | None]:
    """The revision that each case of the newest run was compared with, as its verdict stores it."""
    return {name: row.baseline for name, row in verdicts(told.run_of(sha)).items()}


def verdicts(run: Run) -> dict[tuple[str, str], VerdictRow]:
    with reading() as session:
        rows = session.scalars(
            select(VerdictRow).where(VerdictRow.run_id == run.id, VerdictRow.baseline_kind == "parent")
        )
        return {(row.provider, row.case): row for row in rows}


def blamed() -> list[tuple[str, str | None, str | None]]:
    """Every regression that was ever recorded: its case, whom it is slower than, and the revision that did it."""
    with reading() as session:
        found = listing.listed(session).items
        return sorted((one.row.case, one.row.good, one.row.culprit) for one in found)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_slow_down_beside_a_broken_case_is_blamed_on_its_own_commit_once(story: Story, broken: str) -> None:  # noqa: F811
    first = story.git("rev-parse", "main")
    culprit = story.push("wide rows in two passes, short rows broken", fast=broken, wide=260.0)
    assert story.outcomes(culprit) == {FAST: OUTCOME[broken], WIDE: "regression"}

    (story.repository / "norms.py").write_text("# harmless")
    harmless = story.push("harmless, and still broken")
    assert story.outcomes(harmless) == {FAST: OUTCOME[broken], WIDE: "steady"}
    assert baselines(story, harmless) == {("norms", FAST): first, ("norms", WIDE): culprit}
    assert verdicts(story.run_of(harmless))["norms", FAST].known_before

    repaired = story.push("short rows are right again", fast=130.0)
    assert story.outcomes(repaired) == {FAST: "regression", WIDE: "steady"}
    assert baselines(story, repaired) == {("norms", FAST): first, ("norms", WIDE): harmless}

    assert blamed() == [(FAST, first, None), (WIDE, first, culprit)], "three revisions may have slowed the short rows"
    page = story.api("GET", f"/runs/{story.run_of(repaired).id}").text
    assert first[:10] in page, "and the page names the baseline of that case"


def test_a_pull_request_is_not_blamed_for_what_its_broken_base_did(story: Story) -> None:  # noqa: F811
    first = story.git("rev-parse", "main")
    base = story.push("wide rows in two passes, short rows broken", fast="invalid: y is wrong", wide=260.0)
    head = story.pull(7, action="opened", fast=130.0)
    assert story.outcomes(head) == {FAST: "regression", WIDE: "steady"}
    assert baselines(story, head) == {("norms", FAST): first, ("norms", WIDE): base}
    [comment] = story.said(7)
    assert f"Compared with {first[:10]}, since the run's baseline is wrong or failed here" in comment
    assert blamed() == [(WIDE, first, base)], "a pull request is not the mainline"


def test_a_regression_is_fixed_by_what_it_is_compared_with_at_its_case(story: Story) -> None:  # noqa: F811
    story.push("short rows in two passes", fast=130.0)
    story.push("short rows broken", fast="invalid: y is wrong")
    fixed = story.push("short rows in one pass, and right", fast=100.0)
    assert story.outcomes(fixed)[FAST] == "improvement", "compared with the last that was right, which was slow"
    with reading() as session:
        [row] = listing.listed(session).items
        assert (row.row.state, row.fixed_by.id) == (RegressionState.FIXED, story.run_of(fixed).id)
