"""The manual of a repository as stories: its tags, its dates, and files that it keeps elsewhere."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.domain.states import RunState
from tests.stories.test_story import RECIPE, WIDE, Story, told


class Released(Story):
    """Wide rows become a little slower in each commit: less than anybody is told of at once."""

    recipe = RECIPE.replace('sota = "inductor"', 'sota = "inductor"\npinned = "last-release:v*"')


class Elsewhere(Story):
    """A build that reads a file of a submodule or of Git LFS, once a commit needs it."""

    recipe = RECIPE.replace(
        'commands = ["',
        'commands = ["test ! -e vendor || cat vendor/norms.cuh", "test ! -e table.h || cc -fsyntax-only table.h", "',
    )


@pytest.fixture
def story(
    request: pytest.FixtureRequest, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Story]:
    with told(getattr(request, "param", Story), tmp_path, monkeypatch) as story:
        yield story


@pytest.mark.parametrize("story", [Released], indirect=True)
def test_small_steps_since_the_last_release_add_up_whatever_else_is_tagged(story: Story) -> None:
    story.git("tag", "v1.9")
    cut = story.push("as it is released", wide=203.0)
    story.git("checkout", "--quiet", "-b", "release/1.10")
    (story.repository / "CHANGES.md").write_text("# 1.10")
    story.commit("release 1.10")
    story.git("tag", "v1.10")
    story.git("checkout", "--quiet", "main")
    (story.repository / "README.md").write_text("# norms")
    docs = story.push("docs")
    for tag in ("docs-2026-11", "v2.0rc1"):
        story.git("tag", tag)
    story.push("a step", wide=210.0)
    story.git("tag", "docs-2026-12")

    slow = story.push("another step", wide=217.0)

    run = story.run_of(slow)
    shown = story.api("GET", f"/api/v1/runs/{run.id}").json()
    assert (shown["pinned"], cut != docs) == (cut, True), "where the branch of 1.10 left the line"
    against = {one["baseline_kind"]: one["outcome"] for one in shown["verdicts"] if one["case"] == WIDE}
    assert (against["parent"], against["pinned"]) == ("steady", "regression")
    assert shown["headline"].endswith(f"2 steady; 1 slower than the pinned baseline {cut[:10]}.")
    assert cut[:10] in story.api("GET", f"/runs/{run.id}").text
    assert story.status(slow).startswith("success: "), "no commit did it alone"


def test_lists_and_trends_follow_the_line_whatever_dates_commits_have(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = story.git("rev-parse", "main")
    shas = [first]
    for subject, date in (("from the future", "@4294967295 +0000"), ("rebased", "2001-01-01T00:00:00Z")):
        monkeypatch.setenv("GIT_COMMITTER_DATE", date)
        shas.append(story.commit(subject, wide=200.0 + len(shas)))
    monkeypatch.delenv("GIT_COMMITTER_DATE")

    story.deliver(*story.push_event(first, shas[-1]))
    story.settle()

    for path, name in (("revisions", "sha"), ("runs", "revision")):
        items = story.api("GET", f"/api/v1/targets/norms/{path}").json()["items"]
        assert [one[name] for one in items] == shas[::-1], path
    series = {"device": "cpu", "provider": "norms", "case": WIDE}
    points = story.api("GET", "/api/v1/targets/norms/series", params=series).json()["points"]
    assert [(one["revision"], one["ordinal"]) for one in points] == list(zip(shas, range(3), strict=True))
    pages = {path: story.api("GET", path, params=series).text for path in ("/targets/norms/trend", "/targets/norms")}
    [drawn] = re.findall(r'data-trend="([^"]+)"', pages["/targets/norms/trend"])
    dots = json.loads(html.unescape(drawn))
    assert [sha for _, _, sha, *_ in dots] == [one[:12] for one in shas]
    assert [x for x, *_ in dots] == sorted(x for x, *_ in dots)
    assert not [path for path, page in pages.items() if " 2106" in page or " 2001" in page]


@pytest.mark.parametrize("story", [Elsewhere], indirect=True)
def test_a_build_that_needs_a_submodule_says_that_submodules_stay_empty(story: Story) -> None:
    story.git("checkout", "--quiet", "-b", "pull-7")
    (story.repository / "vendor").mkdir()
    (story.repository / ".gitmodules").write_text('[submodule "vendor"]\n\tpath = vendor\n\turl = ../vendor\n')
    story.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},vendor")
    head = story.commit("use the shared header")
    story.git("checkout", "--quiet", "main")

    story.head(7, head, action="opened")

    assert story.run_of(head).state is RunState.FAILED
    assert story.status(head).startswith("failure: Build failed")
    [comment] = story.said(7)
    assert "vendor/norms.cuh: No such file" in comment
    assert "The submodule vendor is left empty, because submodules are not fetched." in comment


@pytest.mark.parametrize("story", [Elsewhere], indirect=True)
def test_a_build_that_reads_a_pointer_of_git_lfs_says_that_it_is_one(story: Story) -> None:
    (story.repository / "table.h").write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"
    )
    head = story.push("a table of constants")

    assert story.run_of(head).state is RunState.FAILED
    comment = story.api("GET", f"/api/v1/runs/{story.run_of(head).id}/comment").text
    assert "1 file is only a Git LFS pointer, as LFS content is not fetched; the first is table.h." in comment
