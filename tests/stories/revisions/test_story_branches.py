"""The manual of branches as stories: what a pull request is compared with, and which commits are the mainline."""

import json

import pytest
from markupsafe import escape

from service.db.engine import reading
from service.domain.states import RunState
from service.ledger.regressions import listing
from tests.shell import attempt
from tests.stories.test_story import FAST, WIDE, Story, story
from workers import control

__all__ = ["story"]


def blamed() -> list[tuple[str, str, str | None]]:
    """Every regression that was ever recorded: its case, its state, and the commit that did it."""
    with reading() as session:
        found = sorted(listing.listed(session).items, key=lambda one: one.row.id)
        return [(one.row.case, one.row.state.value, one.row.culprit) for one in found]


def test_a_pull_request_that_merged_the_mainline_answers_for_its_own_changes_alone(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """*Update branch*: GitHub still names the base as it was when the pull request was opened."""
    first = story.git("rev-parse", "main")
    with monkeypatch.context() as patch:
        patch.setattr(control, "work", lambda device: 0)  # the worker is busy elsewhere
        story.pull(7, action="opened", fast=130.0)
    slow = story.push("wide rows in two passes", wide=260.0)
    story.git("checkout", "--quiet", "pull-7")
    story.git("merge", "--quiet", "--message", "merge main", "main")
    head = story.git("rev-parse", "HEAD")
    story.git("checkout", "--quiet", "main")
    event = story.head_event(7, head, "synchronize")
    assert event[1]["pull_request"]["base"]["sha"] == first

    story.head(7, head)

    assert story.outcomes(head) == {FAST: "regression", WIDE: "steady"}
    [comment] = story.said(7)
    said, _, before = comment.partition("1 already slow before this revision")
    assert "1 of 2 cases" in said.splitlines()[0]
    assert f"/compare/{slow}...{head}" in said, "with the merge base of now"
    assert (FAST in said, WIDE in said) == (True, False)
    assert f"{WIDE}` norms" in before
    assert f"slow since {slow[:10]} (regression 1): not caused by this revision" in before
    assert story.status(head).startswith("success: 1 of 2 cases ")
    assert blamed() == [(WIDE, "open", slow)]


def test_a_pull_that_is_pushed_makes_its_own_commits_the_mainline(story: Story) -> None:
    """*Foxtrot*: a developer pulls and pushes, so that the first parent of the merge is a commit of theirs."""
    first = story.git("rev-parse", "main")
    slow = story.push("wide rows in two passes", wide=260.0)
    story.git("checkout", "--quiet", "-b", "developer", first)
    (story.repository / "norms.py").write_text("# tidy")
    own = story.commit("tidy")
    story.git("merge", "--quiet", "--message", "pull", "main")
    pulled = story.git("rev-parse", "HEAD")
    story.git("checkout", "--quiet", "main")
    story.git("merge", "--quiet", "--ff-only", pulled)

    story.deliver(*story.push_event(slow, pulled))

    shown = story.api("GET", "/api/v1/targets/norms/revisions").json()["items"]
    assert [one["sha"] for one in shown if one["ordinal"] is not None] == [pulled, own, first]
    assert story.outcomes(own) == {FAST: "steady", WIDE: "steady"}, "it is older than the slow-down"
    assert blamed() == [(WIDE, "fixed", slow), (WIDE, "open", pulled)], "one is open: where the line became slow"
    assert story.api("GET", "/badges/norms/status.json").json()["message"] == "1 regression"

    fixed = story.push("one pass again", wide=200.0)

    assert story.outcomes(fixed) == {FAST: "steady", WIDE: "improvement"}
    assert blamed() == [(WIDE, "fixed", slow), (WIDE, "fixed", pulled)]
    assert story.api("GET", "/badges/norms/status.json").json()["message"] == "no regressions"


def test_a_job_and_the_webhook_compare_a_pull_request_to_a_release_branch_alike(story: Story) -> None:
    story.git("checkout", "--quiet", "-b", "release/1", "main")
    tip = story.commit("an older algorithm", wide=260.0)
    story.git("checkout", "--quiet", "-b", "pull-7")
    head = story.commit("fix what is released", fast=101.0)
    story.git("checkout", "--quiet", "main")
    story.git("update-ref", "refs/pull/7/head", head)
    name, body = story.head_event(7, head, "opened")
    body["pull_request"]["base"] |= {"ref": "release/1", "sha": tip}
    story.deliver(name, body)

    done = attempt("run", "start", "norms", head, "--wait", "--format", "json")

    assert done.exit_code == 0, done.output
    [told] = json.loads(done.stdout)
    [run] = story.runs(head)
    assert (told["id"], told["baseline"], run.pull) == (run.id, tip, 7), "one comparison, measured once"
    assert story.outcomes(head) == {FAST: "steady", WIDE: "steady"}, "main is faster, and not what it is merged into"
    assert story.status(head).startswith("success: ")


def test_a_squashed_merge_of_an_accepted_head_opens_no_alarm(story: Story) -> None:
    story.permit("ada", "write")
    head = story.pull(7, action="opened", wide=260.0)
    assert "accepted 1 slower case" in story.answer(story.comment(7, "/kernelwatch accept exact rounding costs this"))
    before = story.git("rev-parse", "main")
    story.git("merge", "--quiet", "--squash", "pull-7")
    squashed = story.commit("wide rows with exact rounding (#7)")
    merged = story.merge_event(7, before, head, squashed)

    story.deliver(*story.push_event(before, squashed))
    story.deliver(*merged)

    assert story.outcomes(squashed)[WIDE] == "regression", "it is slower, and somebody wanted that"
    assert blamed() == [(WIDE, "acknowledged", squashed)]
    page = story.api("GET", "/regressions/1").text
    assert "exact rounding costs this" in page


@pytest.mark.parametrize("branch", ["größe/x", "fix(norms)!,50%'s-&<rows>"])
def test_a_branch_may_have_any_name_that_git_allows(story: Story, branch: str) -> None:
    first = story.git("rev-parse", "main")
    story.git("checkout", "--quiet", "-b", branch)
    slow = story.commit("wide rows in two passes", wide=260.0)
    edited = attempt("target", "edit", "norms", "--branch", branch)
    assert edited.exit_code == 0, edited.output

    name, body = story.push_event(first, slow)
    story.deliver(name, body | {"ref": f"refs/heads/{branch}"})

    assert blamed() == [(WIDE, "open", slow)], "it is the mainline now"
    done = attempt("run", "start", "norms", branch, "--wait", "--format", "json")
    assert (done.exit_code, [one["id"] for one in json.loads(done.stdout)]) == (0, [story.run_of(slow).id])
    assert escape(branch) in story.api("GET", "/targets/norms").text


def test_a_pull_request_on_a_mainline_that_does_not_build_is_compared_with_what_did(story: Story) -> None:
    first = story.git("rev-parse", "main")
    (story.repository / "broken").touch()
    broken = story.push("half done")
    assert story.run_of(broken).state is RunState.FAILED
    story.git("checkout", "--quiet", "-b", "pull-7")
    (story.repository / "broken").unlink()
    head = story.commit("done, in two passes", wide=260.0)
    story.git("checkout", "--quiet", "main")

    story.head(7, head, action="opened")

    [comment] = story.said(7)
    assert "1 of 2 cases" in comment.splitlines()[0]
    assert f"/compare/{first}...{head}" in comment
    assert broken[:10] in story.run_of(head).reason
    assert blamed() == []
