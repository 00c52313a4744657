"""The manual of counts as a story: a graph break and a kernel more have verdicts, in words without percentages."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from sqlalchemy import select

from service.db.engine import reading
from service.db.models import VerdictRow
from service.reports.words import of_verdict
from tests.shell import attempt
from tests.stories.test_story import FAST, RECIPE, WIDE, Story, told

KERNELS, BREAKS = f"{FAST}.kernels", f"{FAST}.breaks"


class CountStory(Story):
    recipe: ClassVar = RECIPE.replace(f'story = ["{FAST}", "{WIDE}"]', f'story = ["{KERNELS}", "{BREAKS}"]')
    names: ClassVar = {"kernels": KERNELS, "breaks": BREAKS}
    first: ClassVar = {"kernels": 2, "breaks": 0}

    def explain(self, case: str, **facts: object) -> None:
        (self.repository / "facts.json").write_text(json.dumps({case: facts}))

    def reason(self, sha: str, case: str, kind: str = "parent") -> str:
        with reading() as session:
            of_run = VerdictRow.run_id == self.run_of(sha).id, VerdictRow.baseline_kind == kind
            return of_verdict(session.execute(select(VerdictRow).where(*of_run, VerdictRow.case == case)).scalar_one())


@pytest.fixture
def story(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountStory]:
    with told(CountStory, tmp_path, monkeypatch) as story:
        yield story


def test_a_graph_break_is_a_regression_with_its_reason(story):
    story.explain(BREAKS, break_reasons=["Call to `print`"])
    broken = story.pull(7, action="opened", breaks=1)

    [comment] = story.said(7)
    assert re.match(r"### ✗ \[kernelwatch, CPU: 1 of 2 cases has 1 graph break instead of 0\]\(", comment)
    assert "0 graph breaks → 1 graph break because torch.compile now breaks at: Call to `print`" in comment.replace(
        "\\", ""
    )
    assert "| unchanged, kernels | 1 |" in comment
    assert story.outcomes(broken) == {KERNELS: "steady", BREAKS: "regression"}
    assert story.reason(broken, BREAKS) == "1 graph break instead of 0"
    assert story.reason(broken, KERNELS) == "2 kernels, like its baseline"
    row = comment.split("<details>")[0]
    assert "%" not in row.replace("95 %", "").split("how it was measured")[0].split("smallest change")[0]


def test_a_kernel_more_on_the_mainline_opens_a_regression_and_one_fewer_closes_it(story):
    more = story.push("normalise in two steps", kernels=3)

    assert story.open_regressions() == {KERNELS}
    run = story.run_of(more)
    page = story.api("GET", f"/runs/{run.id}").text
    assert "3 kernels instead of 2" in page
    whole = story.api("GET", f"/runs/{run.id}/cases/{KERNELS}").text
    assert "3 kernels instead of 2" in whole
    [verdict] = [
        one
        for one in story.api("GET", f"/api/v1/runs/{run.id}").json()["verdicts"]
        if one["case"] == KERNELS and one["baseline_kind"] == "parent"
    ]
    assert (verdict["difference"], verdict["change"], verdict["outcome"]) == (1, "1 more kernel", "regression")
    [regression] = story.api("GET", "/api/v1/regressions").json()["items"]
    for address in (f"/regressions/{regression['id']}", "/regressions", "/"):
        assert "1 more kernel" in story.api("GET", address).text, address
    trend = story.api("GET", f"/targets/norms/trend?device=cpu&provider=norms&case={KERNELS}").text
    assert "1 more kernel since" in trend

    fixed = story.push("in one step again", kernels=2)

    assert story.outcomes(fixed) == {KERNELS: "improvement", BREAKS: "steady"}
    assert story.open_regressions() == set()


def test_the_best_known_is_compared_by_its_count(story):
    sha = story.push("more", kernels=4)
    since = "behind inductor since [0-9a-f]{10}; the gap grew from 1 more kernel to 3 more kernels"
    assert re.fullmatch(since, story.reason(sha, KERNELS, "sota"))
    assert story.reason(sha, BREAKS, "sota") == "0 graph breaks instead of 1 of inductor"


def test_a_count_of_zero_is_measured_stored_shown_and_exported(story):
    sha = story.git("rev-parse", "HEAD")
    run = story.run_of(sha)

    measured = story.api("GET", f"/api/v1/runs/{run.id}").json()["measurements"]
    [head] = [one for one in measured if (one["role"], one["case"]) == ("head", BREAKS)]
    assert (head["median"], head["unit"], head["trials"]) == (0, "count", 3)
    assert "0 graph breaks" in story.api("GET", f"/runs/{run.id}").text
    exported = story.api("GET", "/api/v1/export/samples?target=norms&format=json").text
    values = [one for line in exported.splitlines() if (one := json.loads(line))["case"] == BREAKS]
    assert {(one["value"], one["unit"]) for one in values if one["role"] == "head"} == {(0, "count")}


def test_a_commit_that_changes_a_configuration_is_listed_exported_and_shown_as_a_series(story):
    for warps in (4, 8):
        story.explain(KERNELS, triton=[{"name": "_forward", "warps": warps, "stages": 1}])
        sha = story.push(f"{warps} warps", kernels=2 + warps)

    [item] = story.api("GET", "/api/v1/targets/norms/drifts?by=commit").json()["items"]
    assert (item["case"], item["revision"], item["run_id"]) == (KERNELS, sha, story.run_of(sha).id)
    assert story.api("GET", "/api/v1/targets/norms/drifts?by=nothing").json()["items"] == []
    printed = attempt("target", "drifts", "norms")
    assert printed.exit_code == 0, printed.output
    assert "a commit" in printed.output
    assert "_forward num_warps=8 num_stages=1" in printed.output
    [row] = story.api("GET", "/api/v1/export/drifts?target=norms&format=json").text.splitlines()
    assert json.loads(row)["now"] == "_forward num_warps=8 num_stages=1"
    page = story.api("GET", f"/targets/norms/facts?device=cpu&provider=norms&case={KERNELS}").text
    series = page[page.index('id="configurations"') : page.index('id="drifts"')]
    assert series.index("num_warps=8") < series.index("num_warps=4")
    assert series.count("the commit") == 1

    story.explain(KERNELS, triton=[{"name": "_forward", "warps": 16, "stages": 1}])
    story.push("16 warps", kernels=18)
    assert "These are the first 1; --limit shows more." in attempt("target", "drifts", "norms", "--limit", "1").output
